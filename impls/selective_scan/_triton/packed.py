"""Sequences packed into one time axis: each is cut into segments by itself, so that no program meets two.

Where the segments lie is found on the device: see `..._triton.packed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..._triton.packed import count_places, part_at, rounds
from ..._triton.plan import Plan, Slot

BLOCK = 128  # places of a program


@triton.jit(do_not_specialize=("T", "sequences", "segments", "length"))
def selective_scan_segments(
    bounds, table, T, sequences, segments, length, checkpoint,
    BLOCKS: tl.constexpr, STEPS: tl.constexpr, SPARSE: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the table of segments, (7, segments) int64; segments: places for them.

    Rows: first step, end, sequence, segments of the sequence before and after, first checkpoint, and the
    place of the step blocks that backward notes, at most BLOCKS per segment. An empty place has no steps, and
    -1 segments before and after. SPARSE: count step blocks by steps, not by segments.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sequence, begin, stop, part, exists = part_at(place, bounds, T, sequences, length, ROUNDS)
    first = tl.where(exists, begin + part * length, stop)
    end = tl.minimum(first + length, stop)
    before = tl.where(exists, part, -1)
    after = tl.where(exists, tl.cdiv(stop - begin, length) - 1 - part, -1)
    own = begin // checkpoint + sequence + tl.maximum(part, 0) * (length // checkpoint)
    noted = first // STEPS + place if SPARSE else place * BLOCKS
    inside, at = place < segments, table + place
    tl.store(at, first, mask=inside)
    tl.store(at + segments, end, mask=inside)
    tl.store(at + 2 * segments, sequence, mask=inside)
    tl.store(at + 3 * segments, before, mask=inside)
    tl.store(at + 4 * segments, after, mask=inside)
    tl.store(at + 5 * segments, own, mask=inside)
    tl.store(at + 6 * segments, noted, mask=inside)


@dataclass(frozen=True, slots=True)
class Packed:
    """Room for packed sequences, each of which is cut into segments of `length` steps.

    checkpoint: steps between checkpoints. steps: of a step block.
    """

    T: int
    sequences: int
    length: int
    checkpoint: int
    steps: int

    @property
    def segments(self) -> int:
        """Places for segments; some stay empty."""
        return count_places(self.T, self.sequences, self.length)

    @property
    def checkpoints(self) -> int:
        """Places for checkpoints; each sequence begins with one."""
        return count_places(self.T, self.sequences, self.checkpoint)

    @property
    def blocks(self) -> int:
        """Places for step blocks that segments note at a time: those of a checkpoint each."""
        full = self.segments * (self.checkpoint // self.steps)
        return min(full, count_places(self.T, self.segments, self.steps))

    @property
    def several(self) -> bool:
        """Whether a sequence may have several segments."""
        return self.length < self.T

    def table(self, plan: Plan, bounds: Slot) -> Slot:
        """Find the segments: see the kernel."""
        table = plan.empty((7, self.segments), torch.int64)
        per_checkpoint = self.checkpoint // self.steps
        plan.launch(
            selective_scan_segments, (triton.cdiv(self.segments, BLOCK),), bounds, table, self.T,
            self.sequences, self.segments, self.length, self.checkpoint, BLOCKS=per_checkpoint,
            STEPS=self.steps, SPARSE=self.segments * per_checkpoint > self.blocks,
            ROUNDS=rounds(self.sequences), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return table
