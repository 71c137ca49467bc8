"""Makes the run folders in comparison/pairs: four pairs of runs, one per exit code of `ssmperf check`.

    python tests/support/results/pairs.py

The records are made up, of a made-up GPU; the folders are what a store would have written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ssmperf import Case, Record, Selection, Shape, Status
from ssmperf.engine.plan.plan import Plan, Planned
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.runs import scope
from ssmperf.engine.runs.store import Writer
from ssmperf.suitekit import Section

FOLDER = Path(__file__).parents[2] / "ssmperf" / "comparison" / "pairs"
EXIT_CODES = {"ok": 0, "slower": 1, "broken": 3, "unsure": 4}
MODELS, BACKENDS = ("gla", "retnet"), ("chunkwise", "sequential", "triton")
ENV_ID = "example"
ENVIRONMENT: dict[str, Any] = {
    "device": "cuda:0",
    "hardware": {
        "cpu": {
            "model": "Example CPU 9000",
            "architecture": "x86_64",
            "cores": 16,
            "memory_bytes": 64 * 1024**3,
        },
        "gpu": {
            "name": "Example GPU",
            "uuid": "0",
            "memory_bytes": 80 * 1024**3,
            "multiprocessors": 100,
            "l2_bytes": 50 * 1024**2,
            "capability": "9.0",
            "sm_clock_hz": 1.9e9,
            "memory_clock_hz": 2.6e9,
        },
    },
    "driver": "600.10",
    "versions": {
        "python": "3.11.9",
        "os": "Example 1",
        "kernel": "6.1",
        "torch": "2.13.0",
        "triton": "3.6.0",
    },
    "torch": {"threads": 16, "cuda": "13.0", "matmul_precision": "highest", "deterministic": False},
    "cpu_limit": None,
    "variables": {},
}
Change = Callable[[Case, float], float | Status | None]


def unchanged(case: Case, seconds: float) -> float:
    return seconds


def slower(case: Case, seconds: float) -> float:
    return 1.3 * seconds if (case.model, case.backend) == ("gla", "triton") else seconds


def broken(case: Case, seconds: float) -> float | Status | None:
    if case.backend == "triton":
        return Status.WRONG if case.model == "gla" else None
    return seconds


def unsure(case: Case, seconds: float) -> float:
    """Beyond the threshold of 5 %, but within the noise of two processes."""
    return 1.06 * seconds if (case.model, case.backend) == ("retnet", "triton") else seconds


CHANGES: dict[str, Change] = {"ok": unchanged, "slower": slower, "broken": broken, "unsure": unsure}


def make(folder: Path) -> None:
    """Write all pairs into a folder that does not exist yet."""
    for number, (name, change) in enumerate(CHANGES.items()):
        _write(folder / name / "base", unchanged, created=f"2026-01-0{1 + number}T12:00:00+00:00")
        _write(folder / name / "new", change, created=f"2026-02-0{1 + number}T12:00:00+00:00")


def _write(folder: Path, change: Change, *, created: str) -> None:
    """Write one run. A change of None leaves a planned case without a record."""
    cases = [
        Case("throughput", "linear_attention", backend, Shape(B=8, T=2048, H=4, K=128, V=128), model,
             dtype="bfloat16", device="cuda")
        for model in MODELS
        for backend in BACKENDS
    ]  # fmt: skip
    plan = Plan(tuple(map(Planned, cases)))
    selection = Selection.of(Device("cuda"), models=MODELS, backends=BACKENDS, passes=("forward",))
    meta = {
        "created": created,
        "tag": folder.name,
        "argv": ["run", "--suite", "throughput", "--models", ",".join(MODELS), "--pass", "forward"],
        "nonce": f"{int(created[5:7]) * 100 + int(created[8:10]):09x}",
        "measurement": 2,
        scope.META: scope.describe(selection, ("throughput",), plan),
        "suites": {
            "throughput": Section("Throughput", "How fast?", ("latency_s",), rank="latency_s").to_json()
        },
        "plan": {"cases": len(cases), "case_ids": [case.id for case in cases]},
    }
    writer = Writer.create(folder, meta)
    writer.add_environment(ENV_ID, ENVIRONMENT)
    # the same seconds in all base runs, and noise that depends on the date
    noise = np.random.default_rng(int(created[5:7]) * 100 + int(created[8:10]))
    for place, case in enumerate(cases):
        process = float(noise.normal(0, 0.002))
        changed = change(case, 1e-4 * (1 + place) * float(np.exp(process)))
        if isinstance(changed, Status):
            writer.append(Record(case, changed, "output: error 3.1e-02, tolerance 4.0e-03", ENV_ID))
        elif changed is not None:
            samples = [float(f"{changed * each:.5g}") for each in np.exp(noise.normal(0, 0.004, 14))]
            numbers = {
                "latency_s": float(f"{np.median(samples):.5g}"),
                "samples": len(samples),
                "samples_s": samples,
                "command": f"ssmperf run --suite throughput --models {case.model} --backends {case.backend}",
            }
            writer.append(Record(case, Status.OK, None, ENV_ID, numbers))
    writer.close()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    make(FOLDER)
    print(f"written to {FOLDER}")
