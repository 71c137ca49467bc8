"""Backward: Λ_t = do_t ⊗ q_t + a_{t+1} ⊙ Λ_{t+1} in descending time, and from it every operand's gradient.

dq_t = Σ_d S_t do_t, dk_t = Σ_d Λ_t Δ_t x_t, dx_t = Δ_t Σ_n Λ_t k_t. With P_t = Λ_t ⊙ a_t ⊙ S_{t−1} of exp
gates, dΔ_t = Σ_n P_t A + x_t Σ_n Λ_t k_t and dA = Σ_t P_t Δ_t. With Q_t = Λ_t ⊙ S_{t−1} of implicit ones,
−Q_t k_t² stands for P_t A, and −2 k_t Σ_d Q_t Δ_t joins dk_t. No gate is divided by, so resets are exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import COUNTS
from .recompute import fetch_reads, fetch_writes, load_block_start, recompute_block_starts, recompute_states
from .segments import fold, limit, segment_at
from .states import Lanes, constant, lanes_of, load_state, split_program, store_plane, store_state, zeros
from .steps import load_fixed
from .walk_back import Adjoint, gated_outputs, pair_entries, store_delta_and_x, store_output_gate, walk_back


@triton.jit(do_not_specialize=COUNTS)
def selective_scan_backward(
    operands, fused, table, saved, arriving, summaries, scratch, gradients,
    T, length, segments, checkpoints, stretches, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk one segment of time of a batch element from its end, for a block of channels.

    The adjoint begins as the final state's gradient, folded with the summaries of the segments behind.
    Per checkpoint, from the last one: advance the state from it, and note the state before each step block.
    Then per step block, from the last one: recompute its states and gates, which stay in registers, walk back
    through them, and store the gradients. Gradients of what is the same at every step are stored at the end.

    saved: (B, checkpoints, G·M, D). summaries: of the reversed recurrence, None with one segment.
    scratch: (step blocks of all programs, G·M, BD). stretches: checkpoints of a segment.
    table: segments of packed sequences, whose states are (sequences, D, N); else None.
    """
    channels, index = split_program(TASK.D, TILE)
    at = segment_at(index, T, length, segments, checkpoints, table)
    lanes = lanes_of(channels, TASK.D, TILE.EVEN, TILE)
    noted = scratch_lanes(lanes, channels, TILE)
    scratch += scratch_offset(at, channels, segments, table, TASK, TILE)
    pairs = pairs_row(at, channels, T, TASK, TILE)
    entries = pair_entries(TILE)
    fixed = load_fixed(operands.A, fused, lanes, TASK, TILE.STATES)
    mu = load_state(arriving.final + at.sequence * TASK.D * TASK.N, lanes, TASK.N, TILE.STATES)
    if summaries is not None:
        mu = fold(mu, summaries, fixed.rates, at.row + at.after, at.after, -1, lanes, TASK, TILE)
    adjoint = Adjoint(mu, constant(0.0, TILE), zeros(TILE), zeros(TILE))

    stretches = limit(stretches, at, TILE.STEPS * TILE.BLOCKS, TASK.PACKED)
    for b in range(0, stretches):
        start = at.first + (stretches - 1 - b) * (TILE.STEPS * TILE.BLOCKS)
        last = start + (TILE.BLOCKS - 1) * TILE.STEPS
        reads = fetch_reads(arriving.o, operands.q, fused.z, at, last, lanes, TASK, TILE)
        # Loaded here and not taken from the loop over starts, so that both loops' operands get one layout.
        writes = fetch_writes(operands, at, last, lanes, TASK, TILE)
        S = recompute_block_starts(saved, scratch, operands, fixed, at, start, lanes, noted, TASK, TILE)
        tl.debug_barrier()
        for i in range(0, TILE.BLOCKS):
            step = last - i * TILE.STEPS
            block = recompute_states(S, writes, operands, fixed, at, step, lanes, TASK, TILE)
            ahead = tl.maximum(step - TILE.STEPS, start)
            next_reads = fetch_reads(arriving.o, operands.q, fused.z, at, ahead, lanes, TASK, TILE)
            next_writes = fetch_writes(operands, at, ahead, lanes, TASK, TILE)
            S = load_block_start(scratch, tl.maximum(TILE.BLOCKS - 2 - i, 0), at, start, noted, TASK, TILE)
            row = (at.token + step) * TASK.D + lanes.channel
            pair = gradients.kq + (pairs + step) * (2 * TILE.GROUPS * TILE.STATES) + entries
            factors, outputs = gated_outputs(block, writes, reads, operands, fixed, TILE)
            adjoint, sums = walk_back(
                adjoint, block, writes, reads, factors, operands, fixed, pair, at, step, TASK, TILE
            )
            adjoint = store_delta_and_x(
                adjoint, gradients, sums, operands, fixed, row, at, step, lanes, TASK, TILE
            )
            if fused.z is not None:
                store_output_gate(gradients.z, outputs, arriving.o, reads.z, row, at, step, lanes, TASK, TILE)
            reads, writes = next_reads, next_writes
        tl.debug_barrier()
    store_totals(gradients, adjoint, at, lanes, TASK, TILE)


@triton.jit
def scratch_lanes(lanes, channels, TILE: tl.constexpr):
    """The lanes of a plane of scratch, which has the program's channels alone."""
    own = lanes.channel - channels * TILE.CHANNELS
    return Lanes(own, lanes.group, tl.full(lanes.inside.shape, 1, tl.int1))


@triton.jit
def pairs_row(at, channels, T, TASK: tl.constexpr, TILE: tl.constexpr):
    """The row (G, 2, M) of the program's sums of dk and dq at step 0."""
    return at.token * tl.cdiv(TASK.D, TILE.CHANNELS) + channels.to(tl.int64) * T


@triton.jit
def scratch_offset(at, channels, segments, table, TASK: tl.constexpr, TILE: tl.constexpr):
    """Where a program's scratch begins: planes (G·M, BD), one per step block of a checkpoint."""
    plane: tl.constexpr = TILE.GROUPS * TILE.STATES * TILE.CHANNELS
    if table is None:
        return tl.program_id(0).to(tl.int64) * (TILE.BLOCKS * plane)
    else:
        blocks = tl.cdiv(TASK.D, TILE.CHANNELS)
        own = tl.minimum(tl.cdiv(at.end - at.first, TILE.STEPS), TILE.BLOCKS)
        return (tl.load(table + 6 * segments + at.row) * blocks + channels * own) * plane


@triton.jit
def store_totals(gradients, adjoint, at, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Store the gradients of what is the same at every step; a sequence's first segment, also the state's."""
    M: tl.constexpr = TILE.STATES
    if at.before == 0:
        store_state(gradients.state + at.sequence * TASK.D * TASK.N, adjoint.mu, lanes, TASK.N, M)
    if gradients.A is not None:
        store_plane(gradients.A + at.row * (TILE.GROUPS * M * TASK.D), adjoint.A, lanes, TASK.D, M)
    first = lanes.inside & (lanes.group == 0)
    if gradients.skip is not None:
        tl.store(gradients.skip + at.row * TASK.D + lanes.channel, adjoint.skip, mask=first)
    if gradients.bias is not None:
        total = tl.broadcast_to(tl.sum(adjoint.bias, axis=1, keep_dims=True), lanes.inside.shape)
        tl.store(gradients.bias + at.row * TASK.D + lanes.channel, total, mask=first)
