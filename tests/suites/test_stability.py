"""The stability suite: planted faults, their place and their size; regimes with usual gates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ssmperf.suites.stability import PIECES, growing, state_envelope, usual_sources
from support.in_process import records_of

from ssmperf import Case, Record, Shape, registry
from ssmperf.operands.build import build_operands
from ssmperf.plan.selection import Device, Selection
from ssmperf.trial.judge import errors_along_time

PLUGIN = Path(__file__).parents[1] / "support" / "faulty.py"
NAN_STEP = 40
FAULTY = ("nan_at_40", "half_state", "boasts")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return records_of(
        "stability",
        PLUGIN,
        models="scan",
        backends=["sequential", "logspace", "surrogate_raw", *(f"faulty_{name}" for name in FAULTY)],
        regime="sigmoid/data,ones/data",
        axis=["T=256", "C=4", "B=2"],
        dtype="float32",
    )


def of(records: list[Record], backend: str, source: str = "sigmoid/data") -> Record:
    (record,) = [r for r in records if r.case.backend == backend and r.case.operand_source == source]
    return record


def test_a_case_for_each_regime_and_backend(records: list[Record]) -> None:
    assert len(records) == 2 * 6
    assert {record.case.model for record in records} == {None}


def test_the_first_nan_has_its_place(records: list[Record]) -> None:
    record = of(records, "faulty_nan_at_40")
    assert record.status == "nan"
    assert record.numbers["first_nan_step"] == NAN_STEP
    assert 0 <= record.numbers["largest_finite_error"] < 1e-5
    pieces = zip(record.numbers["steps"], record.numbers["error_envelope"], strict=True)
    broken = [end for end, error in pieces if error is None]
    assert broken == [next(end for end in record.numbers["steps"] if end > NAN_STEP)]


def test_a_half_precision_state_shows(records: list[Record]) -> None:
    """Without decay the error grows along the sequence, far beyond float32's."""
    for source in ("sigmoid/data", "ones/data"):
        record = of(records, "faulty_half_state", source)
        assert record.status == "wrong"
        assert record.numbers["error_output"] > 1e-4
        assert (
            record.numbers["error_output"] > 100 * of(records, "sequential", source).numbers["error_output"]
        )
        assert record.numbers["error_final_state"] > 1e-5
    envelope = of(records, "faulty_half_state", "ones/data").numbers["error_envelope"]
    assert max(envelope[-4:]) > 3 * max(envelope[:4])


def test_a_sound_backend_is_right_and_has_no_bound(records: list[Record]) -> None:
    numbers = of(records, "sequential").numbers
    assert of(records, "sequential").status == "ok" and numbers["error_output"] < 1e-5
    assert numbers["first_nan_step"] is None
    assert numbers["error_bound"] is None and numbers["bound_holds"] is None
    assert max(numbers["error_envelope"]) == pytest.approx(numbers["largest_finite_error"])


def test_whether_a_declared_bound_holds(records: list[Record]) -> None:
    """The faulty error is within the tolerance, yet not within the bound that this backend declares."""
    honest, boasting = of(records, "logspace").numbers, of(records, "faulty_boasts").numbers
    assert honest["bound_holds"] is True
    assert honest["error_bound"] > honest["error_output"]
    assert boasting["bound_holds"] is False and boasting["error_bound"] == 1e-9


def test_beyond_its_span_a_backend_refuses_with_the_reason(records: list[Record]) -> None:
    refused = of(records, "surrogate_raw")
    assert refused.status == "unsupported" and "88.7" in str(refused.reason)
    assert refused.numbers["decay_span"] > 88.7
    assert refused.numbers["command"].startswith("ssmperf run --suite stability --models scan")
    assert of(records, "surrogate_raw", "ones/data").status == "ok"


def test_growth_without_decay_shows_in_the_envelope(records: list[Record]) -> None:
    free, decaying = (of(records, "sequential", s).numbers for s in ("ones/data", "sigmoid/data"))
    assert free["largest_state"] > 3 * decaying["largest_state"]
    assert free["largest_state"] == max(free["state_envelope"])
    assert free["steps"][-1] == 256 and len(free["steps"]) == PIECES


@pytest.mark.parametrize("T", [5, 16, 37])
def test_the_envelope_is_the_state_at_the_ends(T: int) -> None:
    case = Case(
        suite="stability",
        recurrence="scan",
        backend="",
        shape=Shape(B=2, T=T, C=3),
        dtype="float64",
        operand_source="sigmoid/data",
    )
    ends, envelope = state_envelope(case, build_operands(case))
    states, _ = registry.recurrence("scan").definition(**build_operands(case))
    assert ends[-1] == T and len(ends) == min(PIECES, T)
    assert envelope == pytest.approx([float(states[:, end - 1].abs().max()) for end in ends])


def test_values_that_are_not_finite_hide_no_error() -> None:
    expected = torch.full((1, 4, 2), 2.0, dtype=torch.float64)
    output = expected.float().clone()
    output[0, 1, 0] += 0.5
    output[0, 2, 1] = float("inf")
    found = errors_along_time(output, expected, (1, 2, 3, 4))
    assert found["first_nan_step"] == 2
    assert found["largest_finite_error"] == 0.25
    assert found["error_envelope"][:2] == [0.0, 0.25] and found["error_envelope"][3] == 0


def test_usual_gates_and_phases() -> None:
    assert usual_sources("scan", "sigmoid") == ["sigmoid/data"]
    assert usual_sources("scan", "phase") == ["phase/data_complex"]
    assert usual_sources("linear_attention", "reset") == ["reset/key"]


def test_a_model_stands_for_its_recurrence() -> None:
    suite = registry.suite("stability")
    cases = list(suite.cases(Selection.of(Device("cpu"), models=("gla",), regimes=("mamba",))))
    assert {case.model for case in cases} == {None}
    assert {case.operand_source for case in cases} == {"mamba/key"}
    assert {case.recurrence for case in cases} == {"linear_attention"}


def test_lengths_grow_eightfold_from_the_shortest() -> None:
    shapes = (Shape(B=8, T=16, C=2), Shape(B=8, T=64, C=2))
    assert growing(shapes) == (Shape(B=1, T=16, C=2), Shape(B=1, T=128, C=2))
