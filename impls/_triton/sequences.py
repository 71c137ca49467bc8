"""Packed sequences: kernels find them by bounds that they read on the device.

Kernels over all chunks take `places`, which `la_places` writes, and the place of a chunk for its number.
Kernels that take the chunks of a sequence in order take `bounds`. Both are None where nothing is packed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
import triton
import triton.language as tl
from torch import Tensor

from .packed import count_places, part_at, rounds, span_of
from .plan import Plan, Slot

BLOCK = 128  # places of a program
RESET = tl.constexpr(-104.0)  # float32 exp of anything below is 0


@triton.jit
def head_offset(bh, T, H):
    """Row index of step 0 of (batch, head) in a (B, T, H, ·) tensor."""
    return (bh // H) * T * H + bh % H


@triton.jit(do_not_specialize=("T", "sequences", "count"))
def la_places(
    bounds, places, T, sequences, count, C: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    """For each place the first step of its chunk, the end of the sequence, its number, and its first step.

    places: (4, count) int64. An empty place begins at the end.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    number, first, end, chunk, exists = part_at(place, bounds, T, sequences, C, ROUNDS)
    inside = place < count
    tl.store(places + place, tl.where(exists, first + chunk * C, end), mask=inside)
    tl.store(places + count + place, end, mask=inside)
    tl.store(places + 2 * count + place, number, mask=inside)
    tl.store(places + 3 * count + place, first, mask=inside)


@triton.jit
def chunk_steps(chunk, T, NT, places, C: tl.constexpr):
    """First step of a chunk, and the end of its sequence. Of packed sequences, `chunk` is a place of NT."""
    if places is None:
        return chunk * C, T
    else:
        return tl.load(places + chunk), tl.load(places + NT + chunk)


@triton.jit
def chunk_sequence(chunk, bh, H, NT, places, C: tl.constexpr):
    """(sequence, head) of a chunk, and the number of steps of the sequence before it."""
    if places is None:
        return bh, chunk * C
    else:
        number = tl.load(places + 2 * NT + chunk)
        return number * H + bh, tl.load(places + chunk) - tl.load(places + 3 * NT + chunk)


@triton.jit
def sequence_of(bh, T, H, NT, bounds, C: tl.constexpr):
    """For (sequence, head) bh: row of step 0, steps, chunks, and first chunk's row in tensors per chunk."""
    if bounds is None:
        return head_offset(bh, T, H), T, NT, bh * NT
    else:
        number, head = bh // H, bh % H
        first, end = span_of(bounds, number, T)
        steps = (end - first).to(tl.int32)
        return first * H + head, steps, tl.cdiv(steps, C), head * NT + first // C + number


@final
@dataclass(frozen=True)
class Packing:
    """Packed sequences of a call, in chunks of C steps. bounds: (n + 1,). places: see `la_places`."""

    bounds: Slot
    places: Slot
    C: int

    @classmethod
    def of(cls, plan: Plan, bounds: Slot | None, T: int, C: int) -> Packing | None:
        """Find the places of chunks of C steps; None where sequences are not packed."""
        if bounds is None:
            return None
        sequences = bounds.shape[0] - 1
        count = count_places(T, sequences, C)
        places = plan.empty((4, count), torch.int64)
        plan.launch(
            la_places, (triton.cdiv(count, BLOCK),), bounds, places, T, sequences, count,
            C=C, ROUNDS=rounds(sequences), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return cls(bounds, places, C)

    @property
    def sequences(self) -> int:
        return self.bounds.shape[0] - 1

    @property
    def count(self) -> int:
        """Places of a head."""
        return self.places.shape[1]


def first_steps(x: Tensor, bounds: Tensor | None) -> Tensor:
    """The first step of x (B, T, ...) as (B, 1, ...), of each packed sequence; 0 of an empty one."""
    if bounds is None:
        return x[:, :1]
    starts, ends = bounds[:-1], bounds[1:]
    steps = x[0].index_select(0, starts.clamp(0, x.shape[1] - 1)).unsqueeze(1)
    return torch.where((ends > starts).view(-1, *[1] * (x.dim() - 1)), steps, 0)
