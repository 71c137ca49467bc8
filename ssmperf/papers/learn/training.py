"""One training of a network: a model's blocks on a task, with one seed and one learning rate."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.engine import registry
from ssmperf.engine.layers.network import Network
from ssmperf.engine.layers.task import Draw, Examples, Task
from ssmperf.papers.learn.data import VALIDATION, Block, TrainingRows, scored, unseen
from ssmperf.papers.learn.update import Updates, logits, make_updates

VALIDATION_ROWS = 64
TOKENS_AT_ONCE = 1 << 17  # in a forward pass without gradients
DECAY, WARM_UP = 0.05, 0.1
ENOUGH = 0.99  # accuracy at which a training ends
CHECKS = 20  # looks at losses and accuracy in a training
SAVE_S = 20.0  # least time between two checkpoints
CURVE = 8  # points of a loss curve
FORMAT = 4  # of a checkpoint


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that determines a training.

    sizes: the model's shape, with the batch B and the length T of the training. layers: number of blocks.
    hidden: width inside the channel mixing; None means the block's own.
    decay: of the weights. warm_up: updates until the full learning rate; None means a tenth of all.
    """

    model: str
    sizes: Mapping[str, int]
    backend: str
    task: str
    rate: float
    seed: int
    updates: int
    device: str
    layers: int = 2
    corpus: str | None = None
    hidden: int | None = None
    decay: float = DECAY
    warm_up: int | None = None

    @property
    def draw(self) -> Draw:
        """The request that its draws have in common."""
        T = self.sizes["T"]
        corpus = None if self.corpus is None else Path(self.corpus)
        return Draw(self.sizes["B"], T, trained=T, seed=self.seed, corpus=corpus)

    @property
    def label(self) -> str:
        """Seed and rate, by which trainings of one model differ."""
        return f"seed {self.seed}, rate {self.rate:g}"

    @property
    def fingerprint(self) -> str:
        """A text that differs if anything about the training does, but for the device's number."""
        fields = {**asdict(self), "sizes": dict(self.sizes), "device": self.device.partition(":")[0]}
        return json.dumps({"format": FORMAT, **fields}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Learned:
    """A trained network.

    every_loss: the mean loss of each update, in nats per target.
    accuracy: on validation rows at the length of the training, at its end.
    train_s: seconds, those before an interruption included.
    without_graph: why a GPU made updates one by one instead of replaying a CUDA graph; empty if it did not.
    """

    job: Job
    network: nn.Module
    every_loss: tuple[float, ...]
    accuracy: float
    train_s: float
    without_graph: str = ""

    @property
    def updates(self) -> int:
        return len(self.every_loss)

    @property
    def ended_early(self) -> bool:
        """Whether it ended because the validation rows were answered right."""
        return self.accuracy >= ENOUGH

    @property
    def losses(self) -> tuple[float, ...]:
        """The mean loss of a few equal parts of the training."""
        return self.curve(CURVE)

    def curve(self, parts: int) -> tuple[float, ...]:
        """Average the loss over each of so many equal parts of the training."""
        parts = min(parts, self.updates)
        ends = [self.updates * part // parts for part in range(parts + 1)]
        return tuple(math.fsum(self.every_loss[low:high]) / (high - low) for low, high in pairwise(ends))


class Diverged(ArithmeticError):
    """The loss is not finite."""


def build(job: Job, task: Task) -> Network:
    """Build the network in its initial state, without dropout: the same one for the same seed and sizes."""
    devices = [torch.device(job.device)] if job.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(job.seed)
        network = Network(
            job.model,
            job.sizes,
            layers=job.layers,
            vocabulary=task.vocabulary,
            classes=task.classes,
            tied=task.tied,
            dropout=task.dropout,
            std=task.std,
            block_options=None if job.hidden is None else {"hidden": job.hidden},
        )
    return network.eval().to(job.device)


def train(
    job: Job, *, checkpoint: Path | None = None, on_step: Callable[[str], None] = lambda text: None
) -> Learned:
    """Train with AdamW, a warm-up and a cosine to zero, until the validation rows are answered right.

    On one device the same job gives the same network, also if it is interrupted and goes on; on a GPU, up to
    kernels that do not repeat their bits. There most updates replay a CUDA graph: see `update.py`.

    checkpoint: file from which to go on, and in which to keep the state of the training, its end included.
    on_step: called at times with a text about the state of the training.

    Raises:
        Diverged: the loss is not finite.
        Unsupported: the backend refuses the operands.
    """
    updates = training(job, checkpoint=checkpoint, on_step=on_step)
    while True:
        try:
            next(updates)
        except StopIteration as end:
            learned: Learned = end.value
            return learned


def training(
    job: Job,
    *,
    checkpoint: Path | None = None,
    on_step: Callable[[str], None] = lambda text: None,
    blocks: dict[int, Block] | None = None,
) -> Generator[None, None, Learned]:
    """Do what `train` does, an update for each step of the generator, so that trainings can take turns.

    blocks: of the training set, which trainings with the same `Job.draw` on a task can share.
    """
    task = registry.task(job.task)
    network = build(job, task)
    updates = make_updates(network, job.backend, job.device, decay=job.decay)
    try:
        state = yield from _until_ended(job, task, network, updates, checkpoint, on_step, blocks)
    finally:
        updates.release()
    return Learned(job, network, tuple(state.losses), state.accuracy, state.train_s, state.without_graph)


def _until_ended(
    job: Job,
    task: Task,
    network: Network,
    updates: Updates,
    checkpoint: Path | None,
    on_step: Callable[[str], None],
    blocks: dict[int, Block] | None,
) -> Generator[None, None, _TrainingState]:
    state = _TrainingState()
    if checkpoint is not None:
        state = _load(checkpoint, job, network, updates)
    if state.diverged:
        raise Diverged(state.diverged)
    rows = TrainingRows(task, job.draw, job.sizes["B"], {} if blocks is None else blocks)
    validation = None if state.ended else unseen(task, _validation(job), VALIDATION)
    began_s, saved_s = time.monotonic() - state.train_s, time.monotonic()
    pending: list[Tensor] = []
    while not state.ended:
        update = state.updates + len(pending)
        rate = job.rate * pace(update, job.updates, job.warm_up)
        pending.append(updates(*rows.rows_of(update), rate))
        yield
        if (update + 1) % max(1, job.updates // CHECKS) and update + 1 < job.updates:
            continue
        losses = torch.stack(pending).tolist()  # waits for the device
        bad = next((place for place, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is not None:
            state.diverged = f"the loss is {losses[bad]} at update {state.updates + bad} of {job.updates}"
        else:
            assert validation is not None
            state.losses += losses
            state.updates += len(losses)
            pending = []
            state.accuracy = float(right(network, validation, job.backend, job.device)[0].float().mean())
        state.ended = bool(state.diverged or state.updates >= job.updates or state.accuracy >= ENOUGH)
        state.train_s = time.monotonic() - began_s
        state.without_graph = updates.without_graph or state.without_graph
        if checkpoint is not None and (state.ended or time.monotonic() - saved_s >= SAVE_S):
            _save(checkpoint, job, state, network, updates)
            saved_s = time.monotonic()
        how = f", without a CUDA graph: {state.without_graph}" if state.without_graph else ""
        on_step(f"update {state.updates} of {job.updates}, accuracy {state.accuracy:.2f}{how}")
        if state.diverged:
            raise Diverged(state.diverged)
    return state


def pace(update: int, updates: int, warm_up: int | None = None) -> float:
    """Give the fraction of the learning rate: a linear warm-up, then a cosine to zero."""
    warm_up = max(1, round(WARM_UP * updates) if warm_up is None else warm_up)
    if update < warm_up:
        return (update + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (update - warm_up) / max(1, updates - warm_up)))


def right(network: nn.Module, examples: Examples, backend: str, device: str) -> tuple[Tensor, float]:
    """Tell whether each scored step is answered right, (steps,) bool, and give the mean loss (nats)."""
    found, losses = [], []
    with torch.no_grad():
        for tokens, targets in pieces(examples):
            places = scored(targets)
            given = logits(network, tokens.to(device), places.to(device), backend)
            wanted = targets.flatten()[places].to(device)
            found.append((given.argmax(-1) == wanted).cpu())
            losses.append(float(functional.cross_entropy(given.float(), wanted, reduction="sum")))
    answers = torch.cat(found)
    return answers, math.fsum(losses) / len(answers)


def pieces(examples: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Split examples by rows, so that no piece has more tokens than a forward pass should have."""
    rows = max(1, TOKENS_AT_ONCE // examples.tokens.shape[1])
    return zip(examples.tokens.split(rows), examples.targets.split(rows), strict=True)


def _validation(job: Job) -> Draw:
    draw = job.draw
    return Draw(VALIDATION_ROWS, draw.T, draw.trained, draw.seed, corpus=draw.corpus)


@dataclass
class _TrainingState:
    """The state of a training beside its parameters and those of its optimiser."""

    updates: int = 0
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    train_s: float = 0.0
    ended: bool = False
    diverged: str = ""
    without_graph: str = ""


def has_ended(path: Path, job: Job) -> bool:
    """Whether a checkpoint is that of the end of a training."""
    if not path.exists():
        return False
    kept = torch.load(path, map_location="cpu", weights_only=True)
    return bool(kept["job"] == job.fingerprint and kept["state"]["ended"])


def _save(path: Path, job: Job, state: _TrainingState, network: nn.Module, updates: Updates) -> None:
    """Write a checkpoint; the file is always a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    parts = {"network": network.state_dict(), "updates": updates.state()}
    torch.save({"job": job.fingerprint, "state": asdict(state), **parts}, temporary)
    temporary.replace(path)


def _load(path: Path, job: Job, network: nn.Module, updates: Updates) -> _TrainingState:
    """Read a checkpoint of this job; a file of another one, or none, means the beginning."""
    if not path.exists():
        return _TrainingState()
    # runs no code of the file; on the CPU, from where each part goes to the device that it needs
    kept = torch.load(path, map_location="cpu", weights_only=True)
    if kept["job"] != job.fingerprint:
        return _TrainingState()
    network.load_state_dict(kept["network"])
    updates.load(kept["updates"])
    return _TrainingState(**kept["state"])
