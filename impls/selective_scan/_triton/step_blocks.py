"""Operands of a step block: loaded together, and taken apart step by step.

From the segment's end on, loads give 0: a step size of 0 leaves the state as it is. With whole step blocks
only the prefetch behind the last one is there, which loads the last block again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .keys import fetch_keys
from .lane_sums import flat, from_flat, from_place, interleave, split_pairs
from .states import split_last


class Inputs(NamedTuple):
    """R tensors each, empty for what is absent: x (BD, G), Δ, words of k and of q (1, G), output gate.

    Δ (if SPREAD) and the output gate are spread over the groups.
    """

    x: Any
    delta: Any
    k: Any
    q: Any
    z: Any


@triton.constexpr_function
def per_lane(count, lanes):
    """How many of `count` values each of some lanes holds."""
    return max(1, count // lanes)


@triton.jit
def fetch_inputs(x, delta, k, q, z, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Operands of a step block; q, z: None where they do not take part."""
    xs = fetch_channels(x, at, step, lanes, TASK.D, TILE)
    if TASK.SPREAD:
        sizes = fetch_spread(delta, at, step, lanes, TASK.D, TILE)
    else:
        sizes = fetch_channels(delta, at, step, lanes, TASK.D, TILE)
    keys = fetch_keys(k, at, step, lanes, TASK.N, TILE)
    queries, gates = (), ()
    if q is not None:
        queries = fetch_keys(q, at, step, lanes, TASK.N, TILE)
    if z is not None:
        gates = fetch_spread(z, at, step, lanes, TASK.D, TILE)
    return Inputs(xs, sizes, keys, queries, gates)


@triton.jit
def fetch_channels(x, at, step, lanes, D: tl.constexpr, TILE: tl.constexpr):
    """R tensors (BD, G) of x (B, T, D), every group the same."""
    R: tl.constexpr = TILE.STEPS
    start = x + (at.token + (tl.minimum(step, at.end - R) if TILE.WHOLE else step)) * D
    row = tl.arange(0, R)[None, None, :]
    inside = tl.broadcast_to(lanes.inside[:, :, None], (TILE.CHANNELS, TILE.GROUPS, R))
    if not TILE.WHOLE:
        inside = inside & (step + row < at.end)
    return split_last(tl.load(start + (row * D + lanes.channel[:, :, None]), mask=inside, other=0.0), R)


@triton.jit
def fetch_spread(x, at, step, lanes, D: tl.constexpr, TILE: tl.constexpr):
    """x (B, T, D) spread over the groups: each has the next R / G steps, at least one."""
    R: tl.constexpr = TILE.STEPS
    PER: tl.constexpr = per_lane(R, TILE.GROUPS)
    own = lanes.group * PER
    first = x + (at.token + (tl.minimum(step, at.end - R) if TILE.WHOLE else step) + own) * D + lanes.channel
    values = ()
    for j in tl.static_range(PER):
        mask = lanes.inside & (own + j < R)
        if not TILE.WHOLE:
            mask = mask & (step + own + j < at.end)
        values += (tl.load(first + j * D, mask=mask, other=0.0),)
    return values


@triton.jit
def take_from_group(x, which: tl.constexpr, ADJACENT: tl.constexpr):
    """Broadcast one group's column of x (BD, G) to every group."""
    G: tl.constexpr = x.shape[1]
    LANES: tl.constexpr = 32 // G
    if G == 1:
        return x
    elif ADJACENT == 1:
        place = tl.arange(0, 32)[None, :] % LANES + which * LANES
        return from_flat(from_place(flat(x), place), G)
    else:
        even, odd = split_pairs(x)
        half: tl.constexpr = ADJACENT // 2
        return interleave(take_from_group(even, which, half), take_from_group(odd, which, half))


@triton.jit
def gather_spread(own, TILE: tl.constexpr):
    """R tensors (BD, G), every group the same, from values that are spread over the groups."""
    values = ()
    for r in tl.static_range(TILE.STEPS):
        values += (take_from_group(own[r % len(own)], r // len(own), TILE.ADJACENT),)
    return values
