"""Kernels that prepare a walk: queries and keys with their decay in them, or the sums of scalar gates.

Key gates: with G_t the sum of log gates from the chunk's start to step t and m its middle,
q_i · k_j ⊙ exp(G_i - G_j) = (q_i ⊙ exp(G_i - G_m)) · (k_j ⊙ exp(G_m - G_j)): one plain product of two
prepared operands, as long as neither factor leaves the operands' range. A chunk in which one would is wide:
its queries decay from the chunk's start, its keys to the chunk's end, and its scores come from
`la_scores_key`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import (
    KEY,
    RESET,
    SCALAR,
    decay,
    gate_base,
    gate_stride,
    head_offset,
    load_rows,
    locate,
)
from .chunks import COUNTS


@triton.jit(do_not_specialize=COUNTS)
def la_anchor(
    q, k, log_a, late, early, factors, wide, T, H, NT,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, CONST: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Prepared queries `late` and keys `early`, as q and k; and what happens to the state in a chunk.

    factors: (B·H, chunks, 3, K) float32. The state is multiplied by the first before it is read, by the
    second before the chunk's keys are added, by the third after. wide: (B·H, chunks) int32.
    """
    _, chunk, bh = locate(H, NT, 1)
    row = head_offset(bh, T, H) * K
    base, stride = gate_base(log_a, bh, T, H, K, KEY, CONST), gate_stride(H, K, KEY, CONST)
    steps = tl.arange(0, C)
    t = chunk * C + steps
    at = bh * NT + chunk
    begins = (steps < C // 2)[:, None]
    most = 0.0
    for tile in range(0, K, BK):
        keys = tile + tl.arange(0, BK)
        gates = load_rows(base, t, T, stride, keys, K)
        first = tl.sum(tl.where(begins, gates, 0.0), axis=0)
        second = tl.sum(tl.where(begins, 0.0, gates), axis=0)
        most = tl.maximum(most, tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=0))
    far = most > LIMIT
    tl.store(wide + at, far.to(tl.int32))
    for tile in range(0, K, BK):
        keys = tile + tl.arange(0, BK)
        gates = load_rows(base, t, T, stride, keys, K)
        sums = tl.cumsum(gates, axis=0)
        first = tl.sum(tl.where(begins, gates, 0.0), axis=0)
        second = tl.sum(tl.where(begins, 0.0, gates), axis=0)
        if far:
            late_factor = tl.exp(sums)
            early_factor = tl.exp(decay(base, chunk * C, T, stride, keys, K, C, KEY, True))
            before, between, after = tl.zeros_like(first), first + second, tl.zeros_like(first)
        else:
            late_factor = tl.exp(sums - first[None, :])
            early_factor = tl.exp(first[None, :] - sums)
            before, between, after = first, tl.zeros_like(first), second
        q_tile = load_rows(q + row, t, T, H * K, keys, K).to(tl.float32)
        k_tile = load_rows(k + row, t, T, H * K, keys, K).to(tl.float32)
        mask = (t < T)[:, None] & (keys < K)[None, :]
        rows = row + t[:, None] * H * K + keys[None, :]
        tl.store(late + rows, (q_tile * late_factor).to(late.dtype.element_ty), mask=mask)
        tl.store(early + rows, (k_tile * early_factor).to(early.dtype.element_ty), mask=mask)
        cells = factors + at * 3 * K + keys
        tl.store(cells, tl.exp(before), mask=keys < K)
        tl.store(cells + K, tl.exp(between), mask=keys < K)
        tl.store(cells + 2 * K, tl.exp(after), mask=keys < K)


@triton.jit(do_not_specialize=COUNTS)
def la_spans(log_a, spans, resets, T, H, NT, K: tl.constexpr, C: tl.constexpr, CONST: tl.constexpr):
    """Sums of scalar log gates from the chunk's start to each step, and how many resets are among them.

    spans, float32, and resets, int32: (B·H, chunks, C). Resets are counted and not summed, so that the span
    of the rest stays small and a difference of two sums is exact enough.
    """
    _, chunk, bh = locate(H, NT, 1)
    steps = tl.arange(0, C)
    t = chunk * C + steps
    base, stride = gate_base(log_a, bh, T, H, K, SCALAR, CONST), gate_stride(H, K, SCALAR, CONST)
    gates = tl.load(base + t * stride, mask=t < T, other=0.0)
    reset = gates < RESET
    at = (bh * NT + chunk) * C + steps
    tl.store(spans + at, tl.cumsum(tl.where(reset, 0.0, gates), axis=0))
    tl.store(resets + at, tl.cumsum(reset.to(tl.int32), axis=0))


@triton.jit
def load_spans(spans, resets, at, live, C: tl.constexpr):
    """Sums and resets of a chunk, and those at its end; zeros where the chunk is not live."""
    steps = tl.arange(0, C)
    span = tl.load(spans + at * C + steps, mask=live, other=0.0)
    reset = tl.load(resets + at * C + steps, mask=live, other=0)
    span_end = tl.load(spans + at * C + C - 1, mask=live, other=0.0)
    reset_end = tl.load(resets + at * C + C - 1, mask=live, other=0)
    return span, reset, span_end, reset_end


@triton.jit
def linked(span, reset, other_span, other_reset):
    """Decay factor from one step to a later one with these sums; 0 if a reset lies between."""
    return tl.exp(tl.where(reset == other_reset, other_span - span, float("-inf")))
