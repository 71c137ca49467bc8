"""The workloads of a run, as `run.json` has them: the ids of their cases, by name and phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.workloads.phases import EVERY
from ssmperf.engine.runs.store import Run
from ssmperf.errors import UnknownName

META = "workloads"  # key in run.json: name -> phase -> ids


def listed(plan: Plan, earlier: Mapping[str, Any]) -> dict[str, Any]:
    """List the cases of a plan's workloads after those of an earlier `run.json` of the same folder."""
    found: dict[str, dict[str, list[str]]] = {}
    for key, ids in workloads_of(earlier).items():
        name, _, phase = key.rpartition(":")
        found.setdefault(name, {})[phase] = list(ids)
    for name, phases in plan.workloads.items():
        for phase, ids in phases.items():
            before = found.setdefault(name, {}).get(phase, ())
            found[name][phase] = list(dict.fromkeys((*before, *ids)))
    return {META: found} if found else {}


def workloads_of(meta: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Read the ids of a run's workloads by NAME:PHASE; what is damaged is left out."""
    found = {}
    for name, phases in _items(meta.get(META)):
        for phase, ids in _items(phases):
            if isinstance(ids, Sequence) and not isinstance(ids, str):
                found[f"{name}:{phase}"] = tuple(each for each in ids if isinstance(each, str))
    return found


def of_workloads(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """Keep of each run the workloads that are named: NAME[:PHASE][@tpN], or `all`.

    Raises:
        UnknownName: no run has one of them.
    """
    known = {key for run in runs for key in workloads_of(run.meta)}
    asked = sorted(known) if EVERY in names and known else [_key(name) for name in names]
    for name in asked:
        if not any(_is(key, name) for key in known):
            every = {key.rpartition(":")[0] for key in known}
            raise UnknownName("workload in these runs", name, every)
    found = []
    for run in runs:
        kept: dict[str, dict[str, tuple[str, ...]]] = {}
        for key, ids in workloads_of(run.meta).items():
            if any(_is(key, name) for name in asked):
                workload, _, phase = key.rpartition(":")
                kept.setdefault(workload, {})[phase] = ids
        found.append(replace(run, meta={**run.meta, META: kept}))
    return found


def _key(name: str) -> str:
    """Write NAME:PHASE@tpN, as a run is asked for it, as NAME@tpN:PHASE, as the run has it."""
    text, ranks, number = name.partition("@tp")
    layer, colon, phase = text.partition(":")
    return f"{layer}{ranks}{number}{colon}{phase}"


def _is(key: str, name: str) -> bool:
    return key == name or key.rpartition(":")[0] == name


def _items(value: Any) -> Sequence[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else ()
