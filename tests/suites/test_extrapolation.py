"""The extrapolation suite: growth of error with length, and learning that follows its seed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ssmperf.suites.extrapolation import growing
from ssmperf.suites.learning import UPDATES_PER_STEP, accuracy_by_reach, quickest
from ssmperf.suites.tasks import IGNORED, Examples, Task, tasks
from ssmperf.suites.training import Diverged, majority, pace, right, train, unseen
from support.in_process import records_of

import ssmperf
from ssmperf import Case, Record, Shape, UnknownName, registry
from ssmperf.plan.selection import Device, Selection

PLUGIN = Path(__file__).parents[1] / "support" / "faulty.py"
TASK = tasks()["memory_horizon"]
SHAPE = Shape(B=8, T=16, C=16)


def cases(**choices: object) -> list[Case]:
    selection = Selection.of(Device("cpu"), **choices)
    return list(registry.suite("extrapolation").cases(selection))


def learned(found: list[Case]) -> list[Case]:
    return [case for case in found if case.operand_source == "task/memory_horizon"]


TRAINED = {("sequential", 16), ("faulty_refuses_long", 16), ("faulty_nan_at_40", 64)}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Run the numerical cases, and the learned ones of TRAINED; the first of these runs in a worker."""
    in_worker = ssmperf.run(
        "extrapolation",
        models="hgrn",
        backends="sequential",
        regime="task/memory_horizon",
        axis=["T=16", "C=16", "B=8"],
        device="cpu",
        out=tmp_path_factory.mktemp("runs") / "run",
    )
    return in_worker.records + records_of(
        "extrapolation",
        PLUGIN,
        models="hgrn",
        backends=["sequential", "faulty_half_state", "faulty_refuses_long", "faulty_nan_at_40"],
        axis=["T=16,64", "C=16", "B=8"],
        dtype="float32",
        wanted=lambda case: (
            not learned([case]) or (case.backend, case.shape["T"]) in TRAINED - {("sequential", 16)}
        ),
    )


def numbers(records: list[Record], backend: str, T: int, source: str = "model") -> dict[str, object]:
    (record,) = [
        r
        for r in records
        if (r.case.backend, r.case.shape["T"], r.case.operand_source) == (backend, T, source)
    ]
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


def test_a_learned_record_says_how_it_was_learned(records: list[Record]) -> None:
    found = numbers(records, "sequential", 16, "task/memory_horizon")
    assert found["status"] == "ok" and found["updates"] == UPDATES_PER_STEP * 16
    assert found["test_lengths"] == [16, 32, 64]
    assert all(0 <= accuracy <= 1 for accuracy in found["accuracies"])
    assert found["accuracies"][0] == found["accuracy"]
    assert len(found["losses"]) == len(found["updates_done"]) == 8
    assert found["losses"][-1] < found["losses"][0]
    assert all(0 < accuracy < 0.5 for accuracy in found["majority_accuracies"])
    assert "--regime task/memory_horizon" in found["command"]


def test_what_was_learned_beats_the_most_frequent_answer(records: list[Record]) -> None:
    found = numbers(records, "sequential", 16, "task/memory_horizon")
    assert found["accuracy"] > found["majority_accuracy"]


def test_the_same_seed_learns_the_same_twice_and_in_another_process(records: list[Record]) -> None:
    found = numbers(records, "sequential", 16, "task/memory_horizon")
    updates = UPDATES_PER_STEP * 16
    again = train("hgrn", SHAPE, "sequential", TASK, updates=updates, seed=0, device="cpu")
    assert list(again.losses) == pytest.approx(found["losses"], rel=1e-6)
    short = [
        train("hgrn", SHAPE, "sequential", TASK, updates=4, seed=seed, device="cpu").losses
        for seed in (0, 0, 1)
    ]
    assert short[0] == short[1] != short[2]


def test_a_length_that_the_backend_refuses_has_no_accuracy(records: list[Record]) -> None:
    found = numbers(records, "faulty_refuses_long", 16, "task/memory_horizon")
    assert found["status"] == "ok"
    assert found["accuracies"][:2] != [None, None] and found["accuracies"][2] is None
    assert found["accuracy_4T"] is None and "nothing above 32 steps" in found["accuracies_reason"]


def test_training_on_nan_ends_as_nan(records: list[Record]) -> None:
    """At T = 64 step 40 is there."""
    found = numbers(records, "faulty_nan_at_40", 64, "task/memory_horizon")
    assert found["status"] == "nan" and "the loss is nan at update 0" in str(found["reason"])


def test_a_loss_that_is_not_finite_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssmperf.suites.training.RATE", math.inf)
    with pytest.raises(Diverged, match="update 1 of 3"):
        train("hgrn", SHAPE, "sequential", TASK, updates=3, seed=0, device="cpu")


def test_lengths_go_from_an_eighth_to_64_times_that() -> None:
    shapes = (Shape(B=2, T=128, C=4), Shape(B=2, T=64, C=4))
    assert [shape["T"] for shape in growing(shapes)] == [8, 64, 512]
    assert {shape["B"] for shape in growing(shapes)} == {1}


def test_smoke_trains_one_model_of_a_recurrence_unless_models_are_named() -> None:
    found = learned(cases())
    smoke = Selection.of(Device("cpu")).scale
    assert 0 < len(found) <= smoke.trained_models
    assert len({case.recurrence for case in found}) == len(found)
    assert {case.shape["T"] for case in found} == {smoke.train_length}
    assert [case.model for case in learned(cases(models=("hgrn", "retnet", "scan")))] == ["hgrn", "retnet"]


def test_backends_that_are_named_are_all_trained() -> None:
    found = learned(cases(models=("hgrn",), backends=("sequential", "logspace")))
    assert sorted(case.backend for case in found) == ["logspace", "sequential"]


def test_the_quickest_is_exact_and_not_refused() -> None:
    selection = Selection.of(Device("cpu"))
    named = Selection.of(Device("cpu"), models=("hgrn",), backends=("logspace", "triton", "sequential"))
    several = learned(list(registry.suite("extrapolation").cases(named)))
    assert [case.backend for case in quickest(several, selection)] == ["sequential"]
    hopeless = [replace(case, backend="triton") for case in several]
    assert list(quickest(hopeless, selection)) == []


def test_a_task_can_be_asked_for_alone() -> None:
    found = cases(models=("hgrn",), regimes=("task/memory_horizon",))
    assert found == learned(found) and len(found) == 1
    with pytest.raises(UnknownName, match="memory_horizon"):
        cases(models=("hgrn",), regimes=("task/nothing",))


def test_no_training_without_a_backward_pass() -> None:
    assert learned(cases(models=("hgrn",), passes=("forward",))) == []


def test_the_pace_rises_and_falls_to_zero() -> None:
    paces = [pace(update, 100) for update in range(100)]
    assert paces[9] == max(paces) == 1 and paces[0] == pytest.approx(0.1)
    assert paces[9:] == sorted(paces[9:], reverse=True) and paces[-1] < 1e-3
    assert pace(0, 1) == 1


def test_the_most_frequent_answer_ignores_what_is_not_scored() -> None:
    targets = torch.tensor([[3, 3, IGNORED, 1], [IGNORED, IGNORED, IGNORED, 3]])
    task = Task("t", 1, 5, lambda rows, T, seed: Examples(targets, targets, targets))
    assert majority(task, unseen(task, 4, 0)) == 3 / 4


def test_right_answers_are_counted_where_they_are_scored() -> None:
    tokens = torch.tensor([[0, 1], [1, 0], [1, 1]])
    targets = torch.tensor([[0, IGNORED], [0, 0], [1, 1]])

    def network(given: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(given, 2)

    found = right(network, Examples(tokens, targets, targets), rows=2, device="cpu")
    assert found.tolist() == [True, False, True, True, True]


def test_accuracy_by_reach() -> None:
    reaches = torch.tensor([0, 1, 1, 3, 500])
    answers = torch.tensor([True, True, False, True, False])
    assert accuracy_by_reach(answers, reaches) == {"0": 1.0, "1": 0.5, "2-4": 1.0, "20-": 0.0}
