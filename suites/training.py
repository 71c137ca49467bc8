"""A small network around one model, trained on a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf import Shape, registry

from .tasks import IGNORED, Examples, Task

LAYERS = 2
EXPANSION = 2  # hidden width of the channel mixing, as a multiple of the width
TRAIN_ROWS, TEST_ROWS = 2000, 128
TEST_SEED = 1_000_003  # added to the training rows' seed
RATE, BETAS, DECAY, WARM_UP, CLIP = 2.5e-3, (0.9, 0.98), 0.05, 0.1, 1.0
CURVE = 8  # points of a loss curve


class Layer(nn.Module):
    """Residual layer with pre-norm: a model mixes over time, then a small perceptron over channels."""

    def __init__(self, model: str, shape: Shape, backend: str) -> None:
        super().__init__()
        self.mixer = registry.model(model).cls(shape)
        self.backend = backend
        width = self.mixer.width
        self.norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        with torch.no_grad():
            y, _ = self.mixer(torch.zeros(1, shape["T"], width))
        self.out = nn.Linear(y.shape[-1], width)
        hidden = EXPANSION * width
        self.channels = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.mixer(self.norm(x), backend=self.backend)
        x = x + self.out(y)
        x = x + self.channels(self.channel_norm(x))
        return x


class Network(nn.Module):
    """Embedding, layers, norm and head: maps tokens (B, T) to logits (B, T, classes)."""

    def __init__(self, model: str, shape: Shape, backend: str, task: Task) -> None:
        super().__init__()
        layers = [Layer(model, shape, backend) for _ in range(LAYERS)]
        width = layers[0].mixer.width
        self.layers = nn.Sequential(*layers)
        self.embedding = nn.Embedding(task.vocabulary, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.layers(self.embedding(tokens))))
        return logits


@dataclass(frozen=True, slots=True)
class Learned:
    """A trained network, and the mean loss (nats per step) of a few equal parts of the training."""

    network: Network
    losses: tuple[float, ...]


class Diverged(ArithmeticError):
    """The loss is not finite."""


def train(
    model: str, shape: Shape, backend: str, task: Task, *, updates: int, seed: int, device: str
) -> Learned:
    """Train with AdamW, a warm-up and a cosine to zero. On one device, the same seed gives the same network.

    shape: the model's shape, with the batch B and the length T of the training.

    Raises:
        Diverged: the loss is not finite.
    """
    devices = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        network = Network(model, shape, backend, task).to(device)
    examples = task.sample(TRAIN_ROWS, shape["T"], seed)
    tokens, targets = examples.tokens.to(device), examples.targets.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY)
    order = torch.Generator().manual_seed(seed)
    losses = []
    for update in range(updates):
        rows = torch.randint(TRAIN_ROWS, (shape["B"],), generator=order).to(device)
        loss = functional.cross_entropy(
            network(tokens[rows]).flatten(0, 1), targets[rows].flatten(), ignore_index=IGNORED
        )
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise Diverged(f"the loss is {losses[-1]} at update {update} of {updates}")
        for group in optimizer.param_groups:
            group["lr"] = RATE * pace(update, updates)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
    return Learned(network, _curve(losses))


def pace(update: int, updates: int) -> float:
    """Give the fraction of the learning rate: a linear warm-up, then a cosine to zero."""
    warm_up = max(1, round(WARM_UP * updates))
    if update < warm_up:
        return (update + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (update - warm_up) / max(1, updates - warm_up)))


def unseen(task: Task, T: int, seed: int) -> Examples:
    """Draw examples of length T that no training has seen."""
    return task.sample(TEST_ROWS, T, seed + TEST_SEED)


def right(network: Network, examples: Examples, *, rows: int, device: str) -> Tensor:
    """Tell whether each scored step was answered right: (steps,) bool.

    rows: how many rows are computed at a time.
    """
    found = []
    with torch.no_grad():
        for tokens in examples.tokens.split(rows):
            found.append(network(tokens.to(device)).argmax(-1).cpu())
    scored = examples.targets != IGNORED
    return (torch.cat(found) == examples.targets)[scored]


def majority(task: Task, examples: Examples) -> float:
    """Give the accuracy of always answering the most frequent class."""
    scored = examples.targets[examples.targets != IGNORED]
    counts = torch.bincount(scored, minlength=task.classes)
    return float(counts.max()) / len(scored)


def _curve(losses: Sequence[float]) -> tuple[float, ...]:
    """Average the losses over each of a few equal parts."""
    parts = min(CURVE, len(losses))
    ends = [len(losses) * part // parts for part in range(parts + 1)]
    return tuple(math.fsum(losses[start:stop]) / (stop - start) for start, stop in pairwise(ends))
