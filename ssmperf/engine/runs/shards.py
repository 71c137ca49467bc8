"""Runs of one plan on several machines, read as one run: the folders of its shards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
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

    A plan that was run several times, such as each night, has a run for each time.

    force: whether shards that were measured on different devices are joined. refuse: is called with
        an error and the folders of shards that cannot be joined; if it returns, they are left out.

    Raises:
        UnreadableRun: shards are of different plans, one is there twice, or their devices differ.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        key = (_shard(run)["plan"], _shard(run)["count"]) if is_shard(run) else id(run)
        groups.setdefault(key, []).append(run)
    times = [time for parts in groups.values() for time in _times(parts)]
    plans = {key for key, parts in groups.items() if is_shard(parts[0])}
    several = "different plans" if len(plans) > 1 else "several runs" if len(times) > len(groups) else None
    found: list[Run] = []
    for parts in times:
        try:
            found += [_joined(parts, force, several)] if is_shard(parts[0]) else parts
        except UnreadableRun as error:
            refuse(error, *(run.path for run in parts))
    return found


def _times(parts: Sequence[Run]) -> list[Sequence[Run]]:
    """Part the shards of a plan by the times that it was run.

    All times but the last must be complete, and the shards of one begin within less than what is between two.
    """
    if not is_shard(parts[0]) or len({*map(_index, parts)}) == len(parts):
        return [parts]
    found: list[list[Run]] = []
    for run in sorted(parts, key=_began):
        if not found or _index(run) in map(_index, found[-1]):
            found.append([])
        found[-1].append(run)
    complete = all(len(time) == _shard(time[0])["count"] for time in found[:-1])
    pauses = (_began(after[0]) - _began(before[-1]) for before, after in itertools.pairwise(found))
    longest = max(_began(time[-1]) - _began(time[0]) for time in found)
    return [*found] if complete and longest < min(pauses) else [parts]


def _began(run: Run) -> float:
    """When a run began, in seconds; 0 if it does not say."""
    try:
        return datetime.fromisoformat(str(run.meta.get("created"))).timestamp()
    except ValueError:
        return 0.0


def _joined(parts: Sequence[Run], force: bool, several: str | None) -> Run:
    """Join the shards of one run. `warnings` says which are missing, unless there are several runs."""
    first = parts[0]
    count, numbers = _shard(first)["count"], [*map(_index, parts)]
    if several and len(parts) < count:
        raise UnreadableRun(f"shards of {several}, and some of this one are missing: {_named(parts)}")
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


def _index(run: Run) -> int:
    return int(_shard(run)["index"])


def _named(parts: Sequence[Run]) -> str:
    listed = (f"{run.path} is {_shard(run).get('index')}/{_shard(run).get('count')}" for run in parts)
    return ", ".join(listed)
