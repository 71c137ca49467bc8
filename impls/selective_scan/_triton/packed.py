"""Sequences packed into one time axis: each is cut into segments by itself, so that no program meets two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """Segments of packed sequences; those without steps are left out.

    table: (7, segments) int64: first step, end, sequence, segments of the sequence before and after, first
        checkpoint; and how many step blocks the segments before it have, each at most those of a checkpoint.
    followed, preceded: segments that have one after, or before, in their sequence.
    checkpoints: of all sequences, each of which begins with one. blocks: of all segments, as in the table.
    """

    table: Tensor
    followed: Tensor
    preceded: Tensor
    checkpoints: int
    blocks: int

    @classmethod
    def of(cls, bounds: Sequence[int], length: int, checkpoint: int, steps: int) -> Packed:
        """Cut sequences into segments of this length.

        bounds: where sequences begin, and where the last one ends. checkpoint: steps between checkpoints.
        steps: of a step block.
        """
        starts = torch.tensor(bounds)
        lengths = starts.diff()
        counts, checkpoints = (-(-lengths // unit) for unit in (length, checkpoint))
        sequence = torch.arange(len(lengths)).repeat_interleave(counts)
        before = torch.arange(len(sequence)) - (counts.cumsum(0) - counts)[sequence]
        after = counts[sequence] - 1 - before
        first = starts[sequence] + before * length
        end = torch.minimum(first + length, starts[sequence + 1])
        own = (checkpoints.cumsum(0) - checkpoints)[sequence] + before * (length // checkpoint)
        followed, preceded = (inner.nonzero().flatten() for inner in (after, before))
        blocks = (-((first - end) // steps)).clamp(max=checkpoint // steps)
        earlier = blocks.cumsum(0) - blocks
        table = torch.stack([first, end, sequence, before, after, own, earlier])
        return cls(table, followed, preceded, int(checkpoints.sum()), int(blocks.sum()))

    @property
    def segments(self) -> int:
        return self.table.shape[1]
