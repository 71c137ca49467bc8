"""Gradients of queries, keys, gates and phases after a walk with complex key gates, turned back."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.arithmetic import cos_sin_of_turns, turns_of
from ..._triton.sequences import chunk_steps, head_offset
from .blocks import (
    KEY,
    block_starts,
    decay,
    load_chunk,
    load_rows,
    locate_heads_first,
    store_starts,
)
from .chunks import COUNTS
from .groups import GradChunk, GradOperands, GradResults, GradTask, GradTile
from .walk_grads import Through, gate_rows, load_steps, summed, sums_from_middle


class Both(NamedTuple):
    """Both parts of complex channels."""

    re: Any
    im: Any


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
    own = GradChunk(tile, bh, start, head_offset(bh, T, H) + start * H, end - start, bh * NT + chunk, T, H)
    operands = GradOperands(x, w, k, v, do, log_a, states, adjoints)
    results = GradResults(dscores, boundary, turns, dq_states, dk_states, dq, dk, dlog_a, dphase)
    TASK: tl.constexpr = GradTask(KEY, CONST, TURN, False, 1, PRECISION, PART)
    TILE: tl.constexpr = GradTile(K, KG, V, C, BK, BV)
    steps, keys = tl.arange(0, C), tile * BK + tl.arange(0, BK)
    inside = (steps < own.left)[:, None] & (keys < KG)[None, :]
    through = through_both_parts(operands, factors, own, keys, TASK, TILE)
    gates = gate_rows(log_a, own, keys, KEY, CONST, TILE)
    if tl.load(wide + own.at) != 0:
        store_both_wide(through, factors, gates, k, results, own, inside, TASK, TILE)
        return

    dx, dw = store_both_gates(through, operands, results, own, keys, inside, TASK, TILE)
    sums = sums_from_middle(gates, own.left, PART, TILE)
    cos, sin = rotation(phase, angles, own, keys, inside, NT, chunk, KP, FIXED, NVIDIA, TILE)
    rows = own.begin * TO + (steps[:, None] * (H * TO) + keys[None, :])
    factor = tl.exp(sums)
    store_back(dq, rows, dx.re * factor, dx.im * factor, cos, sin, inside, KG, TO)
    factor = tl.exp(-sums)
    store_back(dk, rows, dw.re * factor, dw.im * factor, cos, sin, inside, KG, TO)


@triton.jit
def store_both_gates(through, operands, results, own, keys, inside, TASK, TILE):
    """Store the gradients of gates and phases; gives dx and dw with their parts inside the chunk."""
    PART: tl.constexpr = TASK.PART
    dscore, dx, dw, ends, turn_ends = through
    steps = tl.arange(0, TILE.C)
    x_tile, w_tile = load_both(operands.x, own, keys, TILE), load_both(operands.w, own, keys, TILE)
    ends += tl.sum(w_tile.re.to(tl.float32) * dw.re + w_tile.im.to(tl.float32) * dw.im, axis=0)
    if TASK.TURN:
        turn_ends += tl.sum(w_tile.re.to(tl.float32) * dw.im - w_tile.im.to(tl.float32) * dw.re, axis=0)
    weights = dscore.to(operands.x.dtype.element_ty)
    dx = add_products(dx, weights, w_tile, TASK.PRECISION)
    dw = add_products(dw, tl.trans(weights), x_tile, TASK.PRECISION)
    # as in `blocks`, but for terms that cancel: decay is mild here, so they leave enough
    x_tile = Both(x_tile.re.to(tl.float32), x_tile.im.to(tl.float32))
    w_tile = Both(w_tile.re.to(tl.float32), w_tile.im.to(tl.float32))
    later = (steps[None, :] >= steps[:, None]).to(PART)
    rows = own.begin * TILE.KG + (steps[:, None] * (own.H * TILE.KG) + keys[None, :])
    local = x_tile.re * dx.re + x_tile.im * dx.im - w_tile.re * dw.re - w_tile.im * dw.im
    tl.store(results.dlog_a + rows, summed(later, local, PART) + ends[None, :], mask=inside)
    if TASK.TURN:
        local = x_tile.im * dx.re - x_tile.re * dx.im + w_tile.im * dw.re - w_tile.re * dw.im
        tl.store(results.dphase + rows, summed(later, local, PART) + turn_ends[None, :], mask=inside)
    return dx, dw


@triton.jit
def load_both(x, own, keys, TILE):
    """Both parts of the chunk's steps of x (B, T, H, K)."""
    K: tl.constexpr = TILE.K
    re = load_chunk(x + own.begin * K, own.left, own.H * K, keys, TILE.C, TILE.KG)
    im = load_chunk(x + own.begin * K + TILE.KG, own.left, own.H * K, keys, TILE.C, TILE.KG)
    return Both(re, im)


@triton.jit
def add_products(sums, weights, tile, PRECISION: tl.constexpr):
    """Add the products of weights with both parts of a tile."""
    re = tl.dot(weights, tile.re, sums.re, input_precision=PRECISION)  # [C, C] @ [C, K]
    im = tl.dot(weights, tile.im, sums.im, input_precision=PRECISION)  # [C, C] @ [C, K]
    return Both(re, im)


@triton.jit
def through_both_parts(operands, factors, own, keys, TASK, TILE):
    """Do what `through_states` does for both parts of complex channels, with the decay between the edges."""
    KG: tl.constexpr = TILE.KG
    V: tl.constexpr = TILE.V
    dscore = tl.zeros((TILE.C, TILE.C), dtype=tl.float32)
    dx_re = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    dx_im = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    dw_re = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    dw_im = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    ends = tl.zeros((TILE.BK,), dtype=tl.float32)
    turn_ends = tl.zeros((TILE.BK,), dtype=tl.float32)
    real, imaginary = own.at * TILE.K * V, (own.at * TILE.K + KG) * V
    for first in range(0, V, TILE.BV):
        values = first + tl.arange(0, TILE.BV)
        do_tile = load_steps(operands.do, own, values, TILE.C, V)
        v_tile = load_steps(operands.v, own, values, TILE.C, V)
        state_re = load_rows(operands.states + real, keys, KG, V, values, V)
        state_im = load_rows(operands.states + imaginary, keys, KG, V, values, V)
        adjoint_re = load_rows(operands.adjoints + real, keys, KG, V, values, V)
        adjoint_im = load_rows(operands.adjoints + imaginary, keys, KG, V, values, V)
        dscore = tl.dot(do_tile, tl.trans(v_tile), dscore, input_precision=TASK.PRECISION)  # [C, V] @ [V, C]
        # [C, V] @ [V, K]
        dx_re = tl.dot(do_tile, tl.trans(state_re), dx_re, input_precision=TASK.PRECISION)
        dx_im = tl.dot(do_tile, tl.trans(state_im), dx_im, input_precision=TASK.PRECISION)
        dw_re = tl.dot(v_tile, tl.trans(adjoint_re), dw_re, input_precision=TASK.PRECISION)
        dw_im = tl.dot(v_tile, tl.trans(adjoint_im), dw_im, input_precision=TASK.PRECISION)
        s_re, s_im = state_re.to(tl.float32), state_im.to(tl.float32)
        a_re, a_im = adjoint_re.to(tl.float32), adjoint_im.to(tl.float32)
        ends += tl.sum(s_re * a_re + s_im * a_im, axis=1)
        if TASK.TURN:
            turn_ends += tl.sum(s_re * a_im - s_im * a_re, axis=1)
    steps = tl.arange(0, TILE.C)
    dscore = tl.where(steps[:, None] >= steps[None, :], dscore, 0.0)
    between = tl.load(factors + own.at * 3 * TILE.K + TILE.K + keys, mask=keys < KG, other=0.0)
    return Through(dscore, Both(dx_re, dx_im), Both(dw_re, dw_im), ends * between, turn_ends * between)


@triton.jit
def store_both_wide(through, factors, gates, k, results, own, inside, TASK, TILE):
    """Store what `la_grad_key` needs of a wide chunk, as `store_wide` does, of both parts."""
    C: tl.constexpr = TILE.C
    K: tl.constexpr = TILE.K
    KG: tl.constexpr = TILE.KG
    dscore, dx, dw, ends, turn_ends = through
    steps, keys = tl.arange(0, C), gates.columns
    pairs = own.at * C * C + steps[:, None] * C + steps[None, :]
    tl.store(results.dscores + pairs, dscore.to(results.dscores.dtype.element_ty), mask=own.tile == 0)
    to_end = tl.exp(decay(gates.base, 0, own.left, gates.stride, keys, KG, C, KEY, True))
    dw = Both(dw.re * to_end, dw.im * to_end)
    begin_factor = tl.load(factors + own.at * 3 * K + keys, mask=keys < KG, other=0.0)
    lead = begin_factor * begin_factor
    k_tile = load_both(k, own, keys, TILE)
    k_re, k_im = k_tile.re.to(tl.float32), k_tile.im.to(tl.float32)
    starts = block_starts(k_re * dw.re + k_im * dw.im, ends * lead, C, TILE.BK)
    store_starts(results.boundary, starts, own.at, keys, True, KG, C)
    if TASK.TURN:
        starts = block_starts(k_re * dw.im - k_im * dw.re, turn_ends * lead, C, TILE.BK)
        store_starts(results.turns, starts, own.at, keys, True, KG, C)
    from_start = tl.exp(decay(gates.base, 0, own.left, gates.stride, keys, KG, C, KEY, False))
    rows = own.begin * K + (steps[:, None] * (own.H * K) + keys[None, :])
    to = results.dq_states
    tl.store(to + rows, (dx.re * from_start).to(to.dtype.element_ty), mask=inside)
    tl.store(to + KG + rows, (dx.im * from_start).to(to.dtype.element_ty), mask=inside)
    to = results.dk_states
    tl.store(to + rows, dw.re.to(to.dtype.element_ty), mask=inside)
    tl.store(to + KG + rows, dw.im.to(to.dtype.element_ty), mask=inside)


@triton.jit
def rotation(
    phase, angles, own, keys, inside, NT, chunk, KP: tl.constexpr, FIXED: tl.constexpr,
    NVIDIA: tl.constexpr, TILE,
):  # fmt: skip
    """Cosine and sine of the angles by which the chunk's queries and keys were turned, [C, BK]."""
    steps = tl.arange(0, TILE.C)
    columns = keys if KP > 1 else keys * 0
    row = own.head % own.H * KP if FIXED else own.begin * KP + steps[:, None] * (own.H * KP)
    angle = tl.load(phase + row + columns[None, :], mask=inside, other=0.0)
    before_chunk = tl.load(
        angles + (own.head * (NT + 1) + chunk) * KP + columns, mask=keys < TILE.KG, other=0.0
    )
    # two numbers of float16 hold 22 bits of a turn
    earlier = (steps[None, :] <= steps[:, None]).to(tl.float16)
    turned = summed(earlier, turns_of(angle), tl.float16)
    return cos_sin_of_turns(turned + before_chunk[None, :] * 0.15915494309189535, NVIDIA)


@triton.jit
def store_back(out, rows, re, im, cos, sin, inside, KG: tl.constexpr, TO: tl.constexpr):
    """Turn gradients back, and write TO channels of them."""
    kind = out.dtype.element_ty
    tl.store(out + rows, (re * cos - im * sin).to(kind), mask=inside)
    if TO > KG:
        tl.store(out + KG + rows, (im * cos + re * sin).to(kind), mask=inside)
