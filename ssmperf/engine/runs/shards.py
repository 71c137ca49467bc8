"""Runs of one plan on several machines, read as one run: the folders of its shards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ssmperf.engine.cases.origin import hardware
from ssmperf.engine.plan.parts.shards import META
from ssmperf.engine.runs.store import Run, planned
from ssmperf.errors import UnreadableRun


def is_shard(run: Run) -> bool:
    """Tell whether a run is one of several shards of a plan."""
    found = _shard(run)
    index, count, cases = (found.get(name) for name in ("index", "count", "cases"))
    named = isinstance(found.get("plan"), str) and isinstance(cases, int)
    return named and isinstance(index, int) and isinstance(count, int) and 1 <= index <= count


def shards_of(run: Run) -> list[int]:
    """List the numbers of the shards of which a run has been joined; none of another run."""
    found = _shard(run).get("joined")
    return list(found) if isinstance(found, list) else []


def _fail(error: UnreadableRun, *_: Path) -> NoReturn:
    raise error


def joined(runs: Iterable[Run], *, force: bool = False, refuse: Callable[..., None] = _fail) -> list[Run]:
    """Join the shards of each plan to one run, in the place of the first; other runs stay as they are.

    force: whether shards that were measured on different devices are joined. refuse: is called with
        an error and the folders of shards that cannot be joined; if it returns, they are left out.

    Raises:
        UnreadableRun: shards are of different plans, one is there twice, or their devices differ.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        key = (_shard(run)["plan"], _shard(run)["count"]) if is_shard(run) else id(run)
        groups.setdefault(key, []).append(run)
    several = sum(is_shard(parts[0]) for parts in groups.values()) > 1
    found: list[Run] = []
    for parts in groups.values():
        try:
            found += [_joined(parts, force, several)] if is_shard(parts[0]) else parts
        except UnreadableRun as error:
            refuse(error, *(run.path for run in parts))
    return found


def _joined(parts: Sequence[Run], force: bool, several: bool) -> Run:
    """Join the shards of one plan. `warnings` says which are missing, unless there are several plans."""
    first = parts[0]
    count, numbers = _shard(first)["count"], [int(_shard(run)["index"]) for run in parts]
    if several and len(parts) < count:
        raise UnreadableRun(f"shards of different plans, and some of this one are missing: {_named(parts)}")
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise UnreadableRun(f"shard {twice[0]}/{count} is there twice: {_named(parts)}")
    devices = {run.path: ", ".join(hardware(run)) for run in parts}
    if len(set(filter(None, devices.values()))) > 1 and not force:
        listed = "; ".join(f"{path}: {name or 'unknown'}" for path, name in devices.items())
        raise UnreadableRun(f"shards of different devices, pass --force to read them as one run: {listed}")
    environments = {key: value for run in parts for key, value in run.environments.items()}
    ids = [*dict.fromkeys(itertools.chain.from_iterable(planned(run.meta) for run in parts))]
    warnings = list(itertools.chain.from_iterable(run.warnings for run in parts))
    missing = sorted({*range(1, count + 1)} - {*numbers})
    if missing:
        names = ", ".join(f"{number}/{count}" for number in missing)
        left = int(_shard(first)["cases"]) - len(ids)
        words = f"shard {names} is" if len(missing) == 1 else f"shards {names} are"
        warnings.append(f"{first.path}: {words} missing, with {left} of {len(ids) + left} cases")
    meta = {
        **first.meta,
        "environments": environments,
        "plan": {"cases": len(ids), "case_ids": ids},
        "created": min(str(run.meta.get("created")) for run in parts),
        META: {**_shard(first), "index": None, "joined": numbers},
    }
    records = list(itertools.chain.from_iterable(run.records for run in parts))
    rounds = {id_: records for run in parts for id_, records in run.rounds.items()}
    path = Path(os.path.commonpath([run.path.absolute() for run in parts]))
    return Run(path, meta, records, warnings, rounds)


def _shard(run: Run) -> Mapping[str, Any]:
    found = run.meta.get(META)
    return found if isinstance(found, Mapping) else {}


def _named(parts: Sequence[Run]) -> str:
    listed = (f"{run.path} is {_shard(run).get('index')}/{_shard(run).get('count')}" for run in parts)
    return ", ".join(listed)
