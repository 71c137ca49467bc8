"""The gradients of key gates inside a chunk, by blocks of SUB steps: see `pairs`."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps
from .blocks import SUB, load_rows, locate, partners
from .chunks import COUNTS
from .pairs import KeyTile, block_decay, block_total, from_middle, key_block, key_head, load_block, load_row


class GateCells(NamedTuple):
    """Where the gates' gradients of a program go: columns, row of step 0, columns of a row.

    starts: where what they begin with is in (B·H, chunks, C / SUB, width), in the chunk's first block.
    """

    columns: Any
    row: Any
    width: Any
    starts: Any


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
    TILE: tl.constexpr = KeyTile(K, KG, C, BK, LIMIT, PRECISION)
    own = key_head(log_a, key_channels(tile, BOTH, TILE), bh, T, H, end, CONST, TILE)
    cells = gate_cells(own, bh * NT + chunk, BOTH, TILE)
    weights = dscores + (bh * NT + chunk) * C * C
    carry = tl.zeros(cells.columns.shape, dtype=tl.float32)
    turn_carry = carry
    for after in range(C // SUB):
        block = key_block(own, begin, C // SUB - 1 - after, TILE)
        dq_tile, inner = from_other_blocks(q, k, dq_states, weights, own, block, after, TILE)
        q_tile = load_block(q, own, block.t, K).to(tl.float32)
        k_tile = load_block(k, own, block.t, K).to(tl.float32)
        gates = load_rows(own.base, block.t, end, own.stride, own.gated, KG)
        diagonal = weights + block.number * SUB * (C + 1)
        dq_tile, inner = add_diagonal(
            dq_tile, inner, q, k, q_tile, k_tile, gates, diagonal, own, block.start, TILE
        )

        local = of_gates(q_tile * dq_tile - k_tile * inner, BOTH)
        before = block.inside & (tl.arange(0, SUB) > 0)[:, None]  # the step before each, in the same block
        dk_before = tl.load(dk_states + block.rows - H * K, mask=before, other=0.0).to(tl.float32)
        carried = tl.load(k + block.rows - H * K, mask=before, other=0.0).to(tl.float32) * dk_before
        dgate, carry = block_gradient(local, of_gates(carried, BOTH), boundary, carry, cells, block.number)
        store_gates(dlog_a, dgate, gates, own, cells, block, BOTH, True, TILE)
        if TURN:
            local, carried = turned_terms(q, k, dq_tile, inner, dk_before, before, own, block, BOTH, TILE)
            dturn, turn_carry = block_gradient(local, carried, turns, turn_carry, cells, block.number)
            store_gates(dphase, dturn, gates, own, cells, block, BOTH, False, TILE)
        same = tl.load(diagonal + tl.arange(0, SUB) * (C + 1)).to(tl.float32)[:, None]
        dk_tile = tl.load(dk_states + block.rows, mask=block.inside, other=0.0).to(tl.float32)
        dk_tile += inner + same * q_tile
        tl.debug_barrier()  # dk may be dk_states, whose rows the step after each has read
        tl.store(dq + block.rows, (dq_tile + same * k_tile).to(dq.dtype.element_ty), mask=block.inside)
        tl.store(dk + block.rows, dk_tile.to(dk.dtype.element_ty), mask=block.inside)


@triton.jit
def key_channels(tile, BOTH: tl.constexpr, TILE):
    """Channels of a program: BK in a row, or (BOTH) half as many and their other parts."""
    keys = tile * TILE.BK + tl.arange(0, TILE.BK)
    if BOTH:
        HALF: tl.constexpr = TILE.BK // 2
        if HALF > TILE.KG:  # the halves lie apart
            keys = tl.where(keys % HALF < TILE.KG, keys // HALF * TILE.KG + keys % HALF, TILE.K)
    return keys


@triton.jit
def gate_cells(own, at, BOTH: tl.constexpr, TILE):
    """Where the gates' gradients of a program go, for the chunk `at`."""
    if not BOTH:
        columns, row, width = own.keys, own.row, TILE.K
    else:
        columns, row, width = tl.arange(0, TILE.BK // 2), own.row // 2, TILE.KG
    return GateCells(columns, row, width, at * (TILE.C // SUB) * width + columns)


@triton.jit
def from_other_blocks(q, k, dq_states, weights, own, block, after, TILE):
    """dq and dk of a block from the states and from other blocks; dk without its part through states."""
    earlier = pairs_before(k, weights, own, block.number, block.start, TILE)
    later = pairs_after(q, weights, own, block.number, after, block.start, TILE)
    from_start = block_decay(own, block.start, False, TILE)
    to_end = block_decay(own, block.start, True, TILE)
    dq_tile = tl.load(dq_states + block.rows, mask=block.inside, other=0.0).to(tl.float32)
    return dq_tile + earlier * tl.exp(from_start), later * tl.exp(to_end)


@triton.jit
def store_gates(out, gradient, gates, own, cells, block, BOTH: tl.constexpr, RESETS: tl.constexpr, TILE):
    """Store a block's gradient of gates or phases; RESETS: 0 for gates of -inf."""
    rows, inside = block.rows, block.inside
    if BOTH:
        rows = cells.row + block.t[:, None] * own.H * TILE.KG + cells.columns[None, :]
        inside = (block.t < own.end)[:, None] & (cells.columns < TILE.KG)[None, :]
        gates = load_rows(own.base, block.t, own.end, own.stride, cells.columns, TILE.KG)
    if RESETS:
        gradient = tl.where(gates == float("-inf"), 0.0, gradient)
    tl.store(out + rows, gradient, mask=inside)


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
def turned_terms(q, k, dq_tile, inner, dk_before, before, own, block, BOTH: tl.constexpr, TILE):
    """Terms of the phase's gradient at each step and of the step before it: see `turns` for J."""
    partner, sign = partners(own.keys, TILE.K)
    across = own.row + block.t[:, None] * own.H * TILE.K + partner[None, :]
    q_turned = tl.load(q + across, mask=block.inside, other=0.0).to(tl.float32) * sign[None, :]
    k_turned = tl.load(k + across, mask=block.inside, other=0.0).to(tl.float32) * sign[None, :]
    local = of_gates(q_turned * dq_tile + k_turned * inner, BOTH)
    carried = tl.load(k + across - own.H * TILE.K, mask=before, other=0.0).to(tl.float32) * dk_before
    return local, of_gates(carried * -sign[None, :], BOTH)


@triton.jit
def block_gradient(local, carried, boundary, carry, cells, number):
    """The gradient of a block's gates or phases, and the sum of `local` from this block on.

    local, carried: terms of each step, and of the step before it through the state. boundary: what the
    gradient begins with (see `block_starts`). carry: the sum behind.
    """
    at = boundary + cells.starts + number * cells.width
    before_block = tl.load(at, mask=cells.columns < cells.width, other=0.0) + carry
    gradient = tl.cumsum(local, axis=0, reverse=True) + tl.cumsum(carried, axis=0) + before_block[None, :]
    return gradient, carry + tl.sum(local, axis=0)
