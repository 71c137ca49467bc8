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

from typing import Any, NamedTuple

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


class AnchorChunk(NamedTuple):
    """A program's chunk: its number, and that of batch and head.

    at: row in tensors with one per chunk. token: row of its first step in (B, T, H, ·). left: steps from it.
    """

    number: Any
    head: Any
    at: Any
    token: Any
    left: Any
    H: Any
    NT: Any


class AnchorCells(NamedTuple):
    """Steps of the chunk in their order here [C, 1], channels [1, BK], and which of both exist.

    source, target: where they lie in (B, T, H, FROM) and in (B, T, H, K).
    """

    step: Any
    channels: Any
    inside: Any
    source: Any
    target: Any


class AnchorTile(NamedTuple):
    """Constants: see `la_anchor`."""

    K: Any
    KG: Any
    C: Any
    BK: Any
    PARTS: Any
    FROM: Any
    TURN: Any
    NVIDIA: Any


@triton.jit
def anchor_cells(own, TILE):
    """Find a chunk's steps and channels."""
    rows, keys = tl.arange(0, TILE.C), tl.arange(0, TILE.BK)
    steps, channels = rows % TILE.PARTS * (TILE.C // TILE.PARTS) + rows // TILE.PARTS, keys[None, :]
    inside = tl.broadcast_to((steps < own.left)[:, None], (TILE.C, TILE.BK))
    if TILE.KG < TILE.BK:
        inside = inside & (channels < TILE.KG)
    step = steps[:, None]
    source = own.token * TILE.FROM + step * (own.H * TILE.FROM) + channels
    target = own.token * TILE.K + step * (own.H * TILE.K) + channels
    return AnchorCells(step, channels, inside, source, target)


@triton.jit
def load_gates(at, mask):
    """Log gates, none below LEAST."""
    gates = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return tl.maximum(gates, LEAST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def store_anchored(x, out, re, factor, cos, sin, near, cells, TILE):
    """Write rows of x, whose first KG channels are `re`, with their decay, and (TURN) turned."""
    KG: tl.constexpr = TILE.KG
    kind = out.dtype.element_ty
    source, target = cells.source, cells.target
    re = re.to(tl.float32)
    if TILE.TURN:
        if TILE.FROM > KG:
            im = tl.load(x + KG + source, mask=near, other=0.0).to(tl.float32)
            tl.store(out + target, ((re * cos + im * sin) * factor).to(kind), mask=near)
            tl.store(out + KG + target, ((im * cos - re * sin) * factor).to(kind), mask=near)
        else:
            tl.store(out + target, (re * cos * factor).to(kind), mask=near)
            tl.store(out + KG + target, (-re * sin * factor).to(kind), mask=near)
    else:
        tl.store(out + target, (re * factor).to(kind), mask=near)
        if TILE.K > KG:
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
def halves_of(totals, PARTS: tl.constexpr):
    """Sums over the first and over the second half of a chunk, of those of its parts."""
    begins = tl.arange(0, PARTS)[:, None] < PARTS // 2
    return tl.reduce((tl.where(begins, totals, 0.0), tl.where(begins, 0.0, totals)), 0, add_both)


@triton.jit
def rotation_of(phase, angles, own, cells, KP: tl.constexpr, FIXED: tl.constexpr, TILE):
    """Cosines and sines of the angles of a chunk's steps (C, BK), which are sums of turns.

    phase: in radians. angles: at the starts of chunks.
    """
    columns = cells.channels if KP > 1 else cells.channels * 0
    row = own.head % own.H * KP if FIXED else (own.token + cells.step * own.H) * KP
    begun = angles + (own.head * (own.NT + 1) + own.number) * KP + columns
    turns = turns_of(tl.load(phase + row + columns, mask=cells.inside, other=0.0))
    angle = tl.load(begun, mask=cells.channels < TILE.KG, other=0.0)
    turned, _, before = sums_of_rows(turns, TILE.C, TILE.PARTS, TILE.BK)
    turned = tl.reshape(turned + before[None, :, :], (TILE.C, TILE.BK))
    return cos_sin_of_turns(turned + angle * 0.15915494309189535, TILE.NVIDIA)


@triton.jit
def store_factors(factors, base, first, second, far, own, LEAD: tl.constexpr, TILE):
    """Store what the state of a chunk is multiplied by, of two of three the square roots: see `la_anchor`.

    base: of the first step's gates. first, second: logarithms of the halves' decays (BK). far: whether the
    chunk is wide.
    """
    K: tl.constexpr = TILE.K
    keys = tl.arange(0, TILE.BK)
    known = keys < TILE.KG
    lead = first
    if LEAD:
        lead = load_gates(base + keys, known)
    for half in tl.static_range(K // TILE.KG):
        cells = factors + own.at * 3 * K + half * TILE.KG + keys
        if LEAD:
            begin = exponential(0.5 * tl.where(far, lead, first), TILE.NVIDIA)
            between = tl.where(far, exponential(first + second - lead, TILE.NVIDIA), 1.0)
        else:
            begin = tl.where(far, 1.0, exponential(0.5 * first, TILE.NVIDIA))
            between = tl.where(far, exponential(first + second, TILE.NVIDIA), 1.0)
        tl.store(cells, begin, mask=known)
        tl.store(cells + K, between, mask=known)
        tl.store(cells + 2 * K, tl.where(far, 1.0, exponential(0.5 * second, TILE.NVIDIA)), mask=known)


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
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            tl.store(wide + (bh * NT + chunk), 0)
            return
    own = AnchorChunk(chunk, bh, bh * NT + chunk, head_offset(bh, T, H) + start * H, end - start, H, NT)
    TILE: tl.constexpr = AnchorTile(K, KG, C, BK, PARTS, FROM, TURN, NVIDIA)
    cells = anchor_cells(own, TILE)
    stride = gate_stride(H, KG, KEY, CONST)
    base = gate_base(log_a, bh, T, H, KG, KEY, CONST) + start * stride
    gates = load_gates(base + cells.step * stride + cells.channels, cells.inside)
    if LATE:
        q_tile = tl.load(q + cells.source, mask=cells.inside, other=0.0)
    if EARLY:
        k_tile = tl.load(k + cells.source, mask=cells.inside, other=0.0)

    sums, totals, before = sums_of_rows(gates, C, PARTS, BK)
    first, second = halves_of(totals, PARTS)
    far = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=0) > mildest(LIMIT, own.left)
    tl.store(wide + own.at, far.to(tl.int32))
    store_factors(factors, base, first, second, far, own, LEAD, TILE)

    # in a wide chunk, no decay: its rows are written only as copies
    scale = tl.where(far, 0.0, 1.4426950408889634)
    sums = tl.reshape(sums + (before - first[None, :])[None, :, :], (C, BK)) * scale
    near = cells.inside if COPY else cells.inside & (not far)
    cos, sin = sums, sums
    if TURN:
        cos, sin = rotation_of(phase, angles, own, cells, KP, FIXED, TILE)
    if LATE:
        store_anchored(q, late, q_tile, exp2(sums, NVIDIA), cos, sin, near, cells, TILE)
    if EARLY:
        store_anchored(k, early, k_tile, exp2(-sums, NVIDIA), cos, sin, near, cells, TILE)


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
