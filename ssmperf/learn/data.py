"""The examples of a training, block by block, and those of validation and tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ssmperf.layers.task import IGNORED, Draw, Examples, Task

BLOCK_ROWS = 4096  # of a training set that are drawn and kept at a time
TRAINING, ORDER, VALIDATION, TEST = range(4)  # what a seed is for


def seed_for(seed: int, *purpose: int) -> int:
    """Derive a seed for one purpose; different purposes give independent values."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0])


@dataclass
class TrainingRows:
    """A training set of `task.rows` rows, drawn in blocks, each of which is run through in random order.

    The rows of an update follow from its number alone, so a training can start anywhere.

    draw: T, trained, seed and corpus of the draws. batch: rows per update.
    """

    task: Task
    draw: Draw
    batch: int

    def __post_init__(self) -> None:
        block_rows = max(self.batch, min(self.task.rows, BLOCK_ROWS))
        self.blocks = max(1, self.task.rows // block_rows)
        self.block_rows = block_rows
        self._number: int | None = None

    def rows_of(self, update: int) -> tuple[Tensor, Tensor]:
        """Give the tokens and targets of an update."""
        turn, within = divmod(update, self.block_rows // self.batch)
        if self._number != turn % self.blocks:
            self._number = turn % self.blocks
            seed = seed_for(self.draw.seed, TRAINING, self._number)
            self._examples = self.task.sample(replace(self.draw, rows=self.block_rows, seed=seed))
        generator = torch.Generator().manual_seed(seed_for(self.draw.seed, ORDER, turn) % 2**63)
        order = torch.randperm(len(self._examples.tokens), generator=generator)
        chosen = order[(within * self.batch + torch.arange(self.batch)) % len(order)]
        return self._examples.tokens[chosen], self._examples.targets[chosen]


def scored(targets: Tensor) -> Tensor:
    """List the places of the flattened targets that are scored."""
    return (targets.flatten() != IGNORED).nonzero().flatten()


def majority(task: Task, examples: Examples) -> float:
    """Give the accuracy of always answering the most frequent class."""
    given = examples.targets.flatten()[scored(examples.targets)]
    counts = torch.bincount(given, minlength=task.classes)
    return float(counts.max()) / len(given)


def unseen(task: Task, draw: Draw, purpose: int) -> Examples:
    """Draw examples for validation or a test, which no training has seen; the seed is the same at every T."""
    return task.sample(replace(draw, seed=seed_for(draw.seed, purpose), held_out=True))
