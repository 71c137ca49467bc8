"""The extrapolation suite: growth of error and time with length; see test_learning.py for what it trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.in_process import records_of

from ssmperf import Case, Record
from ssmperf.engine.execute.request import select
from ssmperf.engine.plan.plan import make_plan
from ssmperf.suitekit import registry

PLUGIN = Path(__file__).parents[1] / "support" / "plugins" / "faulty.py"

FAULTS = ("half_state", "refuses_long", "nan_at_40", "drops_state", "rounds_state")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return records_of(
        "extrapolation",
        PLUGIN,
        models="hgrn",
        backends=["sequential", *(f"faulty_{name}" for name in FAULTS)],
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


@pytest.mark.parametrize("T", [16, 64])
def test_a_state_that_is_dropped_or_rounded_between_segments_is_found(records: list[Record], T: int) -> None:
    sound = numbers(records, "sequential", T)
    assert sound["segments"] == 8 and sound["segments_difference"] < 1e-6
    assert 0 < sound["error_in_segments"] < 1e-6
    for fault, least in (("drops_state", 0.01), ("rounds_state", 1e-4)):
        found = numbers(records, f"faulty_{fault}", T)
        assert found["status"] == "wrong" and "in 8 segments through initial_state" in str(found["reason"])
        assert found["error_in_segments"] > least and found["segments_difference"] > least
        assert found["error_output"] < 1e-6  # of the call in one piece, which is right
        assert "latency_s" not in found


def test_a_function_without_a_state_has_no_segments_and_says_why() -> None:
    (record,) = records_of("extrapolation", PLUGIN, models="gla", backends="surrogate_softmax",
                           regime="model", axis=["T=16"])  # fmt: skip
    assert record.status == "ok" and "no state" in record.numbers["segments_reason"]
    assert "segments" not in record.numbers


def planned(device: str, **choices: object) -> list[Case]:
    selection, _ = select(device=device, planning=True, **choices)
    return [item.case for item in make_plan(selection, ["extrapolation"]).cases]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_reach_64_times_the_preset_s_and_a_million_on_a_gpu(device: str) -> None:
    cases = [case for case in planned(device, models="hgrn,gla") if "task/" not in case.operand_source]
    for model in ("hgrn", "gla"):
        found = {case.shape["T"] for case in cases if case.model == model}
        assert len(found) == 3
        assert min(found) * 64 in found
    assert {case.shape["B"] for case in cases} == {1}
    assert device == "cpu" or max(case.shape["T"] for case in cases) == 2**20


def test_loops_and_scans_in_plain_torch_are_measured_at_one_length_unless_they_are_named() -> None:
    for backends, lengths in ((None, 1), ("sequential,blelloch", 3)):
        cases = planned("cuda", models="hgrn", backends=backends, regime="model")
        for backend in ("sequential", "blelloch"):
            assert len({case.shape["T"] for case in cases if case.backend == backend}) == lengths


def test_one_model_stands_for_its_recurrence_and_kind_of_gate() -> None:
    cases = [case for case in planned("cpu") if case.operand_source == "model"]
    models = {case.model for case in cases}
    every = [registry.model(name) for name in registry.models() if ":" not in name]
    kinds = {(entry.recurrence, entry.gate) for entry in every}
    assert {(registry.model(name).recurrence, registry.model(name).gate) for name in models} == kinds
    assert len(models) == len(kinds)
    assert not any(registry.is_peer(case.owner, case.backend) for case in cases)


def test_an_axis_of_lengths_is_not_for_trainings_unless_a_task_is_named() -> None:
    for regime, lengths in ((None, {64}), ("task/mqar", {2**20})):
        cases = planned("cuda", models="gla", regime=regime, axis=["T=1048576", "B=2"])
        learned = [case for case in cases if case.operand_source.startswith("task/")]
        assert {case.shape["T"] for case in learned} == lengths
        numerical = [case for case in cases if case not in learned]
        assert {(case.shape["T"], case.shape["B"]) for case in numerical} == (
            set() if regime else {(2**20, 2)}
        )


def test_calls_of_minutes_at_a_chosen_length_are_refused_unless_the_backend_is_named() -> None:
    for backends in (None, "surrogate"):
        selection, _ = select(
            device="cuda", planning=True, models="gla", backends=backends, regime="model", axis=["T=1048576"]
        )
        refusals = {item.case.backend: item.refusal for item in make_plan(selection, ["extrapolation"]).cases}
        assert (refusals["surrogate"] is None) == (backends is not None)
        assert refusals.get("triton") is None


def test_the_text_of_a_learned_case_names_its_task() -> None:
    cases = planned("cpu", models="gla", regime=["task/mqar", "task/needle"])
    assert len(cases) == 2
    assert all(case.operand_source in str(case).split() for case in cases)
    assert "task" not in str(planned("cpu", models="gla", regime="model")[0])
