"""Backward's states: advanced again from a checkpoint, then once more within each step block."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .keys import fetch_keys, unpack
from .options import step_sizes
from .segments import checkpoint_at
from .states import Lanes, load_plane, store_plane
from .step_blocks import fetch_channels, fetch_inputs, fetch_spread
from .steps import advance, gates
from .zoh import finite_size


class Reads(NamedTuple):
    """R tensors each for a step block's outputs: the gradient of o, words of q, the spread output gate."""

    do: Any
    q: Any
    z: Any


class Block(NamedTuple):
    """A step block in registers: R step sizes, R gates, and R + 1 states, each M tensors."""

    sizes: Any
    gates: Any
    states: Any


@triton.jit
def fetch_writes(operands, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Operands from which a step block's states are made: x, Δ and k."""
    return fetch_inputs(operands.x, operands.delta, operands.k, None, None, at, step, lanes, TASK, TILE)


@triton.jit
def fetch_reads(do, q, z, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    arriving = fetch_channels(do, at, step, lanes, TASK.D, TILE)
    queries = fetch_keys(q, at, step, lanes, TASK.N, TILE)
    gating = ()
    if z is not None:
        gating = fetch_spread(z, at, step, lanes, TASK.D, TILE)
    return Reads(arriving, queries, gating)


@triton.jit
def recompute_block_starts(
    saved, scratch, operands, fixed, at, start, lanes, noted, TASK: tl.constexpr, TILE: tl.constexpr
):
    """Advance from the checkpoint at `start`, noting the state before each step block but the last.

    Returns the state before the last one. noted: the lanes of a plane of scratch.
    """
    M: tl.constexpr = TILE.STATES
    writes = fetch_writes(operands, at, start, lanes, TASK, TILE)
    row = checkpoint_at(at, start, TILE)
    existing = Lanes(lanes.channel, lanes.group, lanes.inside & (start < at.end))
    S = load_plane(saved + row * (TILE.GROUPS * M * TASK.D), existing, TASK.D, M)
    for i in range(0, TILE.BLOCKS - 1):
        step = start + i * TILE.STEPS
        own = within(noted, step, at, TASK)
        store_plane(scratch + i * (TILE.GROUPS * M * TILE.CHANNELS), S, own, TILE.CHANNELS, M)
        following = fetch_writes(operands, at, start + (i + 1) * TILE.STEPS, lanes, TASK, TILE)
        sizes = step_sizes(writes.delta, fixed, at, step, lanes, TASK, TILE)
        for r in tl.static_range(TILE.STEPS):
            size, keys, gate = factors_of(sizes[r], writes.k[r], operands.k.dtype.element_ty, fixed, TASK, M)
            S = advance(S, gate, size, keys, writes.x[r], fixed, TASK.ZOH, M)
        writes = following
    return S


@triton.jit
def recompute_states(S, writes, operands, fixed, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """A step block's states and gates from the state before it."""
    M: tl.constexpr = TILE.STATES
    block_gates, states = (), ()
    sizes = step_sizes(writes.delta, fixed, at, step, lanes, TASK, TILE)
    for r in tl.static_range(TILE.STEPS):
        size, keys, gate = factors_of(sizes[r], writes.k[r], operands.k.dtype.element_ty, fixed, TASK, M)
        block_gates += (gate,)
        states += (S,)
        S = advance(S, gate, size, keys, writes.x[r], fixed, TASK.ZOH, M)
    return Block(sizes, block_gates, states + (S,))  # noqa: RUF005 (Triton knows no star)


@triton.jit
def factors_of(size, words, dtype: tl.constexpr, fixed, TASK: tl.constexpr, M: tl.constexpr):
    """A step's size, keys and gates."""
    size = finite_size(size, TASK.ZOH)
    keys = unpack(words, dtype)
    return size, keys, gates(size, fixed.rates, keys, TASK.GATE, M)


@triton.jit
def load_block_start(scratch, block, at, start, noted, TASK: tl.constexpr, TILE: tl.constexpr):
    """The noted state before a step block."""
    own = within(noted, start + block * TILE.STEPS, at, TASK)
    plane = scratch + block * (TILE.GROUPS * TILE.STATES * TILE.CHANNELS)
    return load_plane(plane, own, TILE.CHANNELS, TILE.STATES)


@triton.jit
def within(noted, step, at, TASK: tl.constexpr):
    """Lanes that have a state before this step: a packed segment has room for its own steps alone."""
    if TASK.PACKED:
        return Lanes(noted.channel, noted.group, noted.inside & (step < at.end))
    else:
        return noted
