"""Gradients of queries, keys and gates after a walk: all chunks beside each other."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps, head_offset
from .anchors import linked, load_spans
from .blocks import (
    KEY,
    NONE,
    SCALAR,
    block_starts,
    decay,
    gate_base,
    gate_columns,
    gate_stride,
    load_chunk,
    load_rows,
    locate_heads_first,
    partners,
    store_starts,
)
from .chunks import COUNTS
from .heads import key_head_offset


@triton.jit
def summed(ones, x, PART: tl.constexpr):
    """The product of a matrix of 0, 1 and -1 with float32 x, which is split into two numbers of dtype PART.

    Sums over steps by tensor cores: Triton's scans over several warps go through shared memory step by step.
    """
    high = x.to(PART)
    low = (x - high.to(tl.float32)).to(PART)
    return tl.dot(ones, low, tl.dot(ones, high, input_precision="ieee"), input_precision="ieee")


@triton.jit(do_not_specialize=COUNTS)
def la_grads(
    x, w, k, v, do, log_a, spans, resets, edges, factors, wide, states, adjoints, dscores, boundary, turns,
    dq, dk, dlog_a, dphase, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, TURN: tl.constexpr, FADED: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """dq, dk and the gates' gradient from what each chunk reads: its states and their adjoints.

    x, w: the queries and keys of the walk. d log_a: see `blocks`; by channel for key gates (B, T, H, K), else
    one partial sum per tile of keys (B, T, H, tiles). PART: see `summed`. For a wide chunk, the parts of dq
    and dk through states are written, dscores (B·H, chunks, C, C) and boundary (see `block_starts`), from
    which `la_grad_key` makes the rest. TURN: the phase's gradient in the same way, dphase (B, T, H, K) and
    turns, with J (see the module `turns`) before queries, and -J before keys and states. FADED: v and do have
    the decay of scalar gates from the chunk's middle in them, where the chunk is not wide. SHARED: heads per
    key head, 1 for key gates; dq and dk are those of each head.
    """
    tile, chunk, bh = locate_heads_first(H, NT, tl.cdiv(K, BK))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    begin, left = head_offset(bh, T, H) + start * H, end - start
    steps = tl.arange(0, C)
    keys = tile * BK + tl.arange(0, BK)
    at = bh * NT + chunk
    dscore = tl.zeros((C, C), dtype=tl.float32)
    dx = tl.zeros((C, BK), dtype=tl.float32)
    dw = tl.zeros((C, BK), dtype=tl.float32)
    ends = tl.zeros((BK,), dtype=tl.float32)
    if TURN:
        partner, sign = partners(keys, K)
        turn_ends = tl.zeros((BK,), dtype=tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        do_tile = load_chunk(do + begin * V, left, H * V, values, C, V)
        v_tile = load_chunk(v + begin * V, left, H * V, values, C, V)
        state = load_rows(states + at * K * V, keys, K, V, values, V)
        adjoint = load_rows(adjoints + at * K * V, keys, K, V, values, V)
        dscore = tl.dot(do_tile, tl.trans(v_tile), dscore, input_precision=PRECISION)
        dx = tl.dot(do_tile, tl.trans(state), dx, input_precision=PRECISION)
        dw = tl.dot(v_tile, tl.trans(adjoint), dw, input_precision=PRECISION)
        if GATE != NONE:
            ends += tl.sum(state.to(tl.float32) * adjoint.to(tl.float32), axis=1)
        if TURN:
            across = load_rows(states + at * K * V, partner, K, V, values, V).to(tl.float32)
            turn_ends -= tl.sum(across * adjoint.to(tl.float32), axis=1) * sign
    key_begin, key_heads = begin, H
    if SHARED > 1:
        key_heads = H // SHARED
        key_begin = key_head_offset(bh, T, H, SHARED) + start * key_heads
    x_tile = load_chunk(x + key_begin * K, left, key_heads * K, keys, C, K)
    w_tile = load_chunk(w + key_begin * K, left, key_heads * K, keys, C, K)
    dscore = tl.where(steps[:, None] >= steps[None, :], dscore, 0.0)
    inside = (steps < left)[:, None] & (keys < K)[None, :]
    rows = begin * K + (steps[:, None] * (H * K) + keys[None, :])
    if GATE == KEY:
        between = tl.load(factors + at * 3 * K + K + keys, mask=keys < K, other=0.0)
        ends = ends * between
        if TURN:
            turn_ends = turn_ends * between
        gated = gate_columns(keys, K, KG)
        stride = gate_stride(H, KG, KEY, CONST)
        base = gate_base(log_a, bh, T, H, KG, KEY, CONST) + start * stride
        if tl.load(wide + at) != 0:
            cells = at * C * C + steps[:, None] * C + steps[None, :]
            tl.store(dscores + cells, dscore.to(dscores.dtype.element_ty), mask=tile == 0)
            to_end = tl.exp(decay(base, 0, left, stride, gated, KG, C, KEY, True))
            dw = dw * to_end
            begin_factor = tl.load(factors + at * 3 * K + keys, mask=keys < K, other=0.0)
            ends = ends * begin_factor * begin_factor
            k_tile = load_chunk(k + begin * K, left, H * K, keys, C, K).to(tl.float32)
            store_starts(boundary, block_starts(k_tile * dw, ends, C, BK), at, keys, True, K, C)
            if TURN:
                turn_ends = turn_ends * begin_factor * begin_factor
                k_tile = load_chunk(k + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
                store_starts(turns, block_starts(-k_tile * dw, turn_ends, C, BK), at, keys, True, K, C)
            dx = dx * tl.exp(decay(base, 0, left, stride, gated, KG, C, KEY, False))
            tl.store(dq + rows, dx.to(dq.dtype.element_ty), mask=inside)
            tl.store(dk + rows, dw.to(dk.dtype.element_ty), mask=inside)
            return
        ends += tl.sum(w_tile.to(tl.float32) * dw, axis=0)
    if GATE == SCALAR:
        span, reset, span_start, span_end, reset_end = load_spans(spans, resets, edges, at, True, C)
        from_start, to_end = linked(span_start, 0, span, reset), linked(span, reset, span_end, reset_end)
        if FADED:
            near = tl.load(wide + at) == 0
            from_start = tl.where(near, tl.exp(-span_start), from_start)
            to_end = tl.where(near, tl.exp(span_end), to_end)
        dx = dx * from_start[:, None]
        dw = dw * to_end[:, None]
        total = linked(span_start, 0, span_end, reset_end)
        through = tl.sum(total * ends, axis=0)
        carried = tl.sum(w_tile.to(tl.float32) * dw, axis=1)
        if TURN:
            turned = load_chunk(w + begin * K, left, H * K, partner, C, K).to(tl.float32) * -sign[None, :]
            before = (steps[None, :] < steps[:, None]).to(PART)
            dturn = summed(before, turned * dw, PART) + (total * turn_ends)[None, :]
        if tl.load(wide + at) != 0:
            factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
            factor = tl.where(steps[:, None] > steps[None, :], factor, 0.0)
        elif FADED:
            factor = tl.full((C, C), 1.0, dtype=tl.float32)
        else:
            factor = tl.exp(span)[:, None] * tl.exp(-span)[None, :]
        same = tl.sum(tl.where(steps[:, None] == steps[None, :], dscore, 0.0), axis=1)[:, None]
        weights = tl.where(steps[:, None] > steps[None, :], dscore * factor, 0.0).to(x.dtype.element_ty)
        dx = tl.dot(weights, w_tile, dx, input_precision=PRECISION)
        inner = tl.dot(tl.trans(weights), x_tile, input_precision=PRECISION)
        if TURN:
            turned = load_chunk(w + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
            local_turn = turned * inner
            turned = load_chunk(x + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
            local_turn += turned * dx
            dturn += summed((steps[None, :] >= steps[:, None]).to(PART), local_turn, PART)
            tl.store(dphase + rows, dturn, mask=inside)
        local = tl.sum(x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * inner, axis=1)
        # a sum over steps, and no scan: Triton cannot lay those out on sm_100
        pairs = tl.where(steps[:, None] <= steps[None, :], local[None, :], carried[None, :])
        dgate = tl.sum(pairs, axis=1) + through
        stride = gate_stride(H, K, SCALAR, CONST)
        base = gate_base(log_a, bh, T, H, K, SCALAR, CONST) + start * stride
        gates = tl.load(base + steps * stride, mask=steps < left, other=0.0)
        dgate = tl.where(gates == float("-inf"), 0.0, dgate)
        tl.store(dlog_a + (begin + steps * H) * tl.cdiv(K, BK) + tile, dgate, mask=steps < left)
        dx += same * w_tile.to(tl.float32)
        dw += inner + same * x_tile.to(tl.float32)
    else:
        if TURN:
            turned = load_chunk(w + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
            turn_ends -= tl.sum(turned * dw, axis=0)
        weights = dscore.to(x.dtype.element_ty)
        dx = tl.dot(weights, w_tile, dx, input_precision=PRECISION)
        dw = tl.dot(tl.trans(weights), x_tile, dw, input_precision=PRECISION)
    if TURN and GATE != SCALAR:
        later = (steps[None, :] >= steps[:, None]).to(PART)
        turned = load_chunk(w + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
        local_turn = turned * dw
        turned = load_chunk(x + begin * K, left, H * K, partner, C, K).to(tl.float32) * sign[None, :]
        dturn = summed(later, local_turn + turned * dx, PART) + turn_ends[None, :]
        tl.store(dphase + rows, dturn, mask=inside)
    if GATE == KEY:
        # as in `blocks`, but for terms that cancel: decay is mild here, so they leave enough
        local = x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * dw
        later = (steps[None, :] >= steps[:, None]).to(PART)
        tl.store(dlog_a + rows, summed(later, local, PART) + ends[None, :], mask=inside)
        gates = load_chunk(base, left, stride, gated, C, KG)
        to_step = (steps[None, :] <= steps[:, None]).to(tl.float32)
        to_middle = (steps[None, :] < C // 2).to(tl.float32)
        sums = summed((to_step - to_middle).to(PART), gates, PART)
        dx = dx * tl.exp(sums)
        dw = dw * tl.exp(-sums)
    tl.store(dq + rows, dx.to(dq.dtype.element_ty), mask=inside)
    tl.store(dk + rows, dw.to(dk.dtype.element_ty), mask=inside)
