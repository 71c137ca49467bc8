"""The answer of every timed step to its batch is checked.

Each step starts from the initial parameters and gets a batch that no step had before. One of the first, at a
secret place, gets a batch that all backends of a run share, and is judged in full: log-probabilities and the
gradients of all parameters. The other steps keep the loss and the norm of every gradient, and several of
them, at random, are made again, outside the time: they must give the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .text import Batch, draw
from .trainee import Trainee

AMONG = 5  # timed steps of which one gets the shared batch; a case needs as many
REPEATED = 4  # steps that are made again; all of fewer
MARGIN = 16.0  # units in the last place of the dtype that two equal steps may differ by, where sums have no
LEAST = 1e-3  # fixed order; or this, if it is more
SMALL = 1e-2  # gradients smaller than this share of the largest one's norm are compared with that share of it
SEEDS = 2**62


class StepAnswers:
    """Observes the timed steps of a trainee.

    shared: the batch that is judged in full.
    """

    def __init__(self, trainee: Trainee, shared: Batch) -> None:
        self.trainee, self.shared = trainee, shared
        self.secret = random.SystemRandom()
        self._place = self.secret.randrange(AMONG)
        self._seed: int | None = None
        self._prepared = 0
        self._seeds: list[int | None] = []  # None for the shared batch
        self._found: list[Tensor] = []
        self.kept: tuple[Tensor, list[Tensor | None]] | None = (
            None  # logits and gradients of the shared batch
        )

    def before(self, *, timed: bool) -> None:
        """Write the initial parameters and a fresh batch."""
        seed: int | None = self.secret.randrange(SEEDS)
        if timed:
            seed = None if self._prepared == self._place else seed
            self._prepared += 1
        self._write(seed)

    def after(self, result: Any) -> None:
        """Keep the step's loss and the norms of its gradients; of the shared batch, all that it computed."""
        loss, logits = result
        self._seeds.append(self._seed)
        self._found.append(self._reduced(loss))
        if self._seed is None and self.kept is None:
            gradients = [None if each is None else each.clone() for each in self.trainee.gradients]
            self.kept = logits.clone(), gradients

    @property
    def losses(self) -> list[float]:
        """The losses of the timed steps."""
        return [float(each[0]) for each in self._found]

    def problem(self) -> str | None:
        """Make several steps again; say which one gave something else, or return None."""
        drawn = [place for place, seed in enumerate(self._seeds) if seed is not None]
        eps = torch.finfo(self.trainee.initial[0].dtype).eps
        limit = max(LEAST, MARGIN * eps)
        for place in self.secret.sample(drawn, min(REPEATED, len(drawn))):
            self._write(self._seeds[place])
            loss, _ = self.trainee.step()
            again, timed = self._reduced(loss).tolist(), self._found[place].tolist()
            where = f"timed step {place + 1} of {len(self._seeds)}"
            different = _different(timed, again, limit)
            if different == 0:
                return f"{where} had the loss {timed[0]:.6g}, the same step untimed {again[0]:.6g}"
            if different is not None:
                name = self.trainee.names[different - 1]
                return (
                    f"{where}: the norm of the gradient of {name} was {timed[different]:.6g}, in the same "
                    f"step untimed {again[different]:.6g}"
                )
        return None

    def _write(self, seed: int | None) -> None:
        self._seed = seed
        self.trainee.restore()
        if seed is None:
            self.trainee.batch.copy_(self.shared)
            return
        rows, T = self.shared.tokens.shape
        self.trainee.batch.copy_(draw(rows, T, seed, str(self.shared.tokens.device)))

    def _reduced(self, loss: Tensor) -> Tensor:
        """Join the loss and the norm of every gradient, in float64; 0 where there is no gradient."""
        norms = [
            loss.new_zeros(()) if each is None else torch.linalg.vector_norm(each, dtype=_wide(each))
            for each in self.trainee.gradients
        ]
        return torch.stack([value.double() for value in (loss, *norms)])


def _different(timed: Sequence[float], again: Sequence[float], limit: float) -> int | None:
    """Find the first of two lists' numbers, a loss and norms, that differ; None if all are the same."""
    largest = max((*timed[1:], *again[1:]), default=0.0)
    for place, (one, two) in enumerate(zip(timed, again, strict=True)):
        scale = abs(two) if place == 0 else max(two, SMALL * largest)
        if not (math.isfinite(one) and abs(one - two) <= limit * scale):
            return place
    return None


def _wide(values: Tensor) -> torch.dtype:
    wide = torch.promote_types(values.dtype.to_real() if values.is_complex() else values.dtype, torch.float32)
    return wide.to_complex() if values.is_complex() else wide
