"""Read a file that `pytest --benchmark-json` wrote as a run: one record per benchmark.

The file is data: nothing in it is evaluated. Facts that it lacks, such as a dtype, are left empty in cases.
Benchmarks of one group, or else each benchmark alone, stand for a model; nothing says that they are right, so
none is ever called the fastest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.cases.case import Case
from ssmperf.cases.reading import parse
from ssmperf.cases.record import SCHEMA_VERSION, Record, Status, one_line
from ssmperf.cases.shape import Shape
from ssmperf.errors import UnreadableRun
from ssmperf.measure.statistics import summarise
from ssmperf.registry.sections import Section

SUITE = "pytest-benchmark"
INFO = "ssmperf"  # key of `ssmperf_benchmark` in extra_info and machine_info
RANK = "latency_s"
SECTION = Section(
    title="pytest-benchmark",
    question="How long does each benchmark take? Imported: nothing says whether its results are right.",
    columns=(RANK, "samples", "outliers"),
    rank=RANK,
)
CLOCK_FACTS = ("clock", "converged", "unsettled", "host_latency_s", "issue_s", "waited_samples", "busy")


@dataclass(frozen=True, slots=True)
class BenchmarkCase(Case):
    """A case of another program: its fields are names that are not checked, and empty where nothing is known.

    model: the group, or else the full name. backend: the full name. timing: the timer.
    """

    def __post_init__(self) -> None:
        """Check nothing: these are not the axes of a measurement of ours."""

    def __str__(self) -> str:
        return f"{self.suite} {self.backend}" + (f" ({self.timing})" if self.timing else "")


def read(path: Path) -> tuple[dict[str, Any], list[Record], list[str]]:
    """Read a file as the contents of a `run.json`, its records, and warnings about missing facts.

    Raises:
        UnreadableRun: it cannot be read, is no file of pytest-benchmark's, or a benchmark in it is damaged.
    """
    try:
        data = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("benchmarks"), list):
        raise UnreadableRun(f"{path} is no file of pytest --benchmark-json: it has no list of benchmarks")
    environment = _environment(data)
    env_id = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
    records: dict[str, Record] = {}
    for number, each in enumerate(data["benchmarks"], start=1):
        try:
            record = _record(each, env_id)
        except _Damaged as error:
            raise UnreadableRun(f"{path}, benchmark {number}: {error}") from None
        if record.case.id in records:
            raise UnreadableRun(f"{path}, benchmark {number}: {one_line(record.case.backend)} is there twice")
        records[record.case.id] = record
    meta = {
        "schema_version": SCHEMA_VERSION,
        "created": data.get("datetime") if isinstance(data.get("datetime"), str) else None,
        "environments": {env_id: environment},
        "suites": {SUITE: SECTION.to_json()},
    }
    timed = [record for record in records.values() if record.status is Status.OK]
    bare = sum("samples_s" not in record.numbers for record in timed)
    few = f"{bare} of {len(timed)} benchmarks have no samples, so their times cannot be compared"
    how = "--benchmark-json and --benchmark-save-data keep them"
    return meta, list(records.values()), [f"{path}: {few} ({how})"] if bare else []


class _Damaged(ValueError):
    """A benchmark lacks a field that every benchmark has."""


def _record(data: Any, env_id: str) -> Record:
    """Make the record of a benchmark. Raises _Damaged."""
    if not isinstance(data, Mapping):
        raise _Damaged("it is no object")
    name, group = _text(data, "fullname"), data.get("group")
    if group is not None and not isinstance(group, str):
        raise _Damaged("its group is no text")
    extra = data.get("extra_info")
    own = extra.get(INFO) if isinstance(extra, Mapping) else None
    clock = own if isinstance(own, Mapping) else {}
    options = data.get("options")
    timer = options.get("timer") if isinstance(options, Mapping) else None
    case = BenchmarkCase(
        SUITE,
        SUITE,
        name,
        Shape(),
        group or name,
        dtype="",
        gate_dtype="",
        layout="",
        operand_source="",
        device="cuda" if str(clock.get("device", "")).startswith("cuda") else "cpu",
        pass_="",
        cache=clock["cache"] if isinstance(clock.get("cache"), str) else "",
        timing=timer if isinstance(timer, str) else "",
        level="",
    )
    numbers: dict[str, Any] = {
        "judged": False,
        "name": _text(data, "name"),
        "group": group,
        "param": data["param"] if isinstance(data.get("param"), str) else None,
        "params": data.get("params"),
        "extra_info": extra,
        "options": options,
    }
    times = _times(data.get("stats"))
    if not times[RANK]:
        reason = "its median is 0 s: the timer did not see it"
        return Record(case, Status.UNSUPPORTED, reason, env_id, numbers)
    known = {fact: clock[fact] for fact in CLOCK_FACTS if _fits(fact, clock.get(fact))}
    return Record(case, Status.OK, None, env_id, {**numbers, **times, **known})


def _times(stats: Any) -> dict[str, Any]:
    """Read the times of a benchmark: from its samples, or else from its statistics. Raises _Damaged."""
    if not isinstance(stats, Mapping):
        raise _Damaged("it has no stats")
    numbers = {
        "fastest_s": _seconds(stats, "min"),
        "slowest_s": _seconds(stats, "max"),
        "mean_s": _seconds(stats, "mean"),
        "iterations": _count(stats, "iterations", or_else=1),
    }
    if stats.get("data") is None:
        return {
            RANK: _seconds(stats, "median"),
            "quartile_low_s": _seconds(stats, "q1"),
            "quartile_high_s": _seconds(stats, "q3"),
            "samples": _count(stats, "rounds"),
            **numbers,
        }
    samples = stats["data"]
    if not isinstance(samples, list) or not samples or not all(map(_is_time, samples)):
        raise _Damaged("its data is no list of times")
    found = summarise(samples)
    return {
        RANK: found.median,
        "latency_low_s": found.low,
        "latency_high_s": found.high,
        "quartile_low_s": found.quartile_low,
        "quartile_high_s": found.quartile_high,
        "samples": found.n,
        "outliers": found.outliers,
        "samples_s": [float(each) for each in samples],
        **numbers,
    }


def _environment(data: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the machine as an environment of ours; unknown fields are None."""
    machine, commit = (_mapping(data.get(name)) for name in ("machine_info", "commit_info"))
    cpu, own = _mapping(machine.get("cpu")), _mapping(machine.get(INFO))
    cores = cpu.get("count")
    described = {
        "hardware": {
            "cpu": {
                "model": cpu.get("brand_raw") or machine.get("processor"),
                "architecture": machine.get("machine"),
                "cores": cores if isinstance(cores, int) else None,
            },
            "gpu": None,
        },
        "driver": None,
        "versions": {"python": machine.get("python_version"), "kernel": machine.get("release")},
        "torch": None,
        "variables": {},
    }
    told = {name: own[name] for name in described if name in own}
    return {
        **described,
        **(told if isinstance(_mapping(told.get("hardware")).get("cpu"), Mapping) else {}),
        "git": {"commit": commit.get("id"), "dirty": commit.get("dirty"), "reason": None},
        "pytest_benchmark": data.get("version"),
        "machine_info": {name: value for name, value in machine.items() if name != INFO},
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise _Damaged(f"it has no {name}")
    return value


def _seconds(stats: Mapping[str, Any], name: str) -> float:
    value = stats.get(name)
    if not _is_time(value):
        raise _Damaged(f"its {name} is no time")
    assert value is not None
    return float(value)


def _count(stats: Mapping[str, Any], name: str, or_else: int | None = None) -> int:
    value = stats.get(name, or_else)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Damaged(f"its {name} is no number of calls")
    return value


def _is_time(value: Any) -> bool:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    return good and math.isfinite(value) and value >= 0


def _fits(fact: str, value: Any) -> bool:
    """Tell whether a fact about the clock has the type that a record of ours gives it."""
    if fact.endswith("_s"):
        return _is_time(value)
    if fact == "busy":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, {"converged": bool, "waited_samples": int}.get(fact, str))
