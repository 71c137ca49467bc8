"""Trainings follow their seed, survive a kill, run side by side, and are searched over rates and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.processes.quick_processes import forked_by

from ssmperf import Shape, UnknownName, Unsupported, WorkerFailed
from ssmperf.authoring import IGNORED, Draw, Examples, Network, Task
from ssmperf.engine.machine.devices import ASSUMED
from ssmperf.engine.plan.refusal import SECONDS_PER_LAUNCH
from ssmperf.engine.registry.presets import PRESETS
from ssmperf.papers.learn import trials
from ssmperf.papers.learn.data import TrainingRows, majority
from ssmperf.papers.learn.testing import accuracy_by_reach
from ssmperf.papers.learn.together import train_together
from ssmperf.papers.learn.training import build, pace, train
from ssmperf.papers.learn.trials import checkpoint_of, run_jobs
from ssmperf.papers.learn.update import Updates
from ssmperf.suitekit import (
    Diverged,
    Job,
    Learned,
    Trials,
    choose_backend,
    registry,
    search,
    search_all,
    sized,
)

SIZES = {"B": 8, "T": 16, "C": 16}
UPDATES = 20
JOB = Job("mingru", SIZES, "sequential", "memory_horizon", rate=5e-3, seed=0, updates=UPDATES, device="cpu")
TRAINING = replace(PRESETS["smoke"].training, updates=UPDATES, seeds=2, rates=(5e-3,))


@pytest.fixture(scope="module", autouse=True)
def forked_trainings() -> Iterator[None]:
    """Fork the process of a training instead of letting it import torch."""
    with forked_by("ssmperf.papers.learn.trials"):
        yield


@pytest.mark.slow
def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssmperf.papers.learn.training.SAVE_S", 0.0)
    file, steps = tmp_path / "kept" / "one.pt", list[str]()

    def interrupt(text: str) -> None:
        steps.append(text)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(JOB, checkpoint=file, on_step=interrupt)
    again = list[str]()
    resumed = train(JOB, checkpoint=file, on_step=again.append)
    whole = train(JOB)
    assert resumed.losses == whole.losses and len(again) == 20 - 3
    for one, other in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(one, other)
    done = list[str]()
    assert train(JOB, checkpoint=file, on_step=done.append).losses == whole.losses and not done
    train(replace(JOB, rate=1e-3), checkpoint=file, on_step=done.append)
    assert len(done) == 20  # a checkpoint of another training says nothing


@pytest.mark.slow
def test_trainings_side_by_side_are_those_one_after_another(tmp_path: Path) -> None:
    """The first one has ended before: only the other one gets a process."""
    jobs = [replace(JOB, seed=seed, updates=4) for seed in (0, 1)]
    run_jobs(jobs[:1], tmp_path, 1, lambda text: None)
    told = list[str]()
    beside = run_jobs(jobs, tmp_path, 2, told.append)
    assert told[-1] == "0 of 1 trainings are not done"
    after = run_jobs(jobs, None, 1, lambda text: None)
    for one, other in zip(beside, after, strict=True):
        assert isinstance(one, Learned) and isinstance(other, Learned)
        assert one.losses == pytest.approx(other.losses, rel=1e-6)


def test_a_process_says_why_it_has_no_result(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for code, said, error in (
        (3, "planted: nothing above 32 steps", Unsupported),
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory", MemoryError),
        (1, "ValueError: planted", WorkerFailed),
    ):
        log.write_text(f"update 1 of 4\n{said}\n")
        with pytest.raises(error, match=said.partition(":")[2].strip()):
            trials._check(code, JOB, log)
    with pytest.raises(WorkerFailed, match="killed by signal 9"):
        trials._check(-9, JOB, log)
    trials._check(0, JOB, log)


@pytest.mark.slow
def test_the_best_learning_rate_is_taken_for_all_seeds() -> None:
    """With a rate of 10⁻⁹ nothing is learned, and with 10³⁰ the loss is not finite."""
    training = replace(TRAINING, rates=(1e-9, 1e-2, 1e30), seeds=2)
    found = search(JOB, training, None, lambda text: None)
    assert found.rate == 1e-2 and found.rates[1e30] is None
    assert found.rates[1e-2] > found.rates[1e-9]
    assert [(each.job.seed, each.job.rate) for each in found.learned] == [(0, 1e-2), (1, 1e-2)]
    with pytest.raises(Diverged, match=r"is not|is nan|is inf"):
        search(JOB, replace(training, rates=(1e30,)), None, lambda text: None)


def test_logits_of_some_steps_are_those_of_all() -> None:
    network = Network("mingru", Shape(B=1, T=1, C=8), layers=2, vocabulary=5)
    tokens = torch.arange(12).reshape(2, 6) % 5
    hidden, _ = network.hidden(tokens)
    torch.testing.assert_close(network.head(hidden), network(tokens)[0])


def test_every_row_comes_once_per_turn_through_a_block() -> None:
    def numbered(draw: Draw) -> Examples:
        tokens = torch.arange(draw.rows)[:, None] + 1000 * (draw.seed % 97)
        return Examples(tokens, tokens, tokens)

    rows = TrainingRows(Task(1, 1, numbered, rows=12), Draw(4, 1, trained=1, seed=5), 4)
    turns = [[row for update in range(3 * turn, 3 * turn + 3) for row in rows.rows_of(update)[0].flatten()]
             for turn in range(2)]  # fmt: skip
    assert sorted(turns[0]) == sorted(turns[1]) and len({int(row) for row in turns[0]}) == 12
    assert turns[0] != turns[1]


def test_a_model_gets_the_width_that_is_asked_for() -> None:
    for model, sizes in (
        ("hgrn", {"C": 48}),
        ("mamba", {"D": 96, "N": 8}),
        ("gla", {"H": 3, "K": 16, "V": 16}),
    ):
        assert {letter: size for letter, size in sized(model, 48).items() if letter not in "BT"} == sizes


def test_the_pace_rises_and_falls_to_zero() -> None:
    paces = [pace(update, 100) for update in range(100)]
    assert paces[9] == max(paces) == 1 and paces[0] == pytest.approx(0.1)
    assert paces[9:] == sorted(paces[9:], reverse=True) and paces[-1] < 1e-3
    assert pace(0, 1) == 1


def test_the_most_frequent_answer_ignores_what_is_not_scored() -> None:
    targets = torch.tensor([[3, 3, IGNORED, 1], [IGNORED, IGNORED, IGNORED, 3]])
    task = Task(1, 5, lambda draw: Examples(targets, targets, targets))
    assert majority(task, task.sample(Draw(2, 4, 4, 0))) == 3 / 4


def test_accuracy_by_reach() -> None:
    reaches = torch.tensor([0, 1, 1, 3, 500])
    answers = torch.tensor([True, True, False, True, False])
    assert accuracy_by_reach(answers, reaches) == {"0": 1.0, "1": 0.5, "2-4": 1.0, "320-1279": 0.0}


@pytest.mark.slow
def test_several_jobs_are_searched_as_each_alone() -> None:
    """With the second learning rate every loss but the first is not finite."""
    small = replace(JOB, sizes={"B": 2, "T": 4, "C": 4}, updates=2)
    jobs = [small, replace(small, model="hgrn")]
    alone = {(job.model, seed): train(replace(job, seed=seed)) for job in jobs for seed in (0, 1)}
    for rates in ((JOB.rate, 1e30), (JOB.rate,)):
        together = search_all(jobs, replace(TRAINING, rates=rates), None, lambda text: None)
        for job, found in zip(jobs, together, strict=True):
            assert isinstance(found, Trials) and found.rate == JOB.rate
            assert list(found.rates) == list(rates) and found.rates.get(1e30) is None
            assert [each.job.seed for each in found.learned] == [0, 1]
            for each in found.learned:
                assert each.every_loss == alone[job.model, each.job.seed].every_loss
    lost = search_all(jobs, replace(TRAINING, rates=(1e30,)), None, lambda text: None)
    assert all(isinstance(each, Diverged) for each in lost)


@pytest.mark.slow
def test_a_job_says_all_that_a_training_depends_on(tmp_path: Path) -> None:
    """Its decay, warm-up and channel mixing change the result and the name of its checkpoint."""
    job = replace(JOB, model="gateloop", updates=3)
    others = [replace(job, **change) for change in ({"decay": 5.0}, {"warm_up": 3}, {"hidden": 8})]
    assert len({checkpoint_of(each, tmp_path) for each in (job, *others)}) == 4
    plain = train(job)
    assert all(train(other).every_loss != plain.every_loss for other in others)
    assert build(others[2], registry.task(job.task)).blocks[0].channels is not None
    assert plain.curve(2) == pytest.approx((plain.every_loss[0], sum(plain.every_loss[1:]) / 2))


def test_a_backend_is_chosen_among_those_named() -> None:
    assert choose_backend("mingru", SIZES, "cpu", updates=1, among=("logspace", "blelloch")) == "blelloch"
    assert choose_backend("mingru", SIZES, "cpu", updates=1) == "sequential"
    with pytest.raises(Unsupported, match="mingru"):
        choose_backend("mingru", SIZES, "cpu", updates=1, among=("logspace",))


def test_launches_of_a_replayed_update_cost_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over a few steps reads its state once per step, where a scan reads all of them several times."""
    monkeypatch.setattr("ssmperf.engine.machine.devices.resolve", lambda device: ("cuda", ["cuda:0"]))
    monkeypatch.setattr("ssmperf.engine.machine.devices.describe", lambda kind, found: ASSUMED)
    sizes = {"B": 128, "T": 64, "N": 32, "D": 64}

    def chosen() -> str:
        both = ("hillis_steele", "sequential")
        return choose_backend("lcsm:1-6-1-0", sizes, "cuda", updates=1000, growth=1, among=both)

    assert chosen() == "sequential"
    monkeypatch.setattr("ssmperf.papers.learn.choice.SECONDS_PER_REPLAYED_LAUNCH", SECONDS_PER_LAUNCH)
    assert chosen() == "hillis_steele"


@pytest.mark.slow
def test_trainings_that_take_turns_are_those_one_after_another(tmp_path: Path) -> None:
    """On a GPU they are in one process. The first has ended before; one diverges; two share their rows."""
    jobs = [replace(JOB, seed=seed, updates=4) for seed in (0, 1)]
    jobs += [replace(jobs[1], rate=1e30), replace(jobs[1], rate=1e-3)]
    files = [checkpoint_of(job, tmp_path) for job in jobs]
    train(jobs[0], checkpoint=files[0])
    threads, told = torch.get_num_threads(), list[str]()
    found = train_together(jobs, files, 2, told.append)
    assert torch.get_num_threads() == threads
    assert isinstance(found[2], Diverged) and "rate 1e+30" in str(found[2])
    for job, each in zip(jobs, found, strict=True):
        if isinstance(each, Learned):
            assert each.job == job and each.every_loss == pytest.approx(train(job).every_loss, rel=1e-6)
    assert sum(isinstance(each, Learned) for each in found) == 3
    assert told and all("seed 1" in text for text in told) and told[-1].startswith("1 of 4")


def test_a_training_that_fails_ends_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    released = list[Updates]()
    monkeypatch.setattr(Updates, "release", lambda self: released.append(self))
    with pytest.raises(UnknownName, match="no_such"):
        train_together([JOB, replace(JOB, backend="no_such")], [None, None], 2, lambda text: None)
    assert len(released) == 2
