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
    partners,
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


class KeyTile(NamedTuple):
    """Constants: K channels, KG of gates; C steps of a chunk; BK channels of a program; see `tiles`."""

    K: Any
    KG: Any
    C: Any
    BK: Any
    LIMIT: Any
    PRECISION: Any


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
    row = head_offset(bh, T, H) * K
    base, stride = gate_base(log_a, bh, T, H, KG, KEY, CONST), gate_stride(H, KG, KEY, CONST)
    steps, keys = tl.arange(0, SUB), tl.arange(0, BK)
    gated = gate_columns(keys, K, KG)
    passed = tl.zeros((BK,), dtype=tl.float32)
    if WALK and LEAD:
        lead = load_row(base, begin, end, stride, gated, KG)
        passed -= tl.where(lead > LEAST, lead, 0.0)
    for block in range(part, C // SUB if WALK else part + 1):
        start = begin + block * SUB
        out = scores + (bh * NT + chunk) * C * C + block * SUB * C
        q_tile = load_rows(q + row, start + steps, end, H * K, keys, K).to(tl.float32)

        from_start = decay(base, start, end, stride, gated, KG, SUB, KEY, False)
        if WALK:
            behind = tl.zeros((BK,), dtype=tl.float32)
            for ahead in range(1, C // SUB):
                if block + ahead < C // SUB:
                    behind += total_decay(base, start + ahead * SUB, end, stride, gated, KG, SUB, KEY)
            t = start + steps
            rows = row + t[:, None] * H * K + keys[None, :]
            inside = (t < end)[:, None] & (keys < K)[None, :]
            queries = q_tile * tl.exp(from_start + passed[None, :])
            tl.store(late + rows, queries.to(late.dtype.element_ty), mask=inside)
            to_end = decay(base, start, end, stride, gated, KG, SUB, KEY, True) + behind[None, :]
            written = load_rows(k + row, t, end, H * K, keys, K).to(tl.float32) * tl.exp(to_end)
            tl.store(early + rows, written.to(early.dtype.element_ty), mask=inside)
            passed += total_decay(base, start, end, stride, gated, KG, SUB, KEY)
        late_tile = (q_tile * tl.exp(from_start)).to(q.dtype.element_ty)
        between = tl.zeros((BK,), dtype=tl.float32)
        for back in range(1, C // SUB):
            if back <= block:
                other = start - back * SUB
                to_end = decay(base, other, end, stride, gated, KG, SUB, KEY, True)
                early_tile = load_rows(k + row, other + steps, end, H * K, keys, K).to(tl.float32)
                early_tile = (early_tile * tl.exp(to_end + between[None, :])).to(k.dtype.element_ty)
                part_score = tl.dot(late_tile, tl.trans(early_tile), input_precision=PRECISION)
                at = steps[:, None] * C + (block - back) * SUB + steps[None, :]
                tl.store(out + at, part_score.to(scores.dtype.element_ty))
                between += total_decay(base, other, end, stride, gated, KG, SUB, KEY)

        sums, far = from_middle(load_rows(base, start + steps, end, stride, gated, KG), LIMIT)
        if far:
            decayed = q_tile  # q_i ⊙ decay from j to i, for rows i ≥ j
            for back in range(SUB):
                j = SUB - 1 - back
                k_row = load_row(k + row, start + j, end, H * K, keys, K)
                column = tl.sum(decayed * k_row[None, :], axis=1)
                at = steps * C + block * SUB + j
                tl.store(out + at, column.to(scores.dtype.element_ty), mask=steps >= j)
                gate = tl.exp(load_row(base, start + j, end, stride, gated, KG))
                decayed = tl.where((steps >= j)[:, None], decayed * gate[None, :], decayed)
        else:
            late_tile = (q_tile * tl.exp(sums)).to(q.dtype.element_ty)
            early_tile = load_rows(k + row, start + steps, end, H * K, keys, K).to(tl.float32) * tl.exp(-sums)
            early_tile = early_tile.to(k.dtype.element_ty)
            same = tl.dot(late_tile, tl.trans(early_tile), input_precision=PRECISION)
            at = steps[:, None] * C + block * SUB + steps[None, :]
            tl.store(out + at, same.to(scores.dtype.element_ty), mask=steps[:, None] >= steps[None, :])


@triton.jit
def of_gates(x, BOTH: tl.constexpr):
    """Bring x (SUB, channels) to one number per gate: (BOTH) add up its halves, else leave it."""
    if BOTH:
        return tl.sum(tl.reshape(x, (SUB, 2, x.shape[1] // 2)), axis=1)
    else:
        return x


@triton.jit(do_not_specialize=COUNTS)
def la_grad_key(
    q, k, log_a, wide, dscores, boundary, turns, dq_states, dk_states, dq, dk, dlog_a, dphase, T, H, NT,
    places,
    K: tl.constexpr, KG: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, CONST: tl.constexpr,
    TURN: tl.constexpr, BOTH: tl.constexpr, PRECISION: tl.constexpr, WALK: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Add the parts of dq and dk inside the chunk to those through states, and take the gate's gradient.

    dq_states, dk_states: the parts through states. boundary: see `block_starts`. The gate's gradient restarts
    in each chunk, so its rounding does not grow with T. WALK: of wide chunks only. TURN: also the phase's
    gradient, from `turns` in place of boundary. BOTH: boundary, turns, dlog_a and dphase, of KG channels, are
    sums of both parts of complex channels, which one program has, in halves of BK.
    """
    tile, chunk, bh = locate(H, NT, tl.cdiv(K, BK))
    if WALK:  # noqa: SIM102, as only this test is of constants
        if tl.load(wide + bh * NT + chunk) == 0:
            return
    begin, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if begin >= end:
            return
    row = head_offset(bh, T, H) * K
    base, stride = gate_base(log_a, bh, T, H, KG, KEY, CONST), gate_stride(H, KG, KEY, CONST)
    TILE: tl.constexpr = KeyTile(K, KG, C, BK, LIMIT, PRECISION)
    BG: tl.constexpr = BK // 2 if BOTH else BK
    keys, gate_keys, gate_row, width = channels_of(tile, row, BOTH, TILE)
    steps = tl.arange(0, SUB)
    weights = dscores + (bh * NT + chunk) * C * C
    own = KeyHead(row, H, end, keys, base, stride, gate_columns(keys, K, KG))
    starts = (bh * NT + chunk) * (C // SUB) * width + gate_keys
    carry = tl.zeros((BG,), dtype=tl.float32)
    if TURN:
        partner, sign = partners(keys, K)
        turn_carry = tl.zeros((BG,), dtype=tl.float32)

    for after in range(C // SUB):
        block = C // SUB - 1 - after
        start = begin + block * SUB
        t = start + steps
        mask = (t < end)[:, None] & (keys < K)[None, :]
        rows = row + t[:, None] * H * K + keys[None, :]
        earlier = pairs_before(k, weights, own, block, start, TILE)
        later = pairs_after(q, weights, own, block, after, start, TILE)
        from_start, to_end = block_decay(own, start, False, TILE), block_decay(own, start, True, TILE)
        dq_tile = tl.load(dq_states + rows, mask=mask, other=0.0).to(tl.float32)
        dq_tile += earlier * tl.exp(from_start)
        inner = later * tl.exp(to_end)

        q_tile = load_block(q, own, t, K).to(tl.float32)
        k_tile = load_block(k, own, t, K).to(tl.float32)
        gates = load_rows(base, t, end, stride, own.gated, KG)
        diagonal = weights + block * SUB * (C + 1)
        dq_tile, inner = add_diagonal(dq_tile, inner, q, k, q_tile, k_tile, gates, diagonal, own, start, TILE)

        local = of_gates(q_tile * dq_tile - k_tile * inner, BOTH)
        before = mask & (steps > 0)[:, None]  # the step before each, in the same block
        dk_before = tl.load(dk_states + rows - H * K, mask=before, other=0.0).to(tl.float32)
        carried = tl.load(k + rows - H * K, mask=before, other=0.0).to(tl.float32) * dk_before
        carried = of_gates(carried, BOTH)
        dgate, carry = block_gradient(
            local, carried, gate_keys < width, boundary + starts + block * width, carry
        )
        gate_rows, gate_mask = rows, mask
        if BOTH:
            gate_rows = gate_row + t[:, None] * H * KG + gate_keys[None, :]
            gate_mask = (t < end)[:, None] & (gate_keys < KG)[None, :]
            gates = load_rows(base, t, end, stride, gate_keys, KG)
        tl.store(dlog_a + gate_rows, tl.where(gates == float("-inf"), 0.0, dgate), mask=gate_mask)
        if TURN:
            across = row + t[:, None] * H * K + partner[None, :]
            local, carried = turned_terms(
                q, k, dq_tile, inner, dk_before, across, mask, before, sign, H, BOTH, TILE
            )
            dturn, turn_carry = block_gradient(
                local, carried, gate_keys < width, turns + starts + block * width, turn_carry
            )
            tl.store(dphase + gate_rows, dturn, mask=gate_mask)
        same = tl.load(diagonal + steps * (C + 1)).to(tl.float32)[:, None]
        dk_tile = tl.load(dk_states + rows, mask=mask, other=0.0).to(tl.float32) + inner + same * q_tile
        tl.debug_barrier()  # dk may be dk_states, whose rows the step after each has read
        tl.store(dq + rows, (dq_tile + same * k_tile).to(dq.dtype.element_ty), mask=mask)
        tl.store(dk + rows, dk_tile.to(dk.dtype.element_ty), mask=mask)


@triton.jit
def channels_of(tile, row, BOTH: tl.constexpr, TILE):
    """Channels of a program; and where their gates' gradients go: channels, row of step 0, width of a row."""
    keys = tile * TILE.BK + tl.arange(0, TILE.BK)
    if not BOTH:
        return keys, keys, row, TILE.K
    else:
        HALF: tl.constexpr = TILE.BK // 2
        gate_keys, gate_row = tl.arange(0, HALF), row // 2
        if HALF > TILE.KG:  # the halves lie apart
            keys = tl.where(keys % HALF < TILE.KG, keys // HALF * TILE.KG + keys % HALF, TILE.K)
        return keys, gate_keys, gate_row, TILE.KG


@triton.jit
def pairs_before(k, weights, own, block, start, TILE):
    """Products with keys of earlier blocks, decayed to before step `start`: dq [SUB, BK]."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, SUB)
    earlier = tl.zeros((SUB, TILE.BK), dtype=tl.float32)
    between = tl.zeros((TILE.BK,), dtype=tl.float32)
    for back in range(1, C // SUB):
        if back <= block:
            other = start - back * SUB
            to_end = block_decay(own, other, True, TILE)
            k_tile = load_block(k, own, other + steps, TILE.K).to(tl.float32)
            k_tile = (k_tile * tl.exp(to_end + between[None, :])).to(k.dtype.element_ty)
            at = (block * SUB + steps[:, None]) * C + (block - back) * SUB + steps[None, :]
            # [SUB, SUB] @ [SUB, K]
            earlier = tl.dot(tl.load(weights + at), k_tile, earlier, input_precision=TILE.PRECISION)
            between += block_total(own, other, TILE)
    return earlier


@triton.jit
def pairs_after(q, weights, own, block, after, start, TILE):
    """Products with queries of later blocks, decayed from the end of the block at `start`: dk [SUB, BK]."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, SUB)
    between = tl.zeros((TILE.BK,), dtype=tl.float32)
    later = tl.zeros((SUB, TILE.BK), dtype=tl.float32)
    for ahead in range(1, C // SUB):
        if ahead <= after:
            other = start + ahead * SUB
            from_start = block_decay(own, other, False, TILE)
            q_tile = load_block(q, own, other + steps, TILE.K).to(tl.float32)
            q_tile = (q_tile * tl.exp(from_start + between[None, :])).to(q.dtype.element_ty)
            at = ((block + ahead) * SUB + steps[None, :]) * C + block * SUB + steps[:, None]
            # [SUB, SUB] @ [SUB, K]
            later = tl.dot(tl.load(weights + at), q_tile, later, input_precision=TILE.PRECISION)
            between += block_total(own, other, TILE)
    return later


@triton.jit
def add_diagonal_exactly(dq_tile, inner, q, k, diagonal, own, start, TILE):
    """Add the pairs of a block's own steps, one after another: decay is a running product."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, SUB)
    factor = tl.full((SUB, TILE.BK), 1.0, dtype=tl.float32)  # decay from j to row i
    for back in range(SUB):
        j = SUB - 1 - back
        d = tl.load(diagonal + steps * C + j, mask=steps > j, other=0.0).to(tl.float32)
        k_row = load_row(k + own.row, start + j, own.end, own.H * TILE.K, own.keys, TILE.K)
        dq_tile += d[:, None] * k_row[None, :] * factor
        gate = tl.exp(load_row(own.base, start + j, own.end, own.stride, own.gated, TILE.KG))
        factor = tl.where((steps >= j)[:, None], factor * gate[None, :], factor)
    factor = tl.full((SUB, TILE.BK), 1.0, dtype=tl.float32)  # decay from row j to i
    for i in range(SUB):
        gate = tl.exp(load_row(own.base, start + i, own.end, own.stride, own.gated, TILE.KG))
        factor = tl.where((steps < i)[:, None], factor * gate[None, :], factor)
        d = tl.load(diagonal + i * C + steps, mask=steps < i, other=0.0).to(tl.float32)
        q_row = load_row(q + own.row, start + i, own.end, own.H * TILE.K, own.keys, TILE.K)
        inner += d[:, None] * q_row[None, :] * factor
    return dq_tile, inner


@triton.jit
def add_diagonal(dq_tile, inner, q, k, q_tile, k_tile, gates, diagonal, own, start, TILE):
    """Add the pairs of a block's own steps to dq and dk, by products if decay is mild enough."""
    sums, far = from_middle(gates, TILE.LIMIT)
    if far:
        dq_tile, inner = add_diagonal_exactly(dq_tile, inner, q, k, diagonal, own, start, TILE)
    else:
        dq_tile, inner = add_diagonal_by_products(dq_tile, inner, q_tile, k_tile, sums, diagonal, TILE)
    return dq_tile, inner


@triton.jit
def add_diagonal_by_products(dq_tile, inner, q_tile, k_tile, sums, diagonal, TILE):
    """Add the pairs of a block's own steps as products of operands with their decay from its middle."""
    steps = tl.arange(0, SUB)
    from_mid, to_mid = tl.exp(sums), tl.exp(-sums)
    ordered = steps[:, None] > steps[None, :]
    d = tl.load(diagonal + steps[:, None] * TILE.C + steps[None, :], mask=ordered, other=0.0)
    early = (k_tile * to_mid).to(d.dtype)
    dq_tile += tl.dot(d, early, input_precision=TILE.PRECISION) * from_mid  # [SUB, SUB] @ [SUB, K]
    late = (q_tile * from_mid).to(d.dtype)
    inner += tl.dot(tl.trans(d), late, input_precision=TILE.PRECISION) * to_mid  # [SUB, SUB] @ [SUB, K]
    return dq_tile, inner


@triton.jit
def turned_terms(q, k, dq_tile, inner, dk_before, across, mask, before, sign, H, BOTH: tl.constexpr, TILE):
    """Terms of the phase's gradient at each step and of the step before it: see `turns` for J."""
    q_turned = tl.load(q + across, mask=mask, other=0.0).to(tl.float32) * sign[None, :]
    k_turned = tl.load(k + across, mask=mask, other=0.0).to(tl.float32) * sign[None, :]
    local = of_gates(q_turned * dq_tile + k_turned * inner, BOTH)
    carried = tl.load(k + across - H * TILE.K, mask=before, other=0.0).to(tl.float32) * dk_before
    return local, of_gates(carried * -sign[None, :], BOTH)


@triton.jit
def block_gradient(local, carried, exist, boundary, carry):
    """The gradient of a block's gates or phases, and the sum of `local` from this block on.

    local, carried: terms of each step, and of the step before it through the state. boundary: where what the
    gradient begins with is (see `block_starts`), of the channels that exist. carry: the sum behind.
    """
    before_block = tl.load(boundary, mask=exist, other=0.0) + carry
    gradient = tl.cumsum(local, axis=0, reverse=True) + tl.cumsum(carried, axis=0) + before_block[None, :]
    return gradient, carry + tl.sum(local, axis=0)
