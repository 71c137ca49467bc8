"""On a GPU: trainings that replay a graph learn what those without one do, or say why there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from ssmperf.authoring import IGNORED, Network
from ssmperf.papers.learn import update
from ssmperf.papers.learn.together import train_together
from ssmperf.papers.learn.training import build, train
from ssmperf.papers.learn.update import CudaGraphs, GraphUpdates, Work, make_updates
from ssmperf.suitekit import Diverged, Job, Learned, registry, sized

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
UPDATES = 30
LEARNERS = (
    ("gla", "triton"),
    ("hgrn2", "triton"),
    ("hgrn", "triton"),
    ("hgrn", "cuda"),
    ("gateloop", "triton"),
    ("longhorn", "triton"),
    ("mamba", "triton"),
    ("attention", "torch_sdpa"),
    ("gla", "chunkwise"),
    ("deltanet", "chunkwise"),
)


def job_of(model: str, backend: str, updates: int = UPDATES) -> Job:
    """Make a training of the right width; skip the test where the backend is missing."""
    try:
        missing = registry.backend(registry.recurrence_of(model), backend).missing("cuda")
    except Exception as error:  # whatever keeps a backend from being loaded is the reason
        missing = str(error)
    if missing:
        pytest.skip(missing)
    sizes = {**sized(model, 64), "B": 16, "T": 64}
    task = "mqar:vocabulary=32"
    return Job(model, sizes, backend, task, rate=1e-3, seed=0, updates=updates, device="cuda")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the captures that succeed, and the replays of each."""
    found: list[int] = []
    plain = CudaGraphs.record

    def record(self: CudaGraphs, work: Work) -> tuple[Callable[[], None], Tensor]:
        replay, result = plain(self, work)
        found.append(0)

        def once() -> None:
            found[-1] += 1
            replay()

        return once, result

    with mock.patch.object(CudaGraphs, "record", record):
        yield found


def train_one_by_one(job: Job) -> Learned:
    with mock.patch.object(update, "WARM_UPS", 10**9):
        return train(job)


def assert_alike(one: Learned, other: Learned) -> None:
    assert one.updates == other.updates
    assert one.every_loss == pytest.approx(other.every_loss, rel=1e-3)


@pytest.mark.parametrize(("model", "backend"), LEARNERS)
def test_replayed_updates_learn_what_those_one_by_one_do(
    model: str, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_of(model, backend)
    plain = train_one_by_one(job)
    told = list[str]()
    with counted() as captures:
        graphed = train(job, on_step=told.append)
    assert graphed.without_graph == "" and plain.without_graph == ""
    assert captures == [UPDATES - update.WARM_UPS]
    assert_alike(graphed, plain)
    assert len(set(graphed.every_loss)) > UPDATES // 2  # each loss is that of its own update
    assert not any("graph" in text for text in told)
    assert capsys.readouterr() == ("", "")
    assert all(parameter.grad is None for parameter in graphed.network.parameters())


def test_an_interrupted_training_goes_on_with_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssmperf.papers.learn.training.SAVE_S", 0.0)
    job, file = job_of("gla", "chunkwise", updates=40), tmp_path / "one.pt"
    steps = list[str]()

    def interrupt(text: str) -> None:
        steps.append(text)
        if len(steps) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job, checkpoint=file, on_step=interrupt)
    again = list[str]()
    with counted() as captures:
        resumed = train(job, checkpoint=file, on_step=again.append)
    assert captures == [40 - 10 - update.WARM_UPS] and len(again) == 15
    whole = train(job)
    assert_alike(resumed, whole)
    for one, other in zip(resumed.network.parameters(), whole.network.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)
    done = list[str]()
    assert train(job, checkpoint=file, on_step=done.append).every_loss == resumed.every_loss and not done


def planted(monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Tensor], object]) -> None:
    """Have every network do something to its hidden states, for nothing."""
    plain = Network.hidden

    def hidden(self: Network, *given: Any, **options: Any) -> Any:
        found, after = plain(self, *given, **options)
        trouble(found)
        return found, after

    monkeypatch.setattr(Network, "hidden", hidden)


def test_a_network_that_waits_is_updated_one_by_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("gla", "chunkwise")
    plain = train_one_by_one(job)
    planted(monkeypatch, lambda hidden: hidden.detach().sum().item())
    told = list[str]()
    with counted() as captures:
        waiting = train(job, on_step=told.append)
    assert captures == [] and "synchroniz" in waiting.without_graph
    assert told[-1].endswith(f", without a CUDA graph: {waiting.without_graph}")
    assert_alike(waiting, plain)


def test_an_error_under_capture_changes_nothing_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next training of the process is captured."""
    job = job_of("gla", "chunkwise")
    plain = train_one_by_one(job)

    def refuse(hidden: Tensor) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("planted")

    with monkeypatch.context() as patch:
        planted(patch, refuse)
        refused = train(job)
    assert refused.without_graph == "ValueError: planted"
    assert_alike(refused, plain)
    with counted() as captures:
        assert_alike(train(job), plain)
    assert captures == [UPDATES - update.WARM_UPS]


def test_a_capture_that_the_driver_ends_leaves_a_usable_process() -> None:
    """In a process of its own. The second training does not try again, if torch noticed."""
    job_of("gla", "chunkwise")
    script = Path(__file__).parents[2] / "support" / "processes" / "unrecordable.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tried"] in (1, 2) and found["memory"] == 0.0 and all(found["reasons"])
    assert found["losses"][0] == pytest.approx(found["losses"][1], rel=1e-3)
    assert all(loss == loss for losses in found["losses"] for loss in losses)


def test_an_update_that_needs_more_room_is_captured_again() -> None:
    job = job_of("gla", "chunkwise")
    numbers = (5, 5, 5, 5, 5, 9, 9, 6, 11, 11, 11, 14, 14, 14, 3)
    losses: list[list[float]] = []
    for warm_ups in (10**9, update.WARM_UPS):
        network = build(job, registry.task(job.task))
        updates = make_updates(network, job.backend, job.device, decay=job.decay)
        assert isinstance(updates, GraphUpdates)
        with counted() as captures, mock.patch.object(update, "WARM_UPS", warm_ups):
            found = [updates(*scored_inputs(count, at), 1e-3) for at, count in enumerate(numbers)]
            losses.append(torch.stack(found).tolist())
        assert captures == ([] if warm_ups > 3 else [2, 5, 3]) and updates.without_graph == ""
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def scored_inputs(count: int, number: int) -> tuple[Tensor, Tensor]:
    """Draw tokens (16, 64), and targets of which so many are scored."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(32, (16, 64), generator=generator)
    targets = torch.full((16 * 64,), IGNORED)
    targets[torch.randperm(16 * 64, generator=generator)[:count]] = 5
    return tokens, targets.view(16, 64)


def test_another_rate_changes_a_replayed_update() -> None:
    """The rate is read from the device: with one of 0 parameters stay what they were."""
    job = replace(job_of("gla", "chunkwise"), decay=0.0)
    network = build(job, registry.task(job.task))
    updates = make_updates(network, job.backend, job.device, decay=job.decay)
    with counted() as captures:
        for number in range(6):
            updates(*scored_inputs(9, number), 1e-3)
        before = [parameter.detach().clone() for parameter in network.parameters()]
        updates(*scored_inputs(9, 6), 0.0)
        for one, other in zip(before, network.parameters(), strict=True):
            assert torch.equal(one, other)
        updates(*scored_inputs(9, 7), 1e-3)
    assert captures == [5]
    assert any(not torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_trainings_that_take_turns_learn_what_each_learns_alone() -> None:
    """Six on four streams: each replays a graph of its own, but for one that diverges before its capture."""
    jobs = [replace(job_of(model, "triton"), seed=seed) for model in ("hgrn2", "mamba") for seed in (0, 1)]
    jobs += [replace(jobs[0], rate=1e30), replace(jobs[0], rate=3e-3)]
    alone = [train(job) for job in jobs if job.rate < 1]
    with counted() as replays:
        together = train_together(jobs, [None] * len(jobs), 4, lambda text: None)
    assert len(replays) == len(jobs) - 1
    assert isinstance(together.pop(4), Diverged)
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, Learned) and not one.without_graph
        assert one.every_loss == pytest.approx(other.every_loss, rel=1e-3)
