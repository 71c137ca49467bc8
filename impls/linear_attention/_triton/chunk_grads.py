"""The gradients of queries and keys by whole chunks, from the states and adjoints at their edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps, head_offset
from .blocks import (
    KEY,
    NONE,
    SCALAR,
    block_starts,
    decay,
    gate_base,
    gate_columns,
    gate_stride,
    load_rows,
    locate,
    partners,
    store_starts,
)
from .chunks import COUNTS
from .groups import GradTile


class HeadChunk(NamedTuple):
    """A program's chunk of a head, and its tile of keys.

    row: of the head's step 0 in (B, T, H, ·). t: steps of the chunk, before the sequence's `end`. at: row in
    tensors with one per chunk. keys: channels.
    """

    tile: Any
    row: Any
    t: Any
    end: Any
    at: Any
    keys: Any
    H: Any


@triton.jit(do_not_specialize=COUNTS)
def la_grad_qk(
    q, k, v, do, log_a, states, adjoints, dscores, boundary, turns, block_boundary, block_turns, dq, dk,
    dlog_a, dphase, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, TURN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq = decay ⊙ (do Sᵀ) and dk = decay ⊙ (v Λᵀ), the parts through states.

    Without a gate or with a scalar one also the parts inside the chunk and the gate's gradient, one partial
    sum per tile of keys: dlog_a (B, T, H, tiles). With key gates `la_grad_key` adds those, from
    block_boundary (see `block_starts`). TURN: the same for the phase's gradient, dphase (B, T, H, K).
    """
    tile, chunk, bh = locate(H, NT, tl.cdiv(K, BK))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    t, keys = start + tl.arange(0, C), tile * BK + tl.arange(0, BK)
    own = HeadChunk(tile, head_offset(bh, T, H), t, end, bh * NT + chunk, keys, H)
    TILE: tl.constexpr = GradTile(K, KG, V, C, BK, BV)
    dq_tile, dk_tile = through_states(v, do, states, adjoints, own, PRECISION, TILE)
    if GATE != NONE:
        base, stride = gate_base(log_a, bh, T, H, KG, GATE, CONST), gate_stride(H, KG, GATE, CONST)
        gated = gate_columns(keys, K, KG)
        dq_tile = dq_tile * tl.exp(decay(base, start, end, stride, gated, KG, C, GATE, False))
        dk_tile = dk_tile * tl.exp(decay(base, start, end, stride, gated, KG, C, GATE, True))
    q_tile = load_steps(q, own, keys, K)
    k_tile = load_steps(k, own, keys, K)
    if GATE == KEY:
        store_block_starts(k_tile.to(tl.float32) * dk_tile, boundary, block_boundary, own, TILE)
        if TURN:
            store_block_starts(-load_turned(k, own, TILE) * dk_tile, turns, block_turns, own, TILE)
    else:
        weights, same = load_weights(dscores, own, TILE)
        carried = dk_tile
        dq_tile = tl.dot(weights, k_tile, dq_tile, input_precision=PRECISION)  # [C, C] @ [C, K]
        inner = tl.dot(tl.trans(weights), q_tile, input_precision=PRECISION)  # [C, C] @ [C, K]
        if GATE == SCALAR:
            log_gates = tl.load(base + t * stride, mask=t < end, other=0.0)
            store_gates(q_tile, k_tile, dq_tile, inner, carried, log_gates, boundary, dlog_a, own, TILE)
        if TURN:
            store_phases(q, k, dq_tile, inner, carried, turns, dphase, own, TILE)
        dq_tile += same * k_tile.to(tl.float32)
        dk_tile += inner + same * q_tile.to(tl.float32)
    store_steps(dq, dq_tile, own, TILE)
    store_steps(dk, dk_tile, own, TILE)


@triton.jit
def load_steps(x, own, columns, W: tl.constexpr):
    """The chunk's steps of x (B, T, H, W) at the given columns."""
    return load_rows(x + own.row * W, own.t, own.end, own.H * W, columns, W)


@triton.jit
def load_turned(x, own, TILE):
    """J times the chunk's steps of x (B, T, H, K): see `turns`; float32."""
    partner, sign = partners(own.keys, TILE.K)
    return load_steps(x, own, partner, TILE.K).to(tl.float32) * sign[None, :]


@triton.jit
def store_steps(out, tile, own, TILE):
    """Store the chunk's steps of a result (B, T, H, K)."""
    rows = own.row * TILE.K + own.t[:, None] * own.H * TILE.K + own.keys[None, :]
    mask = (own.t < own.end)[:, None] & (own.keys < TILE.K)[None, :]
    tl.store(out + rows, tile.to(out.dtype.element_ty), mask=mask)


@triton.jit
def through_states(v, do, states, adjoints, own, PRECISION: tl.constexpr, TILE):
    """do Sᵀ and v Λᵀ with the state and the adjoint at the chunk's edges, [C, BK]."""
    K: tl.constexpr = TILE.K
    V: tl.constexpr = TILE.V
    at = own.at * K * V
    dq_tile = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    dk_tile = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    for first in range(0, V, TILE.BV):
        values = first + tl.arange(0, TILE.BV)
        do_tile = load_steps(do, own, values, V)
        state = load_rows(states + at, own.keys, K, V, values, V)
        dq_tile = tl.dot(do_tile, tl.trans(state), dq_tile, input_precision=PRECISION)  # [C, V] @ [V, K]
        v_tile = load_steps(v, own, values, V)
        adjoint = load_rows(adjoints + at, own.keys, K, V, values, V)
        dk_tile = tl.dot(v_tile, tl.trans(adjoint), dk_tile, input_precision=PRECISION)  # the same
    return dq_tile, dk_tile


@triton.jit
def load_weights(dscores, own, TILE):
    """Gradients of the chunk's scores: [C, C] below the diagonal, and [C, 1] on it, float32."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, C)
    at = dscores + own.at * C * C
    strictly = steps[:, None] > steps[None, :]
    weights = tl.load(at + steps[:, None] * C + steps[None, :], mask=strictly, other=0.0)
    return weights, tl.load(at + steps * (C + 1)).to(tl.float32)[:, None]


@triton.jit
def load_ends(boundary, own, TILE):
    """What passes through the whole chunk, of boundary or turns (B·H, chunks, K)."""
    return tl.load(boundary + own.at * TILE.K + own.keys, mask=own.keys < TILE.K, other=0.0)


@triton.jit
def store_block_starts(carried, boundary, block_boundary, own, TILE):
    """Store what the gradient of gates or phases begins with in each block."""
    starts = block_starts(carried, load_ends(boundary, own, TILE), TILE.C, TILE.BK)
    store_starts(block_boundary, starts, own.at, own.keys, True, TILE.K, TILE.C)


@triton.jit
def store_gates(q_tile, k_tile, dq_tile, inner, carried, log_gates, boundary, dlog_a, own, TILE):
    """Store the gradient of scalar gates, the sum over the program's keys. carried: dk through states."""
    steps = tl.arange(0, TILE.C)
    local = tl.sum(q_tile.to(tl.float32) * dq_tile - k_tile.to(tl.float32) * inner, axis=1)
    earlier = tl.sum(k_tile.to(tl.float32) * carried, axis=1)
    pairs = tl.where(steps[:, None] <= steps[None, :], local[None, :], earlier[None, :])
    dgate = tl.sum(pairs, axis=1) + tl.sum(load_ends(boundary, own, TILE), axis=0)
    dgate = tl.where(log_gates == float("-inf"), 0.0, dgate)
    at = dlog_a + (own.row + own.t * own.H) * tl.cdiv(TILE.K, TILE.BK) + own.tile
    tl.store(at, dgate, mask=own.t < own.end)


@triton.jit
def store_phases(q, k, dq_tile, inner, carried, turns, dphase, own, TILE):
    """Store the gradient of phases. carried: dk through states."""
    k_turned = load_turned(k, own, TILE)
    local = load_turned(q, own, TILE) * dq_tile + k_turned * inner
    through = -k_turned * carried
    dturn = tl.cumsum(local, axis=0, reverse=True) + tl.cumsum(through, axis=0) - through
    store_steps(dphase, dturn + load_ends(turns, own, TILE)[None, :], own, TILE)
