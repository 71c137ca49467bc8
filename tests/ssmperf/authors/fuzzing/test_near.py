"""Errors near their tolerance: right on most other values is `ok` with a note, and else wrong."""

from __future__ import annotations

import random

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
