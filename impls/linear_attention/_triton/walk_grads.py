"""Gradients of queries, keys and gates after a walk: all chunks beside each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps, head_offset
from .anchors import linked, load_spans
from .blocks import (
    KEY,
    NONE,
    SCALAR,
    block_starts,
    decay,
    gate_base,
    gate_columns,
    gate_stride,
    load_chunk,
    load_rows,
    locate_heads_first,
    partners,
    store_starts,
)
from .chunks import COUNTS
from .groups import GradChunk, GradOperands, GradResults, GradTask, GradTile
from .heads import key_head_offset


class Channels(NamedTuple):
    """Channels of a program, and for phases their other parts, with signs under J: see `turns`."""

    keys: Any
    partner: Any
    sign: Any


class Cells(NamedTuple):
    """Where the chunk's channels lie in (B, T, H, K), [C, BK], and which of them exist."""

    rows: Any
    inside: Any


class Through(NamedTuple):
    """Products of a chunk with its state and adjoint: see `through_states`."""

    dscore: Any
    dx: Any
    dw: Any
    ends: Any
    turn_ends: Any


class GateRows(NamedTuple):
    """Log gates of a chunk: address of the first step's, distance between two steps, columns of channels."""

    base: Any
    stride: Any
    columns: Any


class ScalarDecay(NamedTuple):
    """Scalar gates of a chunk; their factors from its start to each step and from each step to its end."""

    spans: Any
    from_start: Any
    to_end: Any


@triton.jit
def load_steps(x, own, columns, C: tl.constexpr, W: tl.constexpr):
    """The chunk's steps of x (B, T, H, W) at the given columns."""
    return load_chunk(x + own.begin * W, own.left, own.H * W, columns, C, W)


@triton.jit
def load_turned(x, own, channels, BACK: tl.constexpr, TILE):
    """J times the chunk's steps of x (B, T, H, K), or (BACK) -J; float32."""
    tile = load_steps(x, own, channels.partner, TILE.C, TILE.K).to(tl.float32)
    return tile * (-channels.sign[None, :] if BACK else channels.sign[None, :])


@triton.jit
def gate_rows(log_a, own, columns, GATE: tl.constexpr, CONST: tl.constexpr, TILE):
    """Find the chunk's log gates; under key gates at the given columns."""
    stride = gate_stride(own.H, TILE.KG, GATE, CONST)
    base = gate_base(log_a, own.head, own.T, own.H, TILE.KG, GATE, CONST) + own.start * stride
    return GateRows(base, stride, columns)


@triton.jit
def sums_from_middle(gates, left, PART: tl.constexpr, TILE):
    """Sums of log gates by channel from the chunk's middle to each step, [C, BK]."""
    C: tl.constexpr = TILE.C
    steps = tl.arange(0, C)
    log_gates = load_chunk(gates.base, left, gates.stride, gates.columns, C, TILE.KG)
    to_step = (steps[None, :] <= steps[:, None]).to(tl.float32)
    to_middle = (steps[None, :] < C // 2).to(tl.float32)
    return summed((to_step - to_middle).to(PART), log_gates, PART)


@triton.jit
def summed(ones, x, PART: tl.constexpr):
    """The product of a matrix of 0, 1 and -1 with float32 x, which is split into two numbers of dtype PART.

    Sums over steps by tensor cores: Triton's scans over several warps go through shared memory step by step.
    """
    high = x.to(PART)
    low = (x - high.to(tl.float32)).to(PART)
    return tl.dot(ones, low, tl.dot(ones, high, input_precision="ieee"), input_precision="ieee")


@triton.jit(do_not_specialize=COUNTS)
def la_grads(
    x, w, k, v, do, log_a, spans, resets, edges, factors, wide, states, adjoints, dscores, boundary, turns,
    dq, dk, dlog_a, dphase, T, H, NT, places,
    K: tl.constexpr, KG: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, CONST: tl.constexpr, TURN: tl.constexpr, FADED: tl.constexpr, SHARED: tl.constexpr,
    PRECISION: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """dq, dk and the gates' gradient from what each chunk reads: its states and their adjoints.

    x, w: the queries and keys of the walk. d log_a: see `blocks`; by channel for key gates (B, T, H, K), else
    one partial sum per tile of keys (B, T, H, tiles). PART: see `summed`. For a wide chunk, the parts of dq
    and dk through states are written, dscores (B·H, chunks, C, C) and boundary (see `block_starts`), from
    which `la_grad_key` makes the rest. TURN: the phase's gradient in the same way, dphase (B, T, H, K) and
    turns, with J (see the module `turns`) before queries, and -J before keys and states. FADED: v and do have
    the decay of scalar gates from the chunk's middle in them, where the chunk is not wide. SHARED: heads per
    key head, 1 for key gates; dq and dk are those of each head.
    """
    tile, chunk, bh = locate_heads_first(H, NT, tl.cdiv(K, BK))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    own = GradChunk(tile, bh, start, head_offset(bh, T, H) + start * H, end - start, bh * NT + chunk, T, H)
    operands = GradOperands(x, w, k, v, do, log_a, states, adjoints)
    results = GradResults(dscores, boundary, turns, dq, dk, dq, dk, dlog_a, dphase)
    TASK: tl.constexpr = GradTask(GATE, CONST, TURN, FADED, SHARED, PRECISION, PART)
    TILE: tl.constexpr = GradTile(K, KG, V, C, BK, BV)
    channels = channels_of(tile, TURN, TILE)
    cells = cells_of(own, channels.keys, TILE)
    through = through_states(operands, own, channels, TASK, TILE)
    x_tile, w_tile = load_key_heads(x, w, own, channels.keys, TASK, TILE)
    if GATE == KEY:
        store_key_grads(
            through, x_tile, w_tile, factors, wide, operands, results, own, channels, cells, TASK, TILE
        )
    else:
        if GATE == SCALAR:
            decay = chunk_decay(spans, resets, edges, wide, own, FADED, C)
            dx, dw = scalar_grads(
                through, x_tile, w_tile, decay, wide, operands, results, own, channels, cells, TASK, TILE
            )
        else:
            dx, dw = plain_grads(through, x_tile, w_tile, operands, dphase, own, channels, cells, TASK, TILE)
        store_grads(dx, dw, results, cells)


@triton.jit
def channels_of(tile, TURN: tl.constexpr, TILE):
    """Channels of a program."""
    keys = tile * TILE.BK + tl.arange(0, TILE.BK)
    if TURN:
        partner, sign = partners(keys, TILE.K)
        return Channels(keys, partner, sign)
    else:
        return Channels(keys, (), ())


@triton.jit
def cells_of(own, keys, TILE):
    """Where a program's results lie."""
    steps = tl.arange(0, TILE.C)
    inside = (steps < own.left)[:, None] & (keys < TILE.K)[None, :]
    return Cells(own.begin * TILE.K + (steps[:, None] * (own.H * TILE.K) + keys[None, :]), inside)


@triton.jit
def store_grads(dx, dw, results, cells):
    """Store the gradients of queries and keys."""
    tl.store(results.dq + cells.rows, dx.to(results.dq.dtype.element_ty), mask=cells.inside)
    tl.store(results.dk + cells.rows, dw.to(results.dk.dtype.element_ty), mask=cells.inside)


@triton.jit
def through_states(operands, own, channels, TASK, TILE):
    """Products of do and v with each other and with the chunk's state and adjoint.

    dscore [C, C], of pairs in order, dx and dw [C, BK] through states, and what passes through the whole
    chunk [BK], for gates and for phases: rowsum(state ⊙ adjoint), before its decay between the edges.
    """
    dscore = tl.zeros((TILE.C, TILE.C), dtype=tl.float32)
    dx = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    dw = tl.zeros((TILE.C, TILE.BK), dtype=tl.float32)
    ends = tl.zeros((TILE.BK,), dtype=tl.float32)
    turn_ends = tl.zeros((TILE.BK,), dtype=tl.float32)
    K: tl.constexpr = TILE.K
    V: tl.constexpr = TILE.V
    for first in range(0, V, TILE.BV):
        values = first + tl.arange(0, TILE.BV)
        do_tile = load_steps(operands.do, own, values, TILE.C, V)
        v_tile = load_steps(operands.v, own, values, TILE.C, V)
        state = load_rows(operands.states + own.at * K * V, channels.keys, K, V, values, V)
        adjoint = load_rows(operands.adjoints + own.at * K * V, channels.keys, K, V, values, V)
        dscore = tl.dot(do_tile, tl.trans(v_tile), dscore, input_precision=TASK.PRECISION)  # [C, V] @ [V, C]
        dx = tl.dot(do_tile, tl.trans(state), dx, input_precision=TASK.PRECISION)  # [C, V] @ [V, K]
        dw = tl.dot(v_tile, tl.trans(adjoint), dw, input_precision=TASK.PRECISION)  # [C, V] @ [V, K]
        if TASK.GATE != NONE:
            ends += tl.sum(state.to(tl.float32) * adjoint.to(tl.float32), axis=1)
        if TASK.TURN:
            across = load_rows(operands.states + own.at * K * V, channels.partner, K, V, values, V)
            across = across.to(tl.float32)
            turn_ends -= tl.sum(across * adjoint.to(tl.float32), axis=1) * channels.sign
    steps = tl.arange(0, TILE.C)
    dscore = tl.where(steps[:, None] >= steps[None, :], dscore, 0.0)
    return Through(dscore, dx, dw, ends, turn_ends)


@triton.jit
def load_key_heads(x, w, own, keys, TASK, TILE):
    """Queries and keys of the walk, of the key head."""
    K: tl.constexpr = TILE.K
    key_begin, key_heads = own.begin, own.H
    if TASK.SHARED > 1:
        key_heads = own.H // TASK.SHARED
        key_begin = key_head_offset(own.head, own.T, own.H, TASK.SHARED) + own.start * key_heads
    x_tile = load_chunk(x + key_begin * K, own.left, key_heads * K, keys, TILE.C, K)
    w_tile = load_chunk(w + key_begin * K, own.left, key_heads * K, keys, TILE.C, K)
    return x_tile, w_tile


@triton.jit
def plain_grads(through, x_tile, w_tile, operands, dphase, own, channels, cells, TASK, TILE):
    """dx and dw with their parts inside the chunk, where no gate is scalar; stores the gradient of phases."""
    dscore, dx, dw, _, turn_ends = through
    if TASK.TURN:
        turn_ends -= tl.sum(load_turned(operands.w, own, channels, False, TILE) * dw, axis=0)
    weights = dscore.to(operands.x.dtype.element_ty)
    dx = tl.dot(weights, w_tile, dx, input_precision=TASK.PRECISION)  # [C, C] @ [C, K]
    dw = tl.dot(tl.trans(weights), x_tile, dw, input_precision=TASK.PRECISION)  # [C, C] @ [C, K]
    if TASK.TURN:
        store_phases(dx, dw, turn_ends, operands, dphase, own, channels, cells, TASK, TILE)
    return dx, dw


@triton.jit
def store_key_grads(
    through, x_tile, w_tile, factors, wide, operands, results, own, channels, cells, TASK, TILE
):  # fmt: skip
    """Store all gradients under key gates, or of a wide chunk what `store_wide` does."""
    PART: tl.constexpr = TASK.PART
    dscore, dx, dw, ends, turn_ends = through
    steps, keys = tl.arange(0, TILE.C), channels.keys
    between = tl.load(factors + own.at * 3 * TILE.K + TILE.K + keys, mask=keys < TILE.K, other=0.0)
    ends = ends * between
    if TASK.TURN:
        turn_ends = turn_ends * between
    gates = gate_rows(operands.log_a, own, gate_columns(keys, TILE.K, TILE.KG), KEY, TASK.CONST, TILE)
    if tl.load(wide + own.at) != 0:
        through = Through(dscore, dx, dw, ends, turn_ends)
        store_wide(through, factors, gates, operands.k, results, own, channels, cells, TASK, TILE)
    else:
        ends += tl.sum(w_tile.to(tl.float32) * dw, axis=0)
        through = Through(dscore, dx, dw, ends, turn_ends)
        dx, dw = plain_grads(
            through, x_tile, w_tile, operands, results.dphase, own, channels, cells, TASK, TILE
        )
        # as in `blocks`, but for terms that cancel: decay is mild here, so they leave enough
        local = x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * dw
        later = (steps[None, :] >= steps[:, None]).to(PART)
        dgate = summed(later, local, PART) + ends[None, :]
        tl.store(results.dlog_a + cells.rows, dgate, mask=cells.inside)
        sums = sums_from_middle(gates, own.left, PART, TILE)
        store_grads(dx * tl.exp(sums), dw * tl.exp(-sums), results, cells)


@triton.jit
def store_wide(through, factors, gates, k, results, own, channels, cells, TASK, TILE):
    """Store what `la_grad_key` needs of a wide chunk: dscores, parts through states, block starts."""
    C: tl.constexpr = TILE.C
    K: tl.constexpr = TILE.K
    dscore, dx, dw, ends, turn_ends = through
    steps, keys = tl.arange(0, C), channels.keys
    pairs = own.at * C * C + steps[:, None] * C + steps[None, :]
    tl.store(results.dscores + pairs, dscore.to(results.dscores.dtype.element_ty), mask=own.tile == 0)
    dw = dw * tl.exp(decay(gates.base, 0, own.left, gates.stride, gates.columns, TILE.KG, C, KEY, True))
    begin_factor = tl.load(factors + own.at * 3 * K + keys, mask=keys < K, other=0.0)
    ends = ends * begin_factor * begin_factor
    k_tile = load_steps(k, own, keys, C, K).to(tl.float32)
    starts = block_starts(k_tile * dw, ends, C, TILE.BK)
    store_starts(results.boundary, starts, own.at, keys, True, K, C)
    if TASK.TURN:
        turn_ends = turn_ends * begin_factor * begin_factor
        k_tile = load_turned(k, own, channels, False, TILE)
        starts = block_starts(-k_tile * dw, turn_ends, C, TILE.BK)
        store_starts(results.turns, starts, own.at, keys, True, K, C)
    dx = dx * tl.exp(decay(gates.base, 0, own.left, gates.stride, gates.columns, TILE.KG, C, KEY, False))
    tl.store(results.dq_states + cells.rows, dx.to(results.dq_states.dtype.element_ty), mask=cells.inside)
    tl.store(results.dk_states + cells.rows, dw.to(results.dk_states.dtype.element_ty), mask=cells.inside)


@triton.jit
def store_phases(dx, dw, turn_ends, operands, dphase, own, channels, cells, TASK, TILE):
    """Store the gradient of phases; dx and dw have their parts inside the chunk."""
    steps = tl.arange(0, TILE.C)
    later = (steps[None, :] >= steps[:, None]).to(TASK.PART)
    local_turn = load_turned(operands.w, own, channels, False, TILE) * dw
    turned = load_turned(operands.x, own, channels, False, TILE)
    dturn = summed(later, local_turn + turned * dx, TASK.PART) + turn_ends[None, :]
    tl.store(dphase + cells.rows, dturn, mask=cells.inside)


@triton.jit
def chunk_decay(spans, resets, edges, wide, own, FADED: tl.constexpr, C: tl.constexpr):
    """Factors of scalar gates between the chunk's edges and its steps."""
    found = load_spans(spans, resets, edges, own.at, True, C)
    from_start = linked(found.start, 0, found.span, found.reset)
    to_end = linked(found.span, found.reset, found.end, found.reset_end)
    if FADED:
        near = tl.load(wide + own.at) == 0
        from_start = tl.where(near, tl.exp(-found.start), from_start)
        to_end = tl.where(near, tl.exp(found.end), to_end)
    return ScalarDecay(found, from_start, to_end)


@triton.jit
def pair_decay(spans, wide, own, FADED: tl.constexpr, C: tl.constexpr):
    """Factors [C, C] of scalar gates from each step to those after it."""
    steps = tl.arange(0, C)
    span, reset = spans.span, spans.reset
    if tl.load(wide + own.at) != 0:
        factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
        factor = tl.where(steps[:, None] > steps[None, :], factor, 0.0)
    elif FADED:
        factor = tl.full((C, C), 1.0, dtype=tl.float32)
    else:
        factor = tl.exp(span)[:, None] * tl.exp(-span)[None, :]
    return factor


@triton.jit
def scalar_grads(through, x_tile, w_tile, decay, wide, operands, results, own, channels, cells, TASK, TILE):
    """dx and dw with their parts inside the chunk; stores the gradients of scalar gates, and of phases."""
    C: tl.constexpr = TILE.C
    PART: tl.constexpr = TASK.PART
    dscore, dx, dw, ends, turn_ends = through
    dx = dx * decay.from_start[:, None]
    dw = dw * decay.to_end[:, None]
    steps, spans = tl.arange(0, C), decay.spans
    total = linked(spans.start, 0, spans.end, spans.reset_end)
    dgate = tl.sum(total * ends, axis=0)
    carried = tl.sum(w_tile.to(tl.float32) * dw, axis=1)
    if TASK.TURN:
        turned = load_turned(operands.w, own, channels, True, TILE)
        before = (steps[None, :] < steps[:, None]).to(PART)
        dturn = summed(before, turned * dw, PART) + (total * turn_ends)[None, :]
    factor = pair_decay(spans, wide, own, TASK.FADED, C)
    same = tl.sum(tl.where(steps[:, None] == steps[None, :], dscore, 0.0), axis=1)[:, None]
    weights = tl.where(steps[:, None] > steps[None, :], dscore * factor, 0.0).to(x_tile.dtype)
    dx = tl.dot(weights, w_tile, dx, input_precision=TASK.PRECISION)  # [C, C] @ [C, K]
    inner = tl.dot(tl.trans(weights), x_tile, input_precision=TASK.PRECISION)  # [C, C] @ [C, K]
    if TASK.TURN:
        local_turn = load_turned(operands.w, own, channels, False, TILE) * inner
        local_turn += load_turned(operands.x, own, channels, False, TILE) * dx
        dturn += summed((steps[None, :] >= steps[:, None]).to(PART), local_turn, PART)
        tl.store(results.dphase + cells.rows, dturn, mask=cells.inside)
    local = tl.sum(x_tile.to(tl.float32) * dx - w_tile.to(tl.float32) * inner, axis=1)
    # a sum over steps, and no scan: Triton cannot lay those out on sm_100
    pairs = tl.where(steps[:, None] <= steps[None, :], local[None, :], carried[None, :])
    dgate = tl.sum(pairs, axis=1) + dgate
    gates = gate_rows(operands.log_a, own, steps, SCALAR, TASK.CONST, TILE)
    log_gate = tl.load(gates.base + steps * gates.stride, mask=steps < own.left, other=0.0)
    dgate = tl.where(log_gate == float("-inf"), 0.0, dgate)
    parts = results.dlog_a + (own.begin + steps * own.H) * tl.cdiv(TILE.K, TILE.BK) + own.tile
    tl.store(parts, dgate, mask=steps < own.left)
    return dx + same * w_tile.to(tl.float32), dw + (inner + same * x_tile.to(tl.float32))
