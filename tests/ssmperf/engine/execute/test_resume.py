"""A run that is killed at random moments and resumed has every planned case exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.processes import quick_processes
from support.processes.forks import Forked

import ssmperf
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan

MODELS = "hgrn,mingru,rg_lru,gateloop"
BACKENDS = "sequential,blelloch,hillis_steele,logspace,surrogate,triton"
DTYPES = "float32,bfloat16"
AXES = ("T=5,9", "C=2")
ARGS = ("run", "--suite", "correctness", "--models", MODELS, "--backends", BACKENDS, "--dtype", DTYPES,
        "--device", "cpu", *(word for axis in AXES for word in ("--axis", axis)))  # fmt: skip
ENDINGS = (signal.SIGKILL, signal.SIGINT, signal.SIGKILL)  # a new run, then resumed ones


def start(path: Path, *, to_end: bool = False) -> Forked:
    """Start or resume the run. Where it does not get to its end, its nursery is a child of its own."""
    with Path(os.devnull).open("r+b") as null:
        descriptors = dict.fromkeys(range(3), null.fileno())
        words = (*ARGS, "--resume", "--out", path)
        return quick_processes.start(*words, descriptors=descriptors, full_nurseries=not to_end)


def lines(path: Path) -> int:
    file = path / "records.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_records(process: Forked, path: Path, count: int) -> None:
    while lines(path) < count and process.poll() is None:
        time.sleep(0.002)


def planned() -> set[str]:
    selection, _ = select(models=MODELS, backends=BACKENDS, dtype=DTYPES, device="cpu", axis=AXES)
    return {item.case.id for item in make_plan(selection, ["correctness"]).cases}


@pytest.mark.slow
def test_killed_and_interrupted_at_random_moments_then_resumed(tmp_path: Path) -> None:
    """Each time the workers die with the driver, and an interrupt keeps all finished cases."""
    expected = planned()
    assert len(expected) > 80
    run, moments = tmp_path / "run", random.Random(20)
    for ending in ENDINGS:
        process = start(run)
        some = lines(run) + moments.randint(1, len(expected) // 8)
        wait_for_records(process, run, some)
        while not (workers := children(process.pid)) and process.poll() is None:
            time.sleep(0.01)  # refused cases are recorded before a worker starts
        time.sleep(moments.random() * 0.02)
        process.send_signal(ending)
        assert process.wait() == (-ending if ending == signal.SIGKILL else 130)
        assert workers
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        if ending == signal.SIGINT:
            assert some <= len(ssmperf.load(run).records) < len(expected)
    assert start(run, to_end=True).wait() == 0
    records = (run / "records.jsonl").read_text().splitlines()
    found = [record.case.id for record in ssmperf.load(run).records]
    assert set(found) == expected
    assert len(found) == len(records) == len(expected)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(part) for part in text.split()]
