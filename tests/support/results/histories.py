"""Many made-up runs of a few cases, as a store would have written them, with planted steps and creeps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from ssmperf import Case, Record, Shape, Status
from ssmperf.suitekit import Section
from support.results.pairs import ENVIRONMENT

FIRST_DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECTION = Section("Throughput", "How fast?", ("latency_s",), rank="latency_s").to_json()
MODELS = ("gla", "retnet", "hgrn2", "rwkv6")
Shifts = Mapping[int, Callable[[int], float]]  # of a case, by its number: run -> what to add to its log time


def cases(count: int) -> list[Case]:
    return [
        Case("throughput", "linear_attention", ("triton", "chunkwise")[number % 2],
             Shape(B=1, T=64 * (1 + number), H=1, K=4, V=4), MODELS[number // 2 % len(MODELS)], device="cuda")
        for number in range(count)
    ]  # fmt: skip


def step(place: int, size: float) -> Callable[[int], float]:
    """Plant a step before a run, by a share such as 0.05."""
    return lambda run: math.log1p(size) if run >= place else 0.0


def commit(number: int) -> str:
    return f"{number:02x}" * 20


def write(
    folder: Path,
    *,
    runs: int = 30,
    count: int = 20,
    shifts: Shifts | None = None,
    noise: float = 0.01,
    seed: int = 0,
    **changes: Any,
) -> list[Path]:
    """Write runs of some cases, one per day, and give their folders. changes: of all `run.json`."""
    logs = np.random.default_rng(seed).normal(0, noise, (count, runs))
    for number, shift in (shifts or {}).items():
        logs[number] += [shift(run) for run in range(runs)]
    return [write_run(folder / f"run-{run:03}", run, logs[:, run], **changes) for run in range(runs)]


def write_run(path: Path, number: int, logs: Sequence[float], **changes: Any) -> Path:
    """Write one run of the day with this number. environment: changes of its environment."""
    environment = {
        **ENVIRONMENT,
        "git": {"commit": commit(number), "dirty": False},
        **changes.pop("environment", {}),
    }
    meta = {
        "schema_version": 1,
        "created": (FIRST_DAY + timedelta(days=number)).isoformat(),
        "tag": f"day {number}",
        "measurement": 2,
        "environments": {"env": environment},
        "suites": {"throughput": SECTION},
        **changes,
    }
    lines = []
    for case, log in zip(cases(len(logs)), logs, strict=True):
        seconds = 1e-3 * math.exp(log)
        numbers = {"latency_s": seconds, "latency_low_s": 0.999 * seconds, "latency_high_s": 1.001 * seconds}
        lines.append(Record(case, Status.OK, None, "env", numbers).to_line() + "\n")
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(meta))
    (path / "records.jsonl").write_text("".join(lines))
    return path
