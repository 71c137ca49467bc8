"""A run killed at random moments and resumed holds the same cases as an undisturbed one, each once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import ssmperf

ARGS = (
    "run",
    "--suite",
    "correctness",
    "--models",
    "hgrn,mingru,rg_lru,gateloop",
    "--device",
    "cpu",
    "--axis",
    "T=5,9,12",
    "--axis",
    "C=2",
    "--dtype",
    "float32,bfloat16",
)
KILLS = 5


def start(path: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "ssmperf.cli", *ARGS, "--out", str(path), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """A shell that starts a job in the background lets it ignore SIGINT, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def lines(path: Path) -> int:
    file = path / "records.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_records(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    while lines(path) < count and process.poll() is None:
        time.sleep(0.002)


def test_sigkill_at_random_moments_then_resume(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert start(whole).wait() == 0
    expected = {record.case.id for record in ssmperf.load(whole).records}
    assert len(expected) > 100
    broken, moments = tmp_path / "broken", random.Random(20)
    for _ in range(KILLS):
        process = start(broken, "--resume")
        wait_for_records(process, broken, lines(broken) + moments.randint(1, len(expected) // KILLS))
        time.sleep(moments.random() * 0.02)
        process.kill()
        process.wait()
    assert start(broken, "--resume").wait() == 0
    records = (broken / "records.jsonl").read_text().splitlines()
    found = [record.case.id for record in ssmperf.load(broken).records]
    assert set(found) == expected
    assert len(found) == len(records) == len(expected)


def test_workers_die_with_the_driver(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    wait_for_records(process, tmp_path / "run", 60)
    while not (workers := children(process.pid)) and process.poll() is None:
        time.sleep(0.01)  # what is refused is recorded before a worker starts
    assert workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    wait_for_records(process, tmp_path / "run", 60)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert len(ssmperf.load(tmp_path / "run").records) >= 60


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(part) for part in text.split()]
