"""Read a file that `pytest --benchmark-json` wrote as a run: one record per benchmark.

The file is data: nothing in it is evaluated. Facts that it lacks, such as a dtype, are left empty in cases.
Benchmarks of one group, or else each benchmark alone, stand for a model; nothing says that they are right, so
none is ever called the fastest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.reading import parse, whole_or_none
from ssmperf.engine.cases.record import SCHEMA_VERSION, Record, Status, one_line
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.measure.statistics import summarise
from ssmperf.engine.registry.sections import Section
from ssmperf.errors import UnreadableRun

SUITE = "pytest-benchmark"
INFO = "ssmperf"  # key of `ssmperf_benchmark` in extra_info and machine_info
RANK = "latency_s"
SECTION = Section(
    title="pytest-benchmark",
    question="How long does each benchmark take? Imported: nothing says whether its results are right.",
    columns=(RANK, "samples", "outliers"),
    rank=RANK,
)
STATISTICS = ("min", "max", "mean", "median", "q1", "q3")  # times that pytest-benchmark computes from samples
LEAST_S, MOST_S = 1e-12, 1e9  # a cycle of any processor is longer; and thirty years
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
    """Read a file as the contents of a `run.json`, its records, and warnings about what is left out.

    A benchmark whose times cannot be believed is a record without any, `unsupported` with the reason, so that
    a comparison misses it. One without a name is left out.

    Raises:
        UnreadableRun: it cannot be read, or is no file of pytest-benchmark's.
    """
    try:
        data = parse(path.read_bytes(), whole=whole_or_none)
    except (OSError, ValueError) as error:
        raise UnreadableRun(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("benchmarks"), list):
        raise UnreadableRun(f"{path} is no file of pytest --benchmark-json: it has no list of benchmarks")
    if not data["benchmarks"]:
        raise UnreadableRun(f"{path} has no benchmarks")
    environment = _environment(data)
    env_id = hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
    records: dict[str, Record] = {}
    warnings = []
    for number, each in enumerate(data["benchmarks"], start=1):
        try:
            record = _record(each, env_id)
        except _Damaged as error:
            warnings.append(f"benchmark {number} of {path} is left out: {error}")
            continue
        id_ = record.case.id
        records[id_] = _refused(record.case, "it is there twice", env_id) if id_ in records else record
    warnings += [
        f"{one_line(each.case.backend)} of {path} is left out: {each.reason}"
        for each in records.values()
        if each.status is not Status.OK
    ]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "created": data.get("datetime") if isinstance(data.get("datetime"), str) else None,
        "environments": {env_id: environment},
        "suites": {SUITE: SECTION.to_json()},
    }
    return meta, list(records.values()), warnings


def remarks(path: Path, records: Iterable[Record]) -> list[str]:
    """Say how many benchmarks of a file can be shown but not compared, since no samples were kept."""
    timed = [each for each in records if each.case.suite == SUITE and each.status is Status.OK]
    bare = sum("samples_s" not in each.numbers for each in timed)
    few = f"{bare} of {len(timed)} benchmarks have no samples, so their times cannot be compared"
    return [f"{path}: {few} (--benchmark-json and --benchmark-save-data keep them)"] if bare else []


class _Damaged(ValueError):
    """A benchmark has no name, or no times that can be believed."""


def _record(data: Any, env_id: str) -> Record:
    """Make the record of a benchmark. Raises _Damaged if it has no name."""
    if not isinstance(data, Mapping):
        raise _Damaged("it is no object")
    names = [data.get("fullname"), data.get("name")]
    name = next((each for each in names if isinstance(each, str) and each), None)
    if name is None:
        raise _Damaged("it has no fullname, or one that is no text")
    group, extra, options = data.get("group"), data.get("extra_info"), data.get("options")
    own = extra.get(INFO) if isinstance(extra, Mapping) else None
    clock = own if isinstance(own, Mapping) else {}
    timer = options.get("timer") if isinstance(options, Mapping) else None
    case = BenchmarkCase(
        SUITE,
        SUITE,
        name,
        Shape(),
        group if isinstance(group, str) and group else name,
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
    if name != names[0]:
        return _refused(case, "it has no fullname, or one that is no text", env_id)
    if not isinstance(group, str | None):
        return _refused(case, "its group is no text", env_id)
    try:
        times = _times(data.get("stats"))
    except _Damaged as error:
        return _refused(case, str(error), env_id)
    numbers: dict[str, Any] = {
        "judged": False,
        "name": names[1] if isinstance(names[1], str) else None,
        "group": group,
        "param": data["param"] if isinstance(data.get("param"), str) else None,
        "params": data.get("params"),
        "extra_info": extra,
        "options": options,
    }
    known = {fact: clock[fact] for fact in CLOCK_FACTS if _fits(fact, clock.get(fact))}
    return Record(case, Status.OK, None, env_id, {**numbers, **times, **known})


def _refused(case: Case, reason: str, env_id: str) -> Record:
    return Record(case, Status.UNSUPPORTED, reason, env_id, {"judged": False})


def _times(stats: Any) -> dict[str, Any]:
    """Read the times of a benchmark: from its samples, or else from its statistics. Raises _Damaged."""
    if not isinstance(stats, Mapping) or not stats:
        raise _Damaged("it has no stats")
    told = {name: _seconds(stats[name], f"its {name}") for name in STATISTICS if name in stats}
    iterations = _count(stats.get("iterations", 1), "its iterations")
    samples = stats.get("data")
    if samples is None:
        if "median" not in told:
            raise _Damaged("it has neither data nor a median")
        return {
            RANK: told["median"],
            "quartile_low_s": told.get("q1"),
            "quartile_high_s": told.get("q3"),
            "fastest_s": told.get("min"),
            "slowest_s": told.get("max"),
            "mean_s": told.get("mean"),
            "samples": _count(stats["rounds"], "its rounds") if "rounds" in stats else None,
            "iterations": iterations,
        }
    if not isinstance(samples, list) or not samples:
        raise _Damaged("its data is no list of times")
    times = [
        _seconds(each, f"time {number} of {len(samples)} in its data")
        for number, each in enumerate(samples, start=1)
    ]
    found = summarise(times)
    return {
        RANK: found.median,
        "latency_low_s": found.low,
        "latency_high_s": found.high,
        "quartile_low_s": found.quartile_low,
        "quartile_high_s": found.quartile_high,
        "fastest_s": min(times),
        "slowest_s": max(times),
        "mean_s": told.get("mean", sum(times) / len(times)),
        "samples": found.n,
        "outliers": found.outliers,
        "samples_s": times,
        "iterations": iterations,
    }


def _environment(data: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the machine as an environment of ours; unknown fields are None."""
    machine, commit = (_mapping(data.get(name)) for name in ("machine_info", "commit_info"))
    cpu, own = _mapping(machine.get("cpu")), _mapping(machine.get(INFO))
    model = cpu.get("brand_raw") or cpu.get("brand") or machine.get("processor")
    cores, architecture = cpu.get("count"), machine.get("machine")
    described = {
        "hardware": {
            "cpu": {
                "model": model if isinstance(model, str) else None,
                "architecture": architecture if isinstance(architecture, str) else None,
                "cores": cores if _is_count(cores) else None,
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


def _seconds(value: Any, what: str) -> float:
    """Read a time. Raises _Damaged, which names it, for a value that no clock gives."""
    if value is None:  # which the reader puts in place of NaN and infinity
        raise _Damaged(f"{what} is null, NaN or infinite")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Damaged(f"{what} is no number")
    if value == 0:
        raise _Damaged(f"{what} is 0 s: the timer did not see it")
    if not LEAST_S <= value <= MOST_S:
        raise _Damaged(f"{what} is {float(value):.3g} s, which no clock measures")
    return float(value)


def _count(value: Any, what: str) -> int:
    if not _is_count(value):
        raise _Damaged(f"{what} is no number of calls")
    return int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _fits(fact: str, value: Any) -> bool:
    """Tell whether a fact about the clock has the type that a record of ours gives it."""
    if fact.endswith("_s"):
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        return good and math.isfinite(value) and value >= 0
    if fact == "busy":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    return isinstance(value, {"converged": bool, "waited_samples": int}.get(fact, str))
