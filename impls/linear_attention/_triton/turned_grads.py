"""Gradients of queries, keys, gates and phases after a walk with complex key gates, turned back."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import cos_sin_of_turns, turns_of
from ..._triton.sequences import chunk_steps, head_offset
from .blocks import (
    KEY,
    block_starts,
    decay,
    gate_base,
    gate_stride,
    load_chunk,
    load_rows,
    locate_heads_first,
    store_starts,
)
from .chunks import COUNTS
from .walk_grads import summed


@triton.jit(do_not_specialize=COUNTS)
def la_grads_turned(
    x, w, k, v, do, log_a, phase, angles, factors, wide, states, adjoints, dscores, boundary, turns,
    dq_states, dk_states, dq, dk, dlog_a, dphase, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, KP: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, TO: tl.constexpr, CONST: tl.constexpr, FIXED: tl.constexpr, TURN: tl.constexpr,
    PRECISION: tl.constexpr, PART: tl.constexpr, NVIDIA: tl.constexpr,
):  # fmt: skip
    """Do what `la_grads` does for both parts of BK complex channels, K = 2 KG, and turn the results back.

    x, w: the queries and keys of the walk, of K channels; phase (B, T, H, KP), or (FIXED) (H, KP), and angles
    are those by which they were turned (see `turns`). dq, dk: of TO channels, K or (without imaginary parts)
    KG. dlog_a and (TURN) dphase, (B, T, H, KG) float32: of both parts together.

    Of a wide chunk the parts of dq and dk through states are written to dq_states and dk_states, of K
    channels and not turned back, and boundary and turns, (B·H, chunks, C / SUB, KG), are sums of both parts.
    """
    tile, chunk, bh = locate_heads_first(H, NT, tl.cdiv(KG, BK))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    begin, left = head_offset(bh, T, H) + start * H, end - start
    steps = tl.arange(0, C)
    keys = tile * BK + tl.arange(0, BK)
    at = bh * NT + chunk
    dscore = tl.zeros((C, C), dtype=tl.float32)
    dx_re = tl.zeros((C, BK), dtype=tl.float32)
    dx_im = tl.zeros((C, BK), dtype=tl.float32)
    dw_re = tl.zeros((C, BK), dtype=tl.float32)
    dw_im = tl.zeros((C, BK), dtype=tl.float32)
    ends = tl.zeros((BK,), dtype=tl.float32)
    turn_ends = tl.zeros((BK,), dtype=tl.float32)
    real, imaginary = at * K * V, (at * K + KG) * V
    for first in range(0, V, BV):
        values = first + tl.arange(0, BV)
        do_tile = load_chunk(do + begin * V, left, H * V, values, C, V)
        v_tile = load_chunk(v + begin * V, left, H * V, values, C, V)
        state_re = load_rows(states + real, keys, KG, V, values, V)
        state_im = load_rows(states + imaginary, keys, KG, V, values, V)
        adjoint_re = load_rows(adjoints + real, keys, KG, V, values, V)
        adjoint_im = load_rows(adjoints + imaginary, keys, KG, V, values, V)
        dscore = tl.dot(do_tile, tl.trans(v_tile), dscore, input_precision=PRECISION)
        dx_re = tl.dot(do_tile, tl.trans(state_re), dx_re, input_precision=PRECISION)
        dx_im = tl.dot(do_tile, tl.trans(state_im), dx_im, input_precision=PRECISION)
        dw_re = tl.dot(v_tile, tl.trans(adjoint_re), dw_re, input_precision=PRECISION)
        dw_im = tl.dot(v_tile, tl.trans(adjoint_im), dw_im, input_precision=PRECISION)
        s_re, s_im = state_re.to(tl.float32), state_im.to(tl.float32)
        a_re, a_im = adjoint_re.to(tl.float32), adjoint_im.to(tl.float32)
        ends += tl.sum(s_re * a_re + s_im * a_im, axis=1)
        if TURN:
            turn_ends += tl.sum(s_re * a_im - s_im * a_re, axis=1)
    dscore = tl.where(steps[:, None] >= steps[None, :], dscore, 0.0)
    inside = (steps < left)[:, None] & (keys < KG)[None, :]
    between = tl.load(factors + at * 3 * K + K + keys, mask=keys < KG, other=0.0)
    ends = ends * between
    turn_ends = turn_ends * between
    stride = gate_stride(H, KG, KEY, CONST)
    base = gate_base(log_a, bh, T, H, KG, KEY, CONST) + start * stride
    if tl.load(wide + at) != 0:
        cells = at * C * C + steps[:, None] * C + steps[None, :]
        tl.store(dscores + cells, dscore.to(dscores.dtype.element_ty), mask=tile == 0)
        to_end = tl.exp(decay(base, 0, left, stride, keys, KG, C, KEY, True))
        dw_re, dw_im = dw_re * to_end, dw_im * to_end
        begin_factor = tl.load(factors + at * 3 * K + keys, mask=keys < KG, other=0.0)
        lead = begin_factor * begin_factor
        k_re = load_chunk(k + begin * K, left, H * K, keys, C, KG).to(tl.float32)
        k_im = load_chunk(k + begin * K + KG, left, H * K, keys, C, KG).to(tl.float32)
        starts = block_starts(k_re * dw_re + k_im * dw_im, ends * lead, C, BK)
        store_starts(boundary, starts, at, keys, True, KG, C)
        if TURN:
            starts = block_starts(k_re * dw_im - k_im * dw_re, turn_ends * lead, C, BK)
            store_starts(turns, starts, at, keys, True, KG, C)
        from_start = tl.exp(decay(base, 0, left, stride, keys, KG, C, KEY, False))
        rows = begin * K + (steps[:, None] * (H * K) + keys[None, :])
        tl.store(dq_states + rows, (dx_re * from_start).to(dq_states.dtype.element_ty), mask=inside)
        tl.store(dq_states + KG + rows, (dx_im * from_start).to(dq_states.dtype.element_ty), mask=inside)
        tl.store(dk_states + rows, dw_re.to(dk_states.dtype.element_ty), mask=inside)
        tl.store(dk_states + KG + rows, dw_im.to(dk_states.dtype.element_ty), mask=inside)
        return

    x_re = load_chunk(x + begin * K, left, H * K, keys, C, KG)
    x_im = load_chunk(x + begin * K + KG, left, H * K, keys, C, KG)
    w_re = load_chunk(w + begin * K, left, H * K, keys, C, KG)
    w_im = load_chunk(w + begin * K + KG, left, H * K, keys, C, KG)
    ends += tl.sum(w_re.to(tl.float32) * dw_re + w_im.to(tl.float32) * dw_im, axis=0)
    if TURN:
        turn_ends += tl.sum(w_re.to(tl.float32) * dw_im - w_im.to(tl.float32) * dw_re, axis=0)
    weights = dscore.to(x.dtype.element_ty)
    dx_re = tl.dot(weights, w_re, dx_re, input_precision=PRECISION)
    dx_im = tl.dot(weights, w_im, dx_im, input_precision=PRECISION)
    weights = tl.trans(weights)
    dw_re = tl.dot(weights, x_re, dw_re, input_precision=PRECISION)
    dw_im = tl.dot(weights, x_im, dw_im, input_precision=PRECISION)
    # as in `blocks`, but for terms that cancel: decay is mild here, so they leave enough
    x_re, x_im = x_re.to(tl.float32), x_im.to(tl.float32)
    w_re, w_im = w_re.to(tl.float32), w_im.to(tl.float32)
    later = (steps[None, :] >= steps[:, None]).to(PART)
    rows = begin * KG + (steps[:, None] * (H * KG) + keys[None, :])
    local = x_re * dx_re + x_im * dx_im - w_re * dw_re - w_im * dw_im
    tl.store(dlog_a + rows, summed(later, local, PART) + ends[None, :], mask=inside)
    if TURN:
        local = x_im * dx_re - x_re * dx_im + w_im * dw_re - w_re * dw_im
        tl.store(dphase + rows, summed(later, local, PART) + turn_ends[None, :], mask=inside)

    gates = load_chunk(base, left, stride, keys, C, KG)
    earlier = steps[None, :] <= steps[:, None]
    to_middle = (steps[None, :] < C // 2).to(tl.float32)
    sums = summed((earlier.to(tl.float32) - to_middle).to(PART), gates, PART)
    columns = keys if KP > 1 else keys * 0
    row = bh % H * KP if FIXED else begin * KP + steps[:, None] * (H * KP)
    angle = tl.load(phase + row + columns[None, :], mask=inside, other=0.0)
    before_chunk = tl.load(angles + (bh * (NT + 1) + chunk) * KP + columns, mask=keys < KG, other=0.0)
    # two numbers of float16 hold 22 bits of a turn
    turned = summed(earlier.to(tl.float16), turns_of(angle), tl.float16)
    cos, sin = cos_sin_of_turns(turned + before_chunk[None, :] * 0.15915494309189535, NVIDIA)
    rows = begin * TO + (steps[:, None] * (H * TO) + keys[None, :])
    factor = tl.exp(sums)
    store_back(dq, rows, dx_re * factor, dx_im * factor, cos, sin, inside, KG, TO)
    factor = tl.exp(-sums)
    store_back(dk, rows, dw_re * factor, dw_im * factor, cos, sin, inside, KG, TO)


@triton.jit
def store_back(out, rows, re, im, cos, sin, inside, KG: tl.constexpr, TO: tl.constexpr):
    """Turn gradients back, and write TO channels of them."""
    kind = out.dtype.element_ty
    tl.store(out + rows, (re * cos - im * sin).to(kind), mask=inside)
    if TO > KG:
        tl.store(out + KG + rows, (im * cos + re * sin).to(kind), mask=inside)
