"""Updates one by one are those of a plain loop; captured ones do the same work, or say why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import IGNORED, Draw, Network
from ssmperf.engine.judge.loops.recording import CannotRecord
from ssmperf.papers.learn import data, training
from ssmperf.papers.learn.data import ORDER, TRAINING, TrainingRows, scored, seed_for
from ssmperf.papers.learn.training import build, pace, train
from ssmperf.papers.learn.update import WARM_UPS, GraphUpdates, Updates, Work, room_for
from ssmperf.suitekit import Job, registry

JOB = Job(
    "mingru",
    {"B": 4, "T": 12, "C": 16},
    "sequential",
    "mqar:vocabulary=32:pairs=2",
    rate=5e-3,
    seed=0,
    updates=12,
    device="cpu",
)
MANY = (3, 3, 3, 3, 3, 3, 7, 5, 7, 7, 2, 8, 9, 9, 9, 1)  # scored places of updates: some need more room


class Rerun:
    """Records by keeping the work, which a replay does again in the same memory.

    waits: whether the work shows that it cannot be recorded. fails: whether recording it fails.
    """

    def __init__(self, *, waits: bool = False, fails: bool = False) -> None:
        self.waits, self.fails = waits, fails
        self.done: list[str] = []

    def send(self, parts: Sequence[Tensor], to: Tensor) -> None:
        to.copy_(torch.cat(list(parts)))

    def run(self, work: Work) -> Tensor:
        self.done.append("run")
        return work()

    def check(self, work: Work) -> Tensor:
        self.done.append("check")
        if self.waits:
            raise CannotRecord("it waits")
        return work()

    def record(self, work: Work) -> tuple[Callable[[], None], Tensor]:
        self.done.append("record")
        if self.fails:
            raise CannotRecord("it fails")
        result = torch.zeros(())

        def replay() -> None:
            self.done.append("replay")
            result.copy_(work())

        return replay, result


def network_of(job: Job) -> Network:
    return build(job, registry.task(job.task))


def captured(network: Network, graphs: Rerun) -> GraphUpdates:
    return GraphUpdates(network, JOB.backend, torch.device("cpu"), graphs, decay=JOB.decay)


def inputs(count: int, number: int) -> tuple[Tensor, Tensor]:
    """Draw tokens, and targets of which so many are scored."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(32, (4, 12), generator=generator)
    targets = torch.full((48,), IGNORED)
    targets[torch.randperm(48, generator=generator)[:count]] = 5
    return tokens, targets.view(4, 12)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def plain_rows(rows: TrainingRows, update: int) -> tuple[Tensor, Tensor]:
    """Draw and order a block anew for a single update."""
    turn, within = divmod(update, rows.block_rows // rows.batch)
    seed = seed_for(rows.draw.seed, TRAINING, turn % rows.blocks)
    drawn = rows.task.sample(replace(rows.draw, rows=rows.block_rows, seed=seed))
    generator = torch.Generator().manual_seed(seed_for(rows.draw.seed, ORDER, turn) % 2**63)
    order = torch.randperm(len(drawn.tokens), generator=generator)
    chosen = order[(within * rows.batch + torch.arange(rows.batch)) % len(order)]
    return drawn.tokens[chosen], drawn.targets[chosen]


def test_a_training_on_a_cpu_has_the_bits_of_a_plain_loop() -> None:
    learned, network = train(JOB), network_of(JOB).train()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=JOB.rate, betas=(0.9, 0.98), weight_decay=JOB.decay
    )
    rows = TrainingRows(registry.task(JOB.task), JOB.draw, 4)
    losses = []
    for update in range(JOB.updates):
        tokens, targets = plain_rows(rows, update)
        places = (targets.flatten() != IGNORED).nonzero().flatten()
        network.dropout.number.fill_(update + 1)
        hidden, _ = network.hidden(tokens, backend=JOB.backend)
        loss = functional.cross_entropy(network.head(hidden.flatten(0, 1)[places]), targets.flatten()[places])
        optimizer.param_groups[0]["lr"] = JOB.rate * pace(update, JOB.updates)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert list(learned.every_loss) == losses and same(learned.network, network)
    assert learned.without_graph == ""


@pytest.mark.parametrize("kept", [data.KEPT_BYTES, 2000, 0])
def test_rows_are_those_of_a_block_drawn_anew(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all blocks are kept, some, or none, in any order of the updates."""
    monkeypatch.setattr(data, "KEPT_BYTES", kept)
    monkeypatch.setattr(data, "BLOCK_ROWS", 8)
    task = replace(registry.task("mqar:vocabulary=32:pairs=2"), rows=40)
    rows = TrainingRows(task, Draw(4, 12, trained=12, seed=3), 4)
    for update in (*range(24), 3, 100, 0):
        for one, other in zip(rows.rows_of(update), plain_rows(rows, update), strict=True):
            assert torch.equal(one, other) and one.dtype == other.dtype


def test_large_numbers_keep_their_bits() -> None:
    wide = torch.tensor([[40_000, -1]])
    assert torch.equal(data.narrowed(wide), wide)
    assert data.narrowed(torch.tensor([[-100, 32_767]])).dtype == torch.int16


def test_places_that_do_not_count_change_neither_loss_nor_gradients() -> None:
    tokens, targets = inputs(5, 0)
    places = scored(targets)
    updates = Updates(network_of(JOB), JOB.backend, decay=0.0)
    found = []
    for padding in (0, 20):
        padded = torch.cat([places, torch.arange(padding)])
        wanted = torch.cat([targets.flatten()[places], torch.full((padding,), IGNORED)])
        loss = updates._gradients(tokens, padded, wanted)
        found.append([loss, *(p.grad for p in updates.parameters if p.grad is not None)])
    assert len(found[0]) > 5
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_room_grows_by_a_quarter_at_least_and_never_shrinks() -> None:
    assert room_for(100, 0, 1000) == 100 and room_for(50, 100, 1000) == 100
    assert room_for(101, 100, 1000) == 126 and room_for(990, 100, 1000) == 1000


def test_replayed_updates_are_those_made_one_by_one() -> None:
    """Three are made one by one, the next is captured; one that needs more room begins with one by one."""
    graphs = Rerun()
    one = Updates(network_of(JOB), JOB.backend, decay=JOB.decay)
    other = captured(network_of(JOB), graphs)
    for number, count in enumerate(MANY):
        losses = [each(*inputs(count, number), 1e-3 * number) for each in (one, other)]
        torch.testing.assert_close(*losses)
    for a, b in zip(one.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert other.room == 11 and other.without_graph == ""
    begin = ["check", "record", "replay"]
    with_3 = [*["run"] * WARM_UPS, *begin, *["replay"] * 2]
    with_8 = ["run", *begin, *["replay"] * 4]
    with_11 = ["run", *begin, *["replay"] * 2]
    assert graphs.done == with_3 + with_8 + with_11


@pytest.mark.slow(but=("fails",))
@pytest.mark.parametrize("trouble", ["waits", "fails"])
def test_a_failed_capture_changes_nothing_and_is_named(trouble: str) -> None:
    graphs = Rerun(waits=trouble == "waits", fails=trouble == "fails")
    sound, failing = (captured(network_of(JOB), each) for each in (Rerun(), graphs))
    for number, count in enumerate(MANY):
        assert torch.equal(*(each(*inputs(count, number), 1e-3) for each in (sound, failing)))
    assert same(sound.network, failing.network)
    assert failing.without_graph == f"it {trouble}" and sound.without_graph == ""
    assert graphs.done.count("run") == len(MANY) and graphs.done.count("check") == 1


def test_an_interrupted_training_goes_on_with_its_room_and_rate() -> None:
    whole, first = (captured(network_of(JOB), Rerun()) for _ in range(2))
    for number, count in enumerate(MANY[:8]):
        for each in (whole, first):
            each(*inputs(count, number), 1e-3)
    network = network_of(JOB)
    network.load_state_dict(first.network.state_dict())
    second = captured(network, Rerun())
    second.load(first.state())
    for number, count in enumerate(MANY[8:], start=8):
        assert torch.equal(*(each(*inputs(count, number), 1e-2) for each in (whole, second)))
    assert same(whole.network, second.network) and whole.room == second.room


def test_a_training_without_a_graph_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when its result is read from the checkpoint."""
    monkeypatch.setattr(
        training, "make_updates", lambda network, *given, **options: captured(network, Rerun(waits=True))
    )
    told = list[str]()
    job, file = replace(JOB, updates=5), tmp_path / "one.pt"
    assert train(job, checkpoint=file, on_step=told.append).without_graph == "it waits"
    assert told[0].endswith("0.00") or "graph" not in told[0]
    assert told[-1].endswith(", without a CUDA graph: it waits")
    assert train(job, checkpoint=file).without_graph == "it waits"
