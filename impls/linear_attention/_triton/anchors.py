"""Kernels that prepare a walk: queries and keys with their decay in them, or the sums of scalar gates.

Key gates: with G_t the sum of log gates from the chunk's start to step t and m its middle,
q_i · k_j ⊙ exp(G_i - G_j) = (q_i ⊙ exp(G_i - G_m)) · (k_j ⊙ exp(G_m - G_j)): one plain product of two
prepared operands, as long as neither factor leaves the operands' range. A chunk in which one would is wide:
its queries decay from the chunk's start, its keys to the chunk's end, and its scores come from
`la_scores_key`.

Scalar gates have their factors on the chip, beside v: a chunk is wide if these would leave its range, or if a
gate resets the state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import cos_sin_of_turns, exp2, exponential, turns_of
from ..._triton.sequences import RESET, chunk_steps, head_offset
from .blocks import (
    KEY,
    SCALAR,
    gate_base,
    gate_stride,
    locate,
    locate_heads_first,
)
from .chunks import COUNTS
from .groups import Spans

LEAST = tl.constexpr(-1e4)  # a log gate below makes its chunk wide, and a factor of 0, as this one does


@triton.jit
def store_anchored(
    x, out, source, target, re, factor, cos, sin, near,
    K: tl.constexpr, KG: tl.constexpr, FROM: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Write rows of x, whose first KG channels are `re`, with their decay, and (TURN) turned."""
    kind = out.dtype.element_ty
    re = re.to(tl.float32)
    if TURN:
        if FROM > KG:
            im = tl.load(x + KG + source, mask=near, other=0.0).to(tl.float32)
            tl.store(out + target, ((re * cos + im * sin) * factor).to(kind), mask=near)
            tl.store(out + KG + target, ((im * cos - re * sin) * factor).to(kind), mask=near)
        else:
            tl.store(out + target, (re * cos * factor).to(kind), mask=near)
            tl.store(out + KG + target, (-re * sin * factor).to(kind), mask=near)
    else:
        tl.store(out + target, (re * factor).to(kind), mask=near)
        if K > KG:
            im = tl.load(x + KG + source, mask=near, other=0.0).to(tl.float32)
            tl.store(out + KG + target, (im * factor).to(kind), mask=near)


@triton.jit
def mildest(LIMIT: tl.constexpr, steps):
    """Decay above which a chunk of so many steps is wide.

    The gradient of a log gate is a difference of sums of 16 bits beside a plain product (see `walk_grads`),
    and of itself as small as the gate. In a longer chunk within the limit some gates are not so small.
    """
    return tl.minimum(LIMIT, LIMIT * 0.1 * steps)


@triton.jit
def add_both(a, b, other_a, other_b):
    """Add pairs of numbers, for `tl.reduce`."""
    return a + other_a, b + other_b


@triton.jit
def sums_of_rows(x, C: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr):
    """Sums up to each row of x (C, BK), those of parts [part, key], and those before each part.

    Rows lie as [step of a part, part]: what one thread has of a column are the steps of a part, since Triton
    gives it rows that are far apart.
    """
    cut = tl.reshape(x, (C // PARTS, PARTS, BK))
    totals = tl.sum(cut, axis=0)
    before = tl.cumsum(totals, axis=0) - totals
    return tl.cumsum(cut, axis=0), totals, before


@triton.jit
def sums_of_turns(
    phases, begun, inside, known, C: tl.constexpr, PARTS: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Sum the turns of a chunk's steps up to each of its rows (C, BK), in the order of `sums_of_rows`.

    phases: pointers to the steps' (C, BK), in radians. begun: to the angles at its start (1, BK).
    """
    turns = turns_of(tl.load(phases, mask=inside, other=0.0))
    angle = tl.load(begun, mask=known, other=0.0)
    turned, _, before = sums_of_rows(turns, C, PARTS, BK)
    return tl.reshape(turned + before[None, :, :], (C, BK)) + angle * 0.15915494309189535


@triton.jit
def store_factors(
    cells, first, second, lead, far, known, K: tl.constexpr, LEAD: tl.constexpr, NVIDIA: tl.constexpr
):  # fmt: skip
    """Store what the state of a chunk is multiplied by, of two of three the square roots: see `la_anchor`.

    first, second: logarithms of the halves' decays (BK). lead: that of the first step, LEAD. far: whether the
    chunk is wide. known: which channels exist.
    """
    if LEAD:
        begin = exponential(0.5 * tl.where(far, lead, first), NVIDIA)
        between = tl.where(far, exponential(first + second - lead, NVIDIA), 1.0)
    else:
        begin = tl.where(far, 1.0, exponential(0.5 * first, NVIDIA))
        between = tl.where(far, exponential(first + second, NVIDIA), 1.0)
    tl.store(cells, begin, mask=known)
    tl.store(cells + K, between, mask=known)
    tl.store(cells + 2 * K, tl.where(far, 1.0, exponential(0.5 * second, NVIDIA)), mask=known)


@triton.jit(do_not_specialize=COUNTS)
def la_anchor(
    q, k, log_a, phase, angles, late, early, factors, wide, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
    CONST: tl.constexpr, LATE: tl.constexpr, EARLY: tl.constexpr, COPY: tl.constexpr, LIMIT: tl.constexpr,
    TURN: tl.constexpr, FROM: tl.constexpr, KP: tl.constexpr, FIXED: tl.constexpr, LEAD: tl.constexpr,
    NVIDIA: tl.constexpr,
):  # fmt: skip
    """Prepared queries `late` and keys `early`, as q and k, and what happens to the state in a chunk.

    factors: (B·H, chunks, 3, K) float32. The state is multiplied by the square of the first before it is
    read, by the second before the chunk's keys are added, and by the square of the third after. wide:
    (B·H, chunks) int32. Queries and keys of wide chunks are left to `la_scores_key`; COPY: they stay as they
    are. LATE, EARLY: whether there are queries, and keys.

    The steps of a chunk are in an order in which sums inside one of its parts stay in a thread: see
    `sums_of_rows`. Both parts of complex channels, K = 2 KG, share the sums.

    TURN: turn queries and keys of FROM channels, too (see `turns`), with the angles at the chunks' starts and
    phases (B, T, H, KP), or (FIXED) (H, KP). Sums inside a chunk are of turns within ±½, in float32.
    NVIDIA: exponentials, cosines and sines by its instructions, exact enough for half types.

    LEAD: queries of wide chunks decay from after the first step, whose decay is the square of their first
    factor, as a reverse walk wants it: everything decays through that step, which would leave too little for
    half types.
    """
    _, chunk, bh = locate_heads_first(H, NT, 1)
    at = bh * NT + chunk
    row = head_offset(bh, T, H)
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            tl.store(wide + at, 0)
            return
    token = row + start * H
    stride = gate_stride(H, KG, KEY, CONST)
    base = gate_base(log_a, bh, T, H, KG, KEY, CONST) + start * stride
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    steps, channels = rows % PARTS * (C // PARTS) + rows // PARTS, keys[None, :]
    inside = tl.broadcast_to((steps < end - start)[:, None], (C, BK))
    if KG < BK:
        inside = inside & (channels < KG)
    step = steps[:, None]
    source, target = token * FROM + step * (H * FROM) + channels, token * K + step * (H * K) + channels
    gates = tl.load(base + step * stride + channels, mask=inside, other=0.0).to(tl.float32)
    gates = tl.maximum(gates, LEAST, propagate_nan=tl.PropagateNan.ALL)
    if LATE:
        q_tile = tl.load(q + source, mask=inside, other=0.0)
    if EARLY:
        k_tile = tl.load(k + source, mask=inside, other=0.0)

    sums, totals, before = sums_of_rows(gates, C, PARTS, BK)
    begins = tl.arange(0, PARTS)[:, None] < PARTS // 2
    first, second = tl.reduce((tl.where(begins, totals, 0.0), tl.where(begins, 0.0, totals)), 0, add_both)
    far = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=0) > mildest(LIMIT, end - start)
    tl.store(wide + at, far.to(tl.int32))
    lead = first
    if LEAD:
        lead = tl.load(base + keys, mask=keys < KG, other=0.0).to(tl.float32)
        lead = tl.maximum(lead, LEAST, propagate_nan=tl.PropagateNan.ALL)
    for half in tl.static_range(K // KG):
        cells = factors + at * 3 * K + half * KG + keys
        store_factors(cells, first, second, lead, far, keys < KG, K, LEAD, NVIDIA)

    # in a wide chunk, no decay: its rows are written only as copies
    scale = tl.where(far, 0.0, 1.4426950408889634)
    sums = tl.reshape(sums + (before - first[None, :])[None, :, :], (C, BK)) * scale
    near = inside if COPY else inside & (not far)
    cos, sin = sums, sums
    if TURN:
        columns = channels if KP > 1 else channels * 0
        row = bh % H * KP if FIXED else (token + step * H) * KP
        begun = angles + (bh * (NT + 1) + chunk) * KP + columns
        turned = sums_of_turns(phase + row + columns, begun, inside, channels < KG, C, PARTS, BK)
        cos, sin = cos_sin_of_turns(turned, NVIDIA)
    if LATE:
        factor = exp2(sums, NVIDIA)
        store_anchored(q, late, source, target, q_tile, factor, cos, sin, near, K, KG, FROM, TURN)
    if EARLY:
        factor = exp2(-sums, NVIDIA)
        store_anchored(k, early, source, target, k_tile, factor, cos, sin, near, K, KG, FROM, TURN)


@triton.jit(do_not_specialize=COUNTS)
def la_spans(
    log_a, spans, resets, edges, wide, T, H, NT, places,
    K: tl.constexpr, C: tl.constexpr, CONST: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Sums of scalar log gates from the chunk's middle to each step, and the resets up to it.

    spans, float32, and resets, int32: (B·H, chunks, C). edges: (B·H, chunks, 2), the sums to before the first
    step and to the last one. wide: (B·H, chunks) int32. Resets are counted and not summed, so that the sum of
    the rest stays small and a difference of two is exact enough.
    """
    _, chunk, bh = locate(H, NT, 1)
    start, end = chunk_steps(chunk, T, NT, places, C)
    steps = tl.arange(0, C)
    t = start + steps
    base, stride = gate_base(log_a, bh, T, H, K, SCALAR, CONST), gate_stride(H, K, SCALAR, CONST)
    gates = tl.load(base + t * stride, mask=t < end, other=0.0)
    reset = gates < RESET
    gates = tl.where(reset, 0.0, gates)
    begins = steps < C // 2
    first = tl.sum(tl.where(begins, gates, 0.0), axis=0)
    second = tl.sum(tl.where(begins, 0.0, gates), axis=0)
    far = (tl.maximum(tl.abs(first), tl.abs(second)) > LIMIT) | (tl.max(reset.to(tl.int32), axis=0) > 0)
    at = bh * NT + chunk
    tl.store(spans + at * C + steps, tl.cumsum(gates, axis=0) - first)
    tl.store(resets + at * C + steps, tl.cumsum(reset.to(tl.int32), axis=0))
    tl.store(edges + at * 2, -first)
    tl.store(edges + at * 2 + 1, second)
    tl.store(wide + at, far.to(tl.int32))


@triton.jit
def load_spans(spans, resets, edges, at, live, C: tl.constexpr):
    """The scalar gates of a chunk; zeros where it is not live."""
    steps = tl.arange(0, C)
    span = tl.load(spans + at * C + steps, mask=live, other=0.0)
    reset = tl.load(resets + at * C + steps, mask=live, other=0)
    start = tl.load(edges + at * 2, mask=live, other=0.0)
    end = tl.load(edges + at * 2 + 1, mask=live, other=0.0)
    reset_end = tl.load(resets + at * C + C - 1, mask=live, other=0)
    return Spans(span, reset, start, end, reset_end)


@triton.jit
def linked(span, reset, other_span, other_reset):
    """Decay factor from one step to a later one with these sums; 0 if a reset lies between, 1 backwards."""
    exponent = tl.minimum(other_span - span, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp(tl.where(reset == other_reset, exponent, float("-inf")))
