"""Kernels over whole chunks: scores, state increments, the carry, and the products with states."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.packed import counted
from ..._triton.sequences import RESET, chunk_steps, head_offset, sequence_of
from .blocks import (
    KEY,
    NONE,
    SCALAR,
    decay,
    first_decay,
    gate_base,
    gate_columns,
    gate_stride,
    load_rows,
    locate,
    partners,
    total_decay,
)

COUNTS = ("T", "H", "NT")


@triton.jit(do_not_specialize=COUNTS)
def la_scores(
    x, y, log_a, scores, T, H, NT, places,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """scores[i, j] = (x_i · y_j) · decay from j to i for j ≤ i, else 0; per head and chunk, (C, C)."""
    _, chunk, bh = locate(H, NT, 1)
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    row = head_offset(bh, T, H)
    steps = tl.arange(0, C)
    t = start + steps
    acc = tl.zeros((C, C), dtype=tl.float32)
    for first in range(0, K, BK):
        cols = first + tl.arange(0, BK)
        x_tile = load_rows(x + row * K, t, end, H * K, cols, K)
        y_tile = load_rows(y + row * K, t, end, H * K, cols, K)
        acc = tl.dot(x_tile, tl.trans(y_tile), acc, input_precision=PRECISION)
    lower = steps[:, None] >= steps[None, :]
    if GATE == SCALAR:
        gates = tl.load(
            gate_base(log_a, bh, T, H, K, GATE, CONST) + t * gate_stride(H, K, GATE, CONST),
            mask=t < end, other=0.0,
        )  # fmt: skip
        reset = gates < RESET
        # resets are counted, not summed: the span of the rest stays small, so a difference is exact enough
        gates = tl.where(reset, 0.0, gates)
        coarse = gates
        if x.dtype.element_ty == tl.float32:
            # in two parts: sums of one are exact, those of the other so small that their digits suffice
            coarse = tl.floor(gates * 256.0 + 0.5) * 0.00390625
        span = tl.cumsum(coarse, axis=0)
        resets = tl.cumsum(reset.to(tl.int32), axis=0)
        linked = lower & (resets[:, None] == resets[None, :])
        exponent = span[:, None] - span[None, :]
        if x.dtype.element_ty == tl.float32:
            fine = tl.cumsum(gates - coarse, axis=0)
            exponent += fine[:, None] - fine[None, :]
        exponent = tl.where(linked, exponent, float("-inf"))
        acc = acc * tl.exp(exponent)
    acc = tl.where(lower, acc, 0.0)
    at = (bh * NT + chunk) * C * C + steps[:, None] * C + steps[None, :]
    tl.store(scores + at, acc.to(scores.dtype.element_ty))


@triton.jit(do_not_specialize=COUNTS)
def la_increment(
    x, y, log_a, increments, totals, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ_t (x_t ⊙ decay to the chunk's end) y_tᵀ; REVERSE: from its start. Also the chunk's log decay."""
    tile, chunk, bh = locate(H, NT, tl.cdiv(K, BK) * tl.cdiv(V, BV))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    row = head_offset(bh, T, H)
    t = start + tl.arange(0, C)
    keys = (tile // tl.cdiv(V, BV)) * BK + tl.arange(0, BK)
    values = (tile % tl.cdiv(V, BV)) * BV + tl.arange(0, BV)
    x_tile = load_rows(x + row * K, t, end, H * K, keys, K)
    y_tile = load_rows(y + row * V, t, end, H * V, values, V)
    if GATE != NONE:
        base, stride = gate_base(log_a, bh, T, H, KG, GATE, CONST), gate_stride(H, KG, GATE, CONST)
        gated = gate_columns(keys, K, KG)
        # REVERSE: from the first step, whose own decay may leave too little for half types
        factor = tl.exp(decay(base, start, end, stride, gated, KG, C, GATE, not REVERSE, REVERSE))
        x_tile = (x_tile.to(tl.float32) * factor).to(x.dtype.element_ty)
    acc = tl.dot(tl.trans(x_tile), y_tile, input_precision=PRECISION)
    if GATE != NONE and REVERSE:
        first = first_decay(base, start, end, stride, gated, KG, GATE)
        acc = acc * (first[:, None] if GATE == KEY else first)
    at = (bh * NT + chunk) * K * V + keys[:, None] * V + values[None, :]
    tl.store(increments + at, acc, mask=(keys < K)[:, None] & (values < V)[None, :])
    if GATE != NONE and not REVERSE:  # noqa: SIM102, as only this test is of constants
        if tile % tl.cdiv(V, BV) == 0:
            total = total_decay(base, start, end, stride, gated, KG, C, GATE)
            if GATE == KEY:
                tl.store(totals + (bh * NT + chunk) * K + keys, total, mask=keys < K)
            else:
                tl.store(totals + bh * NT + chunk, total)


@triton.jit(do_not_specialize=COUNTS)
def la_carry(
    first, increments, totals, states, last, starts, boundary, turns, T, H, NT, bounds,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, REVERSE: tl.constexpr, TURN: tl.constexpr, HAS_FIRST: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Carry a (BK, V) strip of the state over the chunks, storing the state before each.

    REVERSE carries the adjoint from the last chunk to the first and stores, for gate gradients,
    boundary[chunk] = rowsum(adjoint after the chunk ⊙ its decay ⊙ state before it). TURN: also
    turns, the same with -J (see the module `turns`) times the state.
    """
    pid = tl.program_id(0).to(tl.int64)
    strip, bh = pid % tl.cdiv(K, BK), pid // tl.cdiv(K, BK)
    keys, values = strip * BK + tl.arange(0, BK), tl.arange(0, BV)
    mask = (keys < K)[:, None] & (values < V)[None, :]
    inside = keys[:, None] * V + values[None, :]
    state = tl.zeros((BK, BV), dtype=tl.float32)
    if HAS_FIRST:
        state += tl.load(first + bh * K * V + inside, mask=mask, other=0.0)
    count, origin = NT, bh * NT
    if bounds is not None:
        _, _, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
        count = counted(chunks)
    for step in tl.range(count, num_stages=STAGES):
        chunk = origin + (count - 1 - step if REVERSE else step)
        tl.store(states + chunk * K * V + inside, state.to(states.dtype.element_ty), mask=mask)
        if GATE == KEY:
            gate = tl.load(totals + chunk * K + keys, mask=keys < K, other=0.0)
            state = state * tl.exp(gate)[:, None]
        if GATE == SCALAR:
            state = state * tl.exp(tl.load(totals + chunk))
        if REVERSE and GATE != NONE:
            start = tl.load(starts + chunk * K * V + inside, mask=mask, other=0.0).to(tl.float32)
            tl.store(boundary + chunk * K + keys, tl.sum(state * start, axis=1), mask=keys < K)
        if REVERSE and TURN:
            partner, sign = partners(keys, K)
            across = partner[:, None] * V + values[None, :]
            turned = -tl.load(starts + chunk * K * V + across, mask=mask, other=0.0).to(tl.float32)
            tl.store(turns + chunk * K + keys, sign * tl.sum(state * turned, axis=1), mask=keys < K)
        state += tl.load(increments + chunk * K * V + inside, mask=mask, other=0.0)
    tl.store(last + bh * K * V + inside, state, mask=mask)


@triton.jit(do_not_specialize=COUNTS)
def la_output(
    x, y, log_a, states, scores, out, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """o = (x ⊙ decay from the chunk's start) S + scores y; REVERSE: decay to its end, transposed scores."""
    tile, chunk, bh = locate(H, NT, tl.cdiv(V, BV))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    row = head_offset(bh, T, H)
    steps = tl.arange(0, C)
    t = start + steps
    values = tile * BV + tl.arange(0, BV)
    acc = tl.zeros((C, BV), dtype=tl.float32)
    for first in range(0, K, BK):
        keys = first + tl.arange(0, BK)
        x_tile = load_rows(x + row * K, t, end, H * K, keys, K)
        if GATE != NONE:
            base, stride = gate_base(log_a, bh, T, H, KG, GATE, CONST), gate_stride(H, KG, GATE, CONST)
            gated = gate_columns(keys, K, KG)
            factor = tl.exp(decay(base, start, end, stride, gated, KG, C, GATE, REVERSE))
            x_tile = (x_tile.to(tl.float32) * factor).to(x.dtype.element_ty)
        state = load_rows(states + (bh * NT + chunk) * K * V, keys, K, V, values, V)
        acc = tl.dot(x_tile, state, acc, input_precision=PRECISION)
    lower = steps[:, None] >= steps[None, :]
    at = (bh * NT + chunk) * C * C + steps[:, None] * C + steps[None, :]
    weights = tl.load(scores + at, mask=lower, other=0.0)
    if REVERSE:
        weights = tl.trans(weights)
    y_tile = load_rows(y + row * V, t, end, H * V, values, V)
    acc = tl.dot(weights, y_tile, acc, input_precision=PRECISION)
    mask = (t < end)[:, None] & (values < V)[None, :]
    tl.store(out + row * V + t[:, None] * H * V + values[None, :], acc.to(out.dtype.element_ty), mask=mask)
