"""Gradients of queries, keys and gates after a walk: all chunks beside each other."""

from __future__ import annotations

import triton
import triton.language as tl

from .anchors import linked, load_spans
from .blocks import KEY, NONE, SCALAR, gate_base, gate_stride, head_offset, load_rows, locate
from .chunks import COUNTS


@triton.jit(do_not_specialize=COUNTS)
def la_grads(
    x, w, v, do, log_a, spans, resets, factors, wide, states, adjoints, dscores, boundary, dq, dk, dlog_a,
    T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, dk and the gates' gradient from what each chunk reads: its states and their adjoints.

    x, w: the queries and keys of the walk. d log_a_t = Σ_{s ≥ t in the chunk} (q_s · dq_s - k_s · dk_s) +
    adjoint · state at the chunk's end: by channel for key gates (B, T, H, K), else one partial sum per tile
    of keys (B, T, H, tiles). Of a wide chunk only dscores (B·H, chunks, C, C) and boundary (B·H, chunks, K)
    are written, from which `la_grad_key` makes the rest.
    """
    tile, chunk, bh = locate(H, NT, tl.cdiv(K, BK))
    row = head_offset(bh, T, H)
    steps = tl.arange(0, C)
    t = chunk * C + steps
    keys = tile * BK + tl.arange(0, BK)
    at = bh * NT + chunk
    dscore = tl.zeros((C, C), dtype=tl.float32)
    dx = tl.zeros((C, BK), dtype=tl.float32)
    dw = tl.zeros((C, BK), dtype=tl.float32)
    ends = tl.zeros((BK,), dtype=tl.float32)
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        do_tile = load_rows(do + row * V, t, T, H * V, values, V)
        v_tile = load_rows(v + row * V, t, T, H * V, values, V)
        state = load_rows(states + at * K * V, keys, K, V, values, V)
        adjoint = load_rows(adjoints + at * K * V, keys, K, V, values, V)
        dscore = tl.dot(do_tile, tl.trans(v_tile), dscore, input_precision=PRECISION)
        dx = tl.dot(do_tile, tl.trans(state), dx, input_precision=PRECISION)
        dw = tl.dot(v_tile, tl.trans(adjoint), dw, input_precision=PRECISION)
        if GATE != NONE:
            ends += tl.sum(state.to(tl.float32) * adjoint.to(tl.float32), axis=1)
    x_tile = load_rows(x + row * K, t, T, H * K, keys, K)
    w_tile = load_rows(w + row * K, t, T, H * K, keys, K)
    dscore = tl.where(steps[:, None] >= steps[None, :], dscore, 0.0)
    inside = (t < T)[:, None] & (keys < K)[None, :]
    if GATE == KEY:
        between = tl.load(factors + at * 3 * K + K + keys, mask=keys < K, other=0.0)
        ends = ends * between + tl.sum(w_tile.to(tl.float32) * dw, axis=0)
        far = tl.load(wide + at) != 0
        near = not far
        inside = inside & near
        cells = at * C * C + steps[:, None] * C + steps[None, :]
        tl.store(dscores + cells, dscore.to(dscores.dtype.element_ty), mask=far & (tile == 0))
        tl.store(boundary + at * K + keys, ends, mask=(keys < K) & far)
    if GATE == SCALAR:
        span, reset, span_end, reset_end = load_spans(spans, resets, at, True, C)
        dx = dx * linked(0.0, 0, span, reset)[:, None]
        dw = dw * linked(span, reset, span_end, reset_end)[:, None]
        total = linked(0.0, 0, span_end, reset_end)
        end = tl.sum(total * ends, axis=0)
        carried = tl.sum(w_tile.to(tl.float32) * dw, axis=1)
        factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
        dscore = dscore * tl.where(steps[:, None] >= steps[None, :], factor, 0.0)
    weights = dscore.to(x.dtype.element_ty)
    dx = tl.dot(weights, w_tile, dx, input_precision=PRECISION)
    dw = tl.dot(tl.trans(weights), x_tile, dw, input_precision=PRECISION)
    rows = row * K + t[:, None] * H * K + keys[None, :]
    if GATE == KEY:
        local = x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * dw
        dgate = tl.cumsum(local, axis=0, reverse=True) + ends[None, :]
        tl.store(dlog_a + rows, dgate, mask=inside)
        base, stride = gate_base(log_a, bh, T, H, K, KEY, CONST), gate_stride(H, K, KEY, CONST)
        gates = tl.where(near, load_rows(base, t, T, stride, keys, K), 0.0)
        middle = tl.sum(tl.where((steps < C // 2)[:, None], gates, 0.0), axis=0)
        from_middle = tl.cumsum(gates, axis=0) - middle[None, :]
        dx = dx * tl.exp(from_middle)
        dw = dw * tl.exp(-from_middle)
    if GATE == SCALAR:
        local = tl.sum(x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * dw, axis=1)
        # two sums over steps, and no scan: Triton cannot lay those out on sm_100
        later = tl.where(steps[:, None] <= steps[None, :], local[None, :], 0.0)
        dgate = tl.sum(later + carried[None, :], axis=1) + end
        base, stride = gate_base(log_a, bh, T, H, K, SCALAR, CONST), gate_stride(H, K, SCALAR, CONST)
        dgate = tl.where(tl.load(base + t * stride, mask=t < T, other=0.0) == float("-inf"), 0.0, dgate)
        tl.store(dlog_a + (row + t * H) * tl.cdiv(K, BK) + tile, dgate, mask=t < T)
    tl.store(dq + rows, dx.to(dq.dtype.element_ty), mask=inside)
    tl.store(dk + rows, dw.to(dk.dtype.element_ty), mask=inside)
