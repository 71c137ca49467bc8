"""The extrapolation suite: growth of error and time with length; see test_learning.py for what it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from ssmperf.suites.extrapolation import growing
from support.in_process import records_of

from ssmperf import Record, Shape

PLUGIN = Path(__file__).parents[1] / "support" / "faulty.py"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return records_of(
        "extrapolation",
        PLUGIN,
        models="hgrn",
        backends=["sequential", "faulty_half_state", "faulty_refuses_long", "faulty_nan_at_40"],
        axis=["T=16,64", "C=16", "B=8"],
        dtype="float32",
        wanted=lambda case: case.operand_source == "model",
    )


def numbers(records: list[Record], backend: str, T: int) -> dict[str, object]:
    (record,) = [r for r in records if (r.case.backend, r.case.shape["T"]) == (backend, T)]
    return {"status": str(record.status), "reason": record.reason, **record.numbers}


def test_error_and_time_at_each_length(records: list[Record]) -> None:
    for T in (16, 64):
        sound, half = (numbers(records, backend, T) for backend in ("sequential", "faulty_half_state"))
        assert sound["status"] == "ok" and sound["latency_s"] > 0
        assert half["status"] == "wrong" and half["error_output"] > 100 * sound["error_output"]
        assert "latency_s" not in half


def test_a_length_beyond_its_reach(records: list[Record]) -> None:
    assert numbers(records, "faulty_nan_at_40", 16)["status"] == "crash"  # it has no such step
    assert numbers(records, "faulty_nan_at_40", 64)["status"] == "nan"
    assert numbers(records, "faulty_refuses_long", 64)["status"] == "unsupported"


def test_lengths_go_from_an_eighth_to_64_times_that() -> None:
    shapes = (Shape(B=2, T=128, C=4), Shape(B=2, T=64, C=4))
    assert [shape["T"] for shape in growing(shapes)] == [8, 64, 512]
    assert {shape["B"] for shape in growing(shapes)} == {1}
