"""The examples of a training, block by block, and those of validation and tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ssmperf.engine.layers.task import IGNORED, Draw, Examples, Task

BLOCK_ROWS = 4096  # of a training set that are drawn at a time
KEPT_BYTES = 256 << 20  # of blocks, since a long training runs through all of them many times
TRAINING, ORDER, VALIDATION, TEST = range(4)  # purposes of a seed

Block = tuple[Tensor, Tensor]  # tokens and targets of its rows


def seed_for(seed: int, *purpose: int) -> int:
    """Derive a seed for one purpose; different purposes give independent values."""
    return int(np.random.SeedSequence([seed, *purpose]).generate_state(1, np.uint64)[0])


@dataclass
class TrainingRows:
    """A training set of `task.rows` rows, drawn in blocks, each of which is run through in random order.

    The rows of an update follow from its number alone, so a training can start anywhere.

    draw: T, trained, seed and corpus of the draws. batch: rows per update.
    kept: blocks by number, which may be shared with others of the same task and draw.
    """

    task: Task
    draw: Draw
    batch: int
    kept: dict[int, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        block_rows = max(self.batch, min(self.task.rows, BLOCK_ROWS))
        self.blocks = max(1, self.task.rows // block_rows)
        self.block_rows = block_rows
        self._turn: int | None = None

    def rows_of(self, update: int) -> tuple[Tensor, Tensor]:
        """Give the tokens and targets of an update."""
        turn, within = divmod(update, self.block_rows // self.batch)
        if self._turn != turn:
            self._block = self._draw(turn % self.blocks)
            generator = torch.Generator().manual_seed(seed_for(self.draw.seed, ORDER, turn) % 2**63)
            self._order = torch.randperm(len(self._block[0]), generator=generator)
            self._turn = turn
        tokens, targets = self._block
        chosen = self._order[(within * self.batch + torch.arange(self.batch)) % len(self._order)]
        return tokens[chosen].long(), targets[chosen].long()

    def _draw(self, number: int) -> Block:
        """Draw a block, or take it from those that are kept: the first ones, as many as KEPT_BYTES hold."""
        if number in self.kept:
            return self.kept[number]
        seed = seed_for(self.draw.seed, TRAINING, number)
        drawn = self.task.sample(replace(self.draw, rows=self.block_rows, seed=seed))
        block = narrowed(drawn.tokens), narrowed(drawn.targets)
        if sum(bytes_of(each) for each in (*self.kept.values(), block)) <= KEPT_BYTES:
            self.kept[number] = block
        return block


def narrowed(x: Tensor) -> Tensor:
    """Give integers in 16 bits if they fit, which makes them quicker to pick and smaller to keep."""
    low, high = (int(each) for each in x.aminmax())
    limits = torch.iinfo(torch.int16)
    return x.to(torch.int16) if limits.min <= low and high <= limits.max else x


def bytes_of(block: Block) -> int:
    return sum(each.nbytes for each in block)


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
    seed, validation = seed_for(draw.seed, purpose), purpose == VALIDATION
    return task.sample(replace(draw, seed=seed, held_out=True, validation=validation))
