"""Which records are faults, which of them are the same, and which comes first."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

import ssmperf
from ssmperf import Case, Record, Shape
from ssmperf.authors.fuzzing.configurations.space import FuzzClass, FuzzExample, Space, budget_of
from ssmperf.authors.fuzzing.faults import FaultKind, FuzzFault, merged, without_numbers
from ssmperf.authors.fuzzing.shrinking import with_least_sizes
from ssmperf.authors.fuzzing.targets import spaces_of
from ssmperf.engine.cases.record import Status
from ssmperf.engine.plan.selection import Device
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


def test_the_smallest_fault_comes_first_and_equal_ones_are_one() -> None:
    def fault(T: int, C: int, call: str = "none", seed: int = 0) -> FuzzFault:
        case = Case("fuzz", "scan", "x", Shape(B=1, T=T, C=C), None, "float32", call=call, seed=seed)
        record = Record(case, Status.WRONG, "output", None, {})
        return FuzzFault(FaultKind("scan", "x", f"{T}"), record, record)

    found = merged([fault(15, 2), fault(3, 1, "stateless"), fault(1, 24), fault(3, 1), fault(3, 1, seed=4)])
    assert [(each.record.case.shape["T"], each.count) for each in found] == [(3, 2), (3, 1), (1, 1), (15, 1)]


@pytest.mark.parametrize(("begins", "steps"), [(34, 61), (128, 193), (2, 255)])
def test_sizes_between_edges_of_tiles_are_found(begins: int, steps: int) -> None:
    """A fault of odd lengths from some one on, and of some channels on."""
    entry = registry.backend("scan", "sequential")
    space = Space("scan", entry, "cpu", budget_of(entry, "cpu"))
    kind = FuzzClass(space, (("C", 48),), "data", "forward", "float32", "float32", "channels_last", 1, ())
    judged: list[Case] = []

    def fails(case: Case) -> bool:
        judged.append(case)
        return case.shape["T"] >= begins and case.shape["T"] % 2 == 1 and case.shape["C"] >= 19

    kind, example = with_least_sizes(kind, FuzzExample(batch=5, lengths=(steps,)), fails)
    assert (example.batch, example.lengths, kind.sizes) == (1, (begins + 1,), (("C", 19),))
    assert len(judged) < 20


def test_a_function_is_fuzzed_with_the_gates_that_it_has_parameters_for(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    found = ssmperf.fuzz("scan", lambda b, log_a, initial_state=None: SEQUENTIAL(log_a, b, initial_state),
                         examples=30, seed=1, device="cpu")  # fmt: skip
    assert "phase" in found.left_out["gates data_complex"] and "gates data" not in found.left_out
    assert not any("phase" in reason for reason in found.tally.refused)
    with pytest.raises(ssmperf.UsageError, match="no parameter for"):
        ssmperf.fuzz("scan", lambda b, *, x=None: b, examples=30, seed=1, device="cpu")
    with pytest.raises(ssmperf.UsageError, match="no parameter for phase"):  # which this model's gates have
        ssmperf.fuzz("gateloop", lambda log_a, b, initial_state=None: b, examples=30, device="cpu")


def test_reasons_are_alike_but_for_their_numbers_and_no_dtype_is_one() -> None:
    assert without_numbers("1.5e-05 of 12,3 float64 at (0, 3)") == "# of # float64 at (#, #)"


def test_a_plugin_that_registers_nothing_to_fuzz_is_named(own_registrations: None, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def scan(b):\n    return b\n")
    registry.load_plugin(tmp_path / "mine.py")
    with pytest.raises(ssmperf.UsageError, match=r"mine\.py registers none of scan .*ssmperf new"):
        spaces_of(["scan"], None, Device("cpu"))
