"""Packed sequences in kernels: where they lie is read on the device, from their bounds.

Each sequence is cut into parts of `unit` steps from its own first step on, such as chunks. A tensor with
something per part has a place for each: part i of sequence n, which begins at step b, is at place
⌊b / unit⌋ + n + i. Sequences of l steps do not share places, since ⌊b / unit⌋ + ⌈l / unit⌉ ≤
⌊(b + l) / unit⌋ + 1. So T // unit + n places are enough for n sequences, a number that the host knows from
shapes alone; a few stay empty.

Bounds that do not rise from 0 to T give results without a meaning; every access stays inside of memory.

A loop over sequences on the host would wait for the device in every call, and no CUDA graph could hold it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from .arithmetic import COMPILED


def count_places(T: int, sequences: int, unit: int) -> int:
    """Count the places for parts of so many steps."""
    return T // unit + sequences


def rounds(sequences: int) -> int:
    """Count the rounds of `part_at`: those of a binary search among the sequences."""
    return (sequences - 1).bit_length()


@triton.jit
def bound(bounds, number, T):
    """Where sequence `number` begins, at most T; int64."""
    return tl.minimum(tl.maximum(tl.load(bounds + number).to(tl.int64), 0), T)


@triton.jit
def span_of(bounds, number, T):
    """First step and end of sequence `number`."""
    first = bound(bounds, number, T)
    return first, tl.maximum(bound(bounds, number + 1, T), first)


@triton.jit
def part_at(place, bounds, T, sequences, unit, ROUNDS: tl.constexpr):
    """For each place: sequence, its first step, its end, number of the part, whether there is one."""
    number, most = place * 0, place * 0 + sequences - 1
    for _ in tl.static_range(ROUNDS):
        middle = (number + most + 1) // 2
        begins = bound(bounds, middle, T) // unit + middle <= place
        number, most = tl.where(begins, middle, number), tl.where(begins, most, middle - 1)
    first, end = span_of(bounds, number, T)
    part = place - first // unit - number
    return number, first, end, part, (part >= 0) & (part * unit < end - first)


@triton.constexpr_function
def interpreted_count(count: Any) -> int:
    return int(count.handle.data.item())


@triton.jit
def counted(count):
    """A count from the device as a loop's bound; Triton's interpreter cannot count to a tensor."""
    if COMPILED:
        return count
    else:
        return interpreted_count(count)
