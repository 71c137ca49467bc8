"""What the extrapolation suite trains: trainings follow their seed, survive a kill, and end in a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ssmperf.suites.learning.cases import MODELS
from ssmperf.suites.learning.learn import numbers
from ssmperf.suites.learning.verdict import Level, SeedSpread, judge, spread
from support.processes.in_process import records_of

import ssmperf
from ssmperf import Case, Record, Status, UnknownName
from ssmperf.engine.execute.lane import Events
from ssmperf.engine.plan.estimate import expected_s
from ssmperf.engine.plan.parts.household import household
from ssmperf.engine.plan.selection import Device, Selection
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.papers.learn.training import train
from ssmperf.suitekit import Job, quickest, registry, run_tests

PLUGINS = Path(__file__).parents[1] / "support" / "plugins"
SIZES = {"B": 8, "T": 16, "C": 16}
UPDATES = 20
JOB = Job("mingru", SIZES, "sequential", "memory_horizon", rate=5e-3, seed=0, updates=UPDATES, device="cpu")
TRAINING = replace(PRESETS["smoke"].training, updates=UPDATES, seeds=2, rates=(5e-3,))


def cases(**choices: object) -> list[Case]:
    selection = Selection.of(Device("cpu"), **choices)
    return list(registry.suite("extrapolation").cases(selection))


def learned(found: list[Case]) -> list[Case]:
    return [case for case in found if case.operand_source.startswith("task/")]


def asked(path: Path, **more: object) -> ssmperf.Run:
    return ssmperf.run(
        "extrapolation",
        models="mingru",
        backends="sequential",
        regime="task/memory_horizon",
        axis=["T=16", "C=16", "B=8"],
        device="cpu",
        out=path,
        updates=UPDATES,
        seeds=2,
        rates=5e-3,
        **more,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ssmperf.Run:
    """A run whose case ran out of time but had kept something, and which was then resumed."""
    path = tmp_path_factory.mktemp("runs") / "run"

    def run_out(session: object, cases: list[Case], events: Events, shuffle: object) -> None:
        for case in cases:
            (path / "unfinished" / case.id).mkdir(parents=True)
            events.on_record(Record(case, Status.TIMEOUT, "no answer", None))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssmperf.engine.execute.executor.Session.run", run_out)
        assert [record.status for record in asked(path).records] == [Status.TIMEOUT]
    return asked(path, resume=True)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """One case on a backend that refuses 64 steps, one on a backend that gives NaN from 40 steps on."""
    wanted = {("faulty_refuses_long", 16), ("faulty_nan_at_40", 64)}
    return records_of(
        "extrapolation",
        PLUGINS / "faulty.py",
        models="mingru",
        backends=["faulty_refuses_long", "faulty_nan_at_40"],
        regime="task/memory_horizon",
        axis=["T=16,64", "C=16", "B=8"],
        training=replace(TRAINING, seeds=1, updates=4),
        wanted=lambda case: (case.backend, case.shape["T"]) in wanted,
    )


@pytest.mark.slow
def test_a_case_that_ran_out_of_time_goes_on_when_it_has_kept_something(run: ssmperf.Run) -> None:
    (record,) = run.records
    assert record.status is Status.OK
    assert not (run.path / "unfinished").exists()


@pytest.mark.slow
def test_a_record_says_how_it_was_learned(run: ssmperf.Run) -> None:
    found = run.records[0].numbers
    assert found["test_lengths"] == [16, 32, 64, 128, 256]
    assert found["updates"] == UPDATES and found["updates_needed"] == [UPDATES, UPDATES]
    assert all(len(each) == 2 for each in found["accuracies_by_seed"])
    for mean, low, high, by_seed in zip(*(found[name] for name in (
        "accuracies", "accuracies_low", "accuracies_high", "accuracies_by_seed")), strict=True):  # fmt: skip
        assert 0 <= low <= mean <= high <= 1 and mean == pytest.approx(sum(by_seed) / 2)
    assert found["accuracies"][0] == found["accuracy"]
    assert found["chances"] == [0.02] * 5 and all(0 < each < 0.5 for each in found["majority_accuracies"])
    assert found["losses"][-1] < found["losses"][0] and found["updates_done"][-1] == UPDATES
    assert found["verdict"].startswith(f"{found['learned']}")


@pytest.mark.slow
def test_the_command_repeats_the_training(run: ssmperf.Run) -> None:
    command = run.records[0].numbers["command"]
    for words in ("--regime task/memory_horizon", f"--updates {UPDATES}", "--seeds 2", "--rates 0.005"):
        assert words in command


@pytest.mark.slow
def test_the_same_seed_learns_the_same_in_another_process(run: ssmperf.Run) -> None:
    found = run.records[0].numbers
    assert list(train(JOB).losses) == pytest.approx(found["losses"], rel=1e-6)
    other = train(replace(JOB, seed=1, updates=2)).losses
    assert other != train(replace(JOB, updates=2)).losses


def test_a_model_that_forgets_what_is_older_than_its_training_is_found() -> None:
    """Planted: a backend with a window as long as the training; the task asks for the first token of a row.

    The same network holds beyond its length with a backend that forgets nothing.
    """
    registry.load_plugin(PLUGINS / "forgetful.py")
    job = replace(JOB, sizes={**SIZES, "B": 16}, task="first_token", rate=1e-2, updates=100)
    network = train(job)
    assert network.updates < 100  # it ends when it knows
    task = registry.task("first_token")
    sound, forgets = (
        numbers(run_tests(task, [network], backend, "cpu")) for backend in ("sequential", "forgets")
    )
    assert sound["holds_to"] >= 2 and sound["accuracy_2T"] > 0.98
    assert forgets["accuracy"] > 0.98 and forgets["holds_to"] == 1 and forgets["accuracy_2T"] < 0.7
    assert "learned (1.00); lost at 2T (" in forgets["verdict"]


def test_a_length_that_the_backend_refuses_has_no_accuracy(records: list[Record]) -> None:
    (found,) = [record.numbers for record in records if record.case.backend == "faulty_refuses_long"]
    assert found["test_lengths"] == [16, 32, 64, 128, 256]
    assert None not in found["accuracies"][:2] and found["accuracies"][2:] == [None] * 3
    assert found["accuracy_4T"] is None and "nothing above 32 steps" in found["accuracies_reason"]


def test_training_on_nan_ends_as_nan(records: list[Record]) -> None:
    """At T = 64 step 40 is there."""
    (record,) = [record for record in records if record.case.backend == "faulty_nan_at_40"]
    assert record.status is Status.NAN
    assert "the loss is nan at update 0 of 4 (seed 0, rate 0.005)" in str(record.reason)


def level(factor: int, mean: float, low: float | None = None, base: float = 0.2) -> Level:
    return Level(factor, SeedSpread(mean, mean if low is None else low, 1.0), base, 0.1)


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ([level(1, 0.33, 0.3, 0.21)], "not learned: 0.33 against 0.21 by chance; nothing to extrapolate"),
        ([level(1, 0.99), level(2, 0.98), level(4, 0.97), level(8, 0.41)],
         "learned (0.99); holds to 4T (0.97), lost at 8T (0.41)"),
        ([level(1, 1.0), level(2, 0.8), level(4, 0.3)],
         "learned (1.00); fades at 2T (0.80), lost at 4T (0.30)"),
        ([level(1, 0.6), level(2, 0.6)], "partly learned (0.60 against 0.20 without); holds to 2T (0.60)"),
        ([level(1, 0.7, 0.1)], "not learned: 0.70 against 0.20 by chance (the interval over seeds does not "
         "exclude it); nothing to extrapolate"),
    ],
)  # fmt: skip
def test_the_verdict_is_a_plain_sentence(levels: Sequence[Level], text: str) -> None:
    assert judge(levels).text == text


def test_the_interval_is_students() -> None:
    """For 0.5, 0.6, 0.7: 0.6 ± 4.303 · 0.1 / √3."""
    found = spread([0.5, 0.6, 0.7])
    assert found.low == pytest.approx(0.6 - 4.30265 * 0.1 / math.sqrt(3), abs=1e-5)
    assert found.high == pytest.approx(0.6 + 4.30265 * 0.1 / math.sqrt(3), abs=1e-5)
    assert spread([0.9]) == SeedSpread(0.9, None, None) and spread([1.0, 0.9]).high == 1.0


def test_smoke_trains_few_models_on_few_tasks_unless_they_are_named() -> None:
    found, training = learned(cases()), PRESETS["smoke"].training
    assert len({case.model for case in found}) == training.models
    assert len({case.operand_source for case in found}) == training.tasks
    assert {case.shape["T"] for case in found} == {training.length}
    named = learned(cases(models=("hgrn", "retnet", "scan"), regimes=("task/needle",)))
    assert [case.model for case in named] == ["hgrn", "retnet"]
    assert set(MODELS) <= set(registry.models())


def test_backends_that_are_named_are_all_trained() -> None:
    found = learned(cases(models=("hgrn",), backends=("sequential", "logspace"), regimes=("task/mqar",)))
    assert sorted(case.backend for case in found) == ["logspace", "sequential"]


def test_a_task_of_a_plugin_is_planned_and_its_worker_loads_the_plugin() -> None:
    plugin = PLUGINS / "forgetful.py"
    registry.load_plugin(plugin)
    found = learned(cases(models=("mingru",), regimes=("task/first_token:words=3", "task/mqar")))
    loaded = {case.operand_source: household(case).plugins for case in found}
    assert loaded == {"task/first_token:words=3": (str(plugin),), "task/mqar": ()}


def test_a_task_that_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownName, match="memory_horizon"):
        cases(models=("hgrn",), regimes=("task/nothing",))
    assert learned(cases(models=("hgrn",), passes=("forward",))) == []


def test_a_forecast_grows_with_the_updates_and_shrinks_side_by_side() -> None:
    case, *_ = learned(cases(models=("mingru",), regimes=("task/mqar",)))
    training = replace(TRAINING, updates=100, seeds=5)
    one = expected_s([case], training=training)
    assert expected_s([case], training=replace(training, updates=1000)) > 5 * one
    many = replace(training, updates=10**5)
    assert expected_s([case], training=replace(many, side_by_side=4)) < expected_s([case], training=many) / 2


def test_trainings_side_by_side_take_turns_on_a_gpu_in_a_forecast() -> None:
    """Four together take more time than one alone, and less than four one after another."""
    (case, *_) = learned(cases(models=("mingru",), regimes=("task/mqar",)))
    on_gpu, training = replace(case, device="cuda"), replace(TRAINING, updates=10**5)
    alone, four, beside = (
        expected_s([on_gpu], training=replace(training, seeds=seeds, side_by_side=at_once))
        for seeds, at_once in ((1, 1), (4, 1), (4, 4))
    )
    assert alone < beside < four


def test_the_quickest_is_exact_and_not_refused() -> None:
    selection = Selection.of(Device("cpu"))
    several = learned(cases(models=("hgrn",), backends=("logspace", "triton", "sequential")))
    assert {case.backend for case in quickest(several, selection)} == {"sequential"}
    hopeless = [replace(case, backend="triton") for case in several]
    assert list(quickest(hopeless, selection)) == []
