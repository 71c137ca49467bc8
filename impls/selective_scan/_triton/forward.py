"""Forward: S_t = a_t ⊙ S_{t−1} + (Δ_t x_t) ⊗ k_t and o_t = S_t q_t, over all of time or one segment of it."""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import COUNTS
from .keys import unpack
from .lane_sums import over_groups
from .options import add_skip, sigmoid, step_sizes
from .segments import checkpoint_at, fold, initial_state, limit, segment_at
from .states import Lanes, lanes_of, split_program, store_plane, store_state
from .step_blocks import fetch_inputs, per_lane
from .steps import advance, gates, load_fixed, read
from .zoh import finite_size


@triton.jit(do_not_specialize=COUNTS)
def selective_scan_forward(
    operands, fused, state, table, summaries, o, final, saved,
    T, length, segments, checkpoints, blocks, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk one segment of time of a batch element, for a block of channels.

    The segment begins with its true state: the initial one, folded with the summaries of the segments before.
    Per step block: load the next block, save a checkpoint if one is due, advance the state step by step, and
    store the outputs. A sequence's last segment leaves the final state.

    summaries: None with one segment. saved: checkpoints (B, checkpoints, G·M, D), or None.
    table: segments of packed sequences, whose states are (sequences, D, N); else None.
    """
    channels, index = split_program(TASK.D, TILE)
    at = segment_at(index, T, length, segments, checkpoints, table)
    lanes = lanes_of(channels, TASK.D, TILE.EVEN, TILE)
    fixed = load_fixed(operands.A, fused, lanes, TASK, TILE.STATES)
    S = initial_state(state, at.sequence, lanes, TASK, TILE)
    if summaries is not None:
        S = fold(S, summaries, fixed.rates, at.row - at.before, at.before, 1, lanes, TASK, TILE)

    blocks = limit(blocks, at, TILE.STEPS, TASK.PACKED)
    inputs = fetch(operands, fused, at, at.first, lanes, TASK, TILE)
    for i in range(0, blocks):
        step = at.first + i * TILE.STEPS
        following = fetch(operands, fused, at, step + TILE.STEPS, lanes, TASK, TILE)
        if saved is not None:
            save_checkpoint(saved, S, i, at, step, lanes, TASK, TILE)
        to = o + (at.token + step) * TASK.D + lanes.channel
        S, totals = scan_block(S, inputs, operands, fixed, at, step, lanes, TASK, TILE)
        store_outputs(to, totals, inputs.z, at, step, lanes, TASK, TILE)
        inputs = following
    if at.after == 0:
        store_state(final + at.sequence * TASK.D * TASK.N, S, lanes, TASK.N, TILE.STATES)


@triton.jit
def fetch(operands, fused, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    return fetch_inputs(
        operands.x, operands.delta, operands.k, operands.q, fused.z, at, step, lanes, TASK, TILE
    )


@triton.jit
def save_checkpoint(saved, S, i, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Save the state before every BLOCKS step blocks."""
    row = checkpoint_at(at, step, TILE)
    if i % TILE.BLOCKS == 0:
        own = Lanes(lanes.channel, lanes.group, lanes.inside & (step < at.end))
        store_plane(saved + row * (TILE.GROUPS * TILE.STATES * TASK.D), S, own, TASK.D, TILE.STATES)


@triton.jit
def scan_block(S, inputs, operands, fixed, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """The states after a step block, and R tensors: each group's part of o, without the output gate."""
    M: tl.constexpr = TILE.STATES
    sizes = step_sizes(inputs.delta, fixed, at, step, lanes, TASK, TILE)
    totals = ()
    for r in tl.static_range(TILE.STEPS):
        size = finite_size(sizes[r], TASK.ZOH)
        keys = unpack(inputs.k[r], operands.k.dtype.element_ty)
        queries = unpack(inputs.q[r], operands.q.dtype.element_ty)
        gate = gates(size, fixed.rates, keys, TASK.GATE, M)
        S = advance(S, gate, size, keys, inputs.x[r], fixed, TASK.ZOH, M)
        totals += (add_skip(read(S, queries, M), fixed, inputs.x[r], TILE.GROUPS),)
    return S, totals


@triton.jit
def store_outputs(to, totals, z, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Sum over the groups, apply the output gate, and store: each group some of the steps."""
    PER: tl.constexpr = per_lane(TILE.STEPS, TILE.GROUPS)
    totals = over_groups(totals, TILE.STEPS, TILE.ADJACENT)
    for j in tl.static_range(PER):
        r = lanes.group * PER + j
        inside = lanes.inside & (r < TILE.STEPS)
        if not TILE.WHOLE:
            inside = inside & (step + r < at.end)
        output = totals[j]
        if len(z) > 0:
            gating = z[j].to(tl.float32)
            output *= gating * sigmoid(gating)
        tl.store(to + r * TASK.D, output.to(to.dtype.element_ty), mask=inside)
