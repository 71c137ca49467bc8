"""Errors near their tolerance: right on most other values is `ok` with a note, and else wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import ssmperf
from ssmperf.engine.cases.record import Status
from ssmperf.suitekit import registry

SEQUENTIAL = registry.backend("scan", "sequential").function


def fuzzed(
    share: float, off: float, monkeypatch: pytest.MonkeyPatch, tmp_path, examples: int = 60
) -> ssmperf.FuzzResult:
    """Fuzz a scan whose output is off by a factor on a share of its values."""
    monkeypatch.chdir(tmp_path)

    def sometimes_off(log_a, b, initial_state=None, *, phase=None):
        output, state = SEQUENTIAL(log_a, b, initial_state, phase=phase)
        hit = b.dtype == torch.float32 and random.Random(str(b.detach().flatten()[0])).random() < share
        return (output * (1 + off) if hit else output), state

    return ssmperf.fuzz("scan", sometimes_off, examples=examples, seed=3, device="cpu")


@pytest.mark.slow
def test_rarely_near_is_right_and_counted(monkeypatch, tmp_path) -> None:
    found = fuzzed(0.05, 3e-5, monkeypatch, tmp_path, examples=240)
    assert found and found.tally.near > 0


def test_always_near_is_a_fault(monkeypatch, tmp_path) -> None:
    found = fuzzed(1.0, 3e-5, monkeypatch, tmp_path)
    (fault, *_) = found.faults
    assert not found and fault.record.status is Status.WRONG
    assert "right on 0 of 4" in fault.record.numbers["near_tolerance"]


def test_a_fault_of_numbers_that_are_not_finite_is_no_part_of_one_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Either is smallest where the other may be, too: shrinking one must not end at the other."""
    monkeypatch.chdir(tmp_path)

    def with_two_faults(log_a, b, initial_state=None, *, phase=None):
        output, state = SEQUENTIAL(log_a, b, initial_state, phase=phase)
        if (log_a == -torch.inf).any():
            return output * torch.nan, state
        return (output.roll(1, 1) if b.shape[1] % 4 == 3 else output), state

    found = ssmperf.fuzz("scan", with_two_faults, examples=120, seed=1, device="cpu")
    shapes = {fault.record.status: fault.record.case.shape["T"] for fault in found.faults}
    assert shapes.keys() == {Status.WRONG, Status.NAN}
    assert shapes[Status.WRONG] == 3 and shapes[Status.NAN] <= 3
