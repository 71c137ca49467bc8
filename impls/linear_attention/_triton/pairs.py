"""Kernels of key gates inside a chunk: blocks of SUB steps.

Between two blocks the decay factors into three sums that all start at the later block's first step. On the
diagonal, a product of operands with their decay from the block's middle, where that stays in the operands'
range (LIMIT, in nats); elsewhere pair by pair, with a running product in registers: one exp per gate, and no
exponent is a difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps, head_offset
from .anchors import LEAST
from .blocks import (
    KEY,
    SUB,
    decay,
    gate_base,
    gate_columns,
    gate_stride,
    load_rows,
    locate,
    total_decay,
)
from .chunks import COUNTS


class KeyHead(NamedTuple):
    """A head under key gates. row: where its q and k begin. H: heads. end: of the sequence. keys: channels.

    base, stride, gated: address of its first log gate, distance between those of two steps, their columns.
    """

    row: Any
    H: Any
    end: Any
    keys: Any
    base: Any
    stride: Any
    gated: Any


class KeyBlock(NamedTuple):
    """A block of a chunk: its number, its first step, its steps t.

    rows: where they and the program's channels lie in (B, T, H, K), [SUB, BK]. inside: which of them exist.
    """

    number: Any
    start: Any
    t: Any
    rows: Any
    inside: Any


class KeyTile(NamedTuple):
    """Constants: K channels, KG of gates; C steps of a chunk; BK channels of a program; see `tiles`."""

    K: Any
    KG: Any
    C: Any
    BK: Any
    LIMIT: Any
    PRECISION: Any


@triton.jit
def key_head(log_a, keys, bh, T, H, end, CONST: tl.constexpr, TILE):
    """A program's head, at the given channels."""
    base = gate_base(log_a, bh, T, H, TILE.KG, KEY, CONST)
    stride = gate_stride(H, TILE.KG, KEY, CONST)
    gated = gate_columns(keys, TILE.K, TILE.KG)
    return KeyHead(head_offset(bh, T, H) * TILE.K, H, end, keys, base, stride, gated)


@triton.jit
def key_block(own, begin, number, TILE):
    """A block of the chunk that begins at step `begin`."""
    start = begin + number * SUB
    t = start + tl.arange(0, SUB)
    rows = own.row + t[:, None] * own.H * TILE.K + own.keys[None, :]
    return KeyBlock(number, start, t, rows, (t < own.end)[:, None] & (own.keys < TILE.K)[None, :])


@triton.jit
def load_block(x, own, t, K: tl.constexpr):
    """Steps t of a head of x (B, T, H, K)."""
    return load_rows(x + own.row, t, own.end, own.H * K, own.keys, K)


@triton.jit
def block_decay(own, start, TO_END: tl.constexpr, TILE):
    """Log decay from before step `start` to each step of its block, or (TO_END) from each to the last."""
    return decay(own.base, start, own.end, own.stride, own.gated, TILE.KG, SUB, KEY, TO_END)


@triton.jit
def block_total(own, start, TILE):
    """Log decay through the block at `start`."""
    return total_decay(own.base, start, own.end, own.stride, own.gated, TILE.KG, SUB, KEY)


@triton.jit
def load_row(x, t, T, stride, cols, K: tl.constexpr):
    """Row t of x (·, K) at the given columns as float32, zero outside."""
    return tl.load(x + t * stride + cols, mask=(cols < K) & (t < T), other=0.0).to(tl.float32)


@triton.jit
def from_middle(gates, LIMIT: tl.constexpr):
    """Sums of the gates of a block, [SUB, keys], from its middle to each step; whether they leave LIMIT."""
    begins = (tl.arange(0, SUB) < SUB // 2)[:, None]
    first = tl.sum(tl.where(begins, gates, 0.0), axis=0)
    second = tl.sum(tl.where(begins, 0.0, gates), axis=0)
    far = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=0) > LIMIT
    return tl.cumsum(gates, axis=0) - tl.where(far, 0.0, first)[None, :], far


@triton.jit(do_not_specialize=COUNTS)
def la_scores_key(
    q, k, log_a, wide, late, early, scores, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, CONST: tl.constexpr,
    PRECISION: tl.constexpr, WALK: tl.constexpr, LEAD: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """scores[i, j] = Σ_c q_ic k_jc · decay_c from j to i for j ≤ i; a program has SUB rows i and all of K.

    WALK: of wide chunks only, whose queries with the decay from the chunk's start, `late`, and keys with that
    to its end, `early`, are made, too; a program has a whole chunk, so that few have nothing to do. LEAD:
    queries decay from after the chunk's first step, unless that is a reset, behind which nothing counts.
    """
    part, chunk, bh = locate(H, NT, 1 if WALK else C // SUB)
    if WALK:  # noqa: SIM102, as only this test is of constants
        if tl.load(wide + bh * NT + chunk) == 0:
            return
    begin, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if begin >= end:
            return
    TILE: tl.constexpr = KeyTile(K, KG, C, BK, LIMIT, PRECISION)
    own = key_head(log_a, tl.arange(0, BK), bh, T, H, end, CONST, TILE)
    passed = tl.zeros((BK,), dtype=tl.float32)
    if WALK and LEAD:
        lead = load_row(own.base, begin, end, own.stride, own.gated, KG)
        passed -= tl.where(lead > LEAST, lead, 0.0)
    for number in range(part, C // SUB if WALK else part + 1):
        block = key_block(own, begin, number, TILE)
        out = scores + (bh * NT + chunk) * C * C + number * SUB * C
        q_tile = load_block(q, own, block.t, K).to(tl.float32)
        from_start = block_decay(own, block.start, False, TILE)
        if WALK:
            queries = q_tile * tl.exp(from_start + passed[None, :])
            tl.store(late + block.rows, queries.to(late.dtype.element_ty), mask=block.inside)
            store_early(k, early, own, block, TILE)
            passed += block_total(own, block.start, TILE)
        scores_before(k, (q_tile * tl.exp(from_start)).to(q.dtype.element_ty), out, own, block, TILE)
        scores_inside(q, k, q_tile, out, own, block, TILE)


@triton.jit
def store_early(k, early, own, block, TILE):
    """Store the keys of a block with their decay to the end of the chunk."""
    C: tl.constexpr = TILE.C
    behind = tl.zeros((TILE.BK,), dtype=tl.float32)
    for ahead in range(1, C // SUB):
        if block.number + ahead < C // SUB:
            behind += block_total(own, block.start + ahead * SUB, TILE)
    to_end = block_decay(own, block.start, True, TILE) + behind[None, :]
    keys = load_block(k, own, block.t, TILE.K).to(tl.float32) * tl.exp(to_end)
    tl.store(early + block.rows, keys.to(early.dtype.element_ty), mask=block.inside)


@triton.jit
def scores_before(k, late, out, own, block, TILE):
    """Scores of a block's queries, decayed from its first step, with the keys of earlier blocks."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, SUB)
    between = tl.zeros((TILE.BK,), dtype=tl.float32)
    for back in range(1, C // SUB):
        if back <= block.number:
            other = block.start - back * SUB
            to_end = block_decay(own, other, True, TILE)
            early = load_block(k, own, other + steps, TILE.K).to(tl.float32)
            early = (early * tl.exp(to_end + between[None, :])).to(k.dtype.element_ty)
            score = tl.dot(late, tl.trans(early), input_precision=TILE.PRECISION)  # [SUB, K] @ [K, SUB]
            at = steps[:, None] * C + (block.number - back) * SUB + steps[None, :]
            tl.store(out + at, score.to(out.dtype.element_ty))
            between += block_total(own, other, TILE)


@triton.jit
def scores_inside(q, k, q_tile, out, own, block, TILE):
    """Scores of a block's queries with its own keys, by a product if decay is mild enough."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, SUB)
    kind = out.dtype.element_ty
    gates = load_rows(own.base, block.t, own.end, own.stride, own.gated, TILE.KG)
    sums, far = from_middle(gates, TILE.LIMIT)
    if far:
        decayed = q_tile  # q_i ⊙ decay from j to i, for rows i ≥ j
        for back in range(SUB):
            j = SUB - 1 - back
            k_row = load_row(k + own.row, block.start + j, own.end, own.H * TILE.K, own.keys, TILE.K)
            column = tl.sum(decayed * k_row[None, :], axis=1)
            at = steps * C + block.number * SUB + j
            tl.store(out + at, column.to(kind), mask=steps >= j)
            gate = tl.exp(load_row(own.base, block.start + j, own.end, own.stride, own.gated, TILE.KG))
            decayed = tl.where((steps >= j)[:, None], decayed * gate[None, :], decayed)
    else:
        late = (q_tile * tl.exp(sums)).to(q.dtype.element_ty)
        early = load_block(k, own, block.t, TILE.K).to(tl.float32) * tl.exp(-sums)
        early = early.to(k.dtype.element_ty)
        same = tl.dot(late, tl.trans(early), input_precision=TILE.PRECISION)  # [SUB, K] @ [K, SUB]
        at = steps[:, None] * C + block.number * SUB + steps[None, :]
        tl.store(out + at, same.to(kind), mask=steps[:, None] >= steps[None, :])
