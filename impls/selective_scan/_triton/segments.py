"""Segments of time, walked side by side: where each lies, and the state that it begins with.

With one segment per sequence nothing else is needed. With several, a first launch finds every segment's
summary (`summary.py`), and in the pass itself each folds the summaries before its own, always in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.arithmetic import COMPILED, exp2
from ..._triton.packed import counted
from .states import constant, load_plane, load_state


class Segment(NamedTuple):
    """Location of a segment.

    row: its row among all segments. before, after: how many segments its sequence has on either side.
    sequence: row of the sequence's states: a batch element, or a packed sequence.
    token: where step 0 is in memory. first, end: the segment's steps.
    checkpoint: row of the sequence's first checkpoint. origin: the step where that one is.
    """

    row: Any
    before: Any
    after: Any
    sequence: Any
    token: Any
    first: Any
    end: Any
    checkpoint: Any
    origin: Any


@triton.jit
def segment_at(index, T, length, segments, checkpoints, table):
    """The index-th segment; table: those of packed sequences, see `packed.selective_scan_segments`."""
    if table is None:
        before = index % segments
        sequence = (index // segments).to(tl.int64)
        first = (before * length).to(tl.int64)
        end = tl.minimum(first + length, T)
        row = sequence * segments + before
        return Segment(row, before, segments - 1 - before, sequence, sequence * T, first, end,
                       sequence * checkpoints, 0)  # fmt: skip
    else:
        at = table + index
        first = tl.load(at)
        end = tl.load(at + segments)
        sequence = tl.load(at + 2 * segments)
        before = tl.load(at + 3 * segments)
        after = tl.load(at + 4 * segments)
        checkpoint = tl.load(at + 5 * segments)
        return Segment(index.to(tl.int64), before, after, sequence, first * 0, first, end, checkpoint, first)


@triton.jit
def limit(count, at, steps: tl.constexpr, PACKED: tl.constexpr):
    """Count the stretches of `steps` steps that a packed segment has; of others, `count`."""
    if PACKED:
        count = counted(tl.cdiv(at.end - at.first, steps).to(tl.int32))
    return count


@triton.jit
def checkpoint_at(at, step, TILE: tl.constexpr):
    """Row of a step's checkpoint."""
    return at.checkpoint + (step - at.origin) // (TILE.STEPS * TILE.BLOCKS)


@triton.jit
def initial_state(state, sequence, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """A sequence's initial state, zeros if none is given."""
    if state is not None:
        return load_state(state + sequence * TASK.D * TASK.N, lanes, TASK.N, TILE.STATES)
    else:
        return constant(0.0, TILE)


@triton.jit
def fold(
    S, summaries, rates, first, count, stride: tl.constexpr, lanes, TASK: tl.constexpr, TILE: tl.constexpr
):
    """The state after `count` segments that begin with S: rows first, first + stride, and so on."""
    M: tl.constexpr = TILE.STATES
    i = 0
    while i < count:
        row = first + i * stride
        plane = row * (TILE.GROUPS * M * TASK.D)
        added = load_plane(summaries.states + plane, lanes, TASK.D, M)
        if TASK.GATE == "exp":
            size = tl.load(summaries.decays + row * TASK.D + lanes.channel, mask=lanes.inside, other=0.0)
        else:
            decays = load_plane(summaries.decays + plane, lanes, TASK.D, M)
        after = ()
        for j in tl.static_range(M):
            gate = exp2(size * rates[j], COMPILED) if TASK.GATE == "exp" else decays[j]
            after += (gate * S[j] + added[j],)
        S = after
        i += 1
    return S
