"""The walks: a program takes the chunks of a sequence in order, with its strip of the state in registers.

The state is kept transposed, V × K, and so is everything that meets it. All products then have a strip of the
state, of x or of y on their left, which goes from one product to the next in registers; only what all strips
share comes from shared memory.

Where heads are few, each is cut into NS segments of PER chunks, and a program walks through one: first from a
state of 0 and, without values, from I, which gives the state S ↦ M S + U that a segment makes; then, once
`delta_carry` has found the state in which each segment begins, for the results.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.packed import counted
from ..._triton.sequences import sequence_of
from .inverse import load_square
from .parts import edges_of, rows_of, up_to


@triton.jit
def twice(x, high, low, at, TURNED: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr):
    """x · M, or x · Mᵀ if TURNED, with M = high + low."""
    matrix = load_square(high, at, C)
    matrix = tl.trans(matrix) if TURNED else matrix
    product = tl.dot(x, matrix, input_precision=PRECISION)
    if low is not None:
        rest = load_square(low, at, C)
        rest = tl.trans(rest) if TURNED else rest
        product = tl.dot(x, rest, product, input_precision=PRECISION)
    return product


@triton.jit
def turned(x):
    """xᵀ in float32, exactly: half types by a product with I, so that their loads are pipelined."""
    if x.dtype == tl.float32:
        return tl.trans(x)
    else:
        steps = tl.arange(0, x.shape[0])
        return tl.dot(tl.trans(x), (steps[:, None] == steps[None, :]).to(x.dtype))


@triton.jit
def segment_of(number, chunks, NS, PER):
    """First chunk and number of chunks of a segment; without segments, of a head."""
    if NS is None:
        return 0, chunks
    else:
        begin = (number % NS).to(tl.int32) * PER
        return begin, counted(tl.minimum(PER, -begin + chunks))


@triton.jit
def store_rows(to, x, t, stop, stride, values, V: tl.constexpr):
    """Store x (values, steps) as rows t."""
    mask = (t < stop)[:, None] & (values < V)[None, :]
    tl.store(to + t[:, None] * stride + values[None, :], tl.trans(x.to(to.dtype.element_ty)), mask=mask)


@triton.jit(do_not_specialize=("T", "H", "NT", "NS", "PER"))
def delta_walk(
    q, k, v, beta, high, low, scores, gates, initial, o, final, states, written, bounds, T, H, NT, NS, PER,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARED: tl.constexpr, EMIT: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """o and the final state. EMIT: write o. KEEP: write the state before each chunk, and y, for backward.

    states: (batch · H · NT, V, K). written: y, like v. NS, PER: None without segments. With them `initial` is
    (batch · H, NS, K, V), and so is `final` of a walk that neither emits nor keeps: the end of each segment.
    v: None for a walk from I with values of 0, where V = K.
    """
    strips = tl.cdiv(V, BV)
    strip, number = tl.program_id(0) % strips, (tl.program_id(0) // strips).to(tl.int64)
    bh = number if NS is None else number // NS
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    begin, count = segment_of(number, chunks, NS, PER)
    key_heads = H // SHARED
    key_row = row // H * key_heads + bh % H // SHARED
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    mask = (values < V)[:, None] & (keys < K)[None, :]
    state = tl.zeros((BV, BK), tl.float32)
    if v is None:
        state += tl.where(values[:, None] == keys[None, :], 1.0, 0.0)
    if initial is not None:
        state += tl.load(initial + number * K * V + keys[None, :] * V + values[:, None], mask=mask, other=0.0)
    steps = tl.arange(0, C).to(tl.int64)
    for inner in tl.range(counted(count) if bounds is not None else count, num_stages=STAGES):
        chunk = begin + inner
        at = (bh * NT if bounds is None else origin) + chunk
        t = chunk * C + steps
        k_tile = rows_of(k + key_row * K, t, stop, key_heads * K, keys, K)
        if v is not None:
            v_tile = turned(rows_of(v + row * V, t, stop, H * V, values, V))
        rate = up_to(beta + row, t, stop, H)
        from_start, to_end, whole = edges_of(gates, at, C)
        held = state.to(k_tile.dtype)
        recalled = tl.dot(held, tl.trans(k_tile), input_precision=PRECISION) * from_start[None, :]
        if v is None:
            x = (rate[None, :] * -recalled).to(k_tile.dtype)
        else:
            x = (rate[None, :] * (v_tile - recalled)).to(k_tile.dtype)
        y = twice(x, high, low, at, True, C, PRECISION)
        if KEEP:
            inside = states + at * K * V + values[:, None] * K + keys[None, :]
            tl.store(inside, held.to(states.dtype.element_ty), mask=mask)
            store_rows(written + row * V, y, t, stop, H * V, values, V)
        if EMIT:
            q_tile = rows_of(q + key_row * K, t, stop, key_heads * K, keys, K)
            out = tl.dot(held, tl.trans(q_tile), input_precision=PRECISION) * from_start[None, :]
            seen = tl.trans(load_square(scores, at, C))
            out = tl.dot(y.to(k_tile.dtype), seen, out, input_precision=PRECISION)
            store_rows(o + row * V, out, t, stop, H * V, values, V)
        faded = (y * to_end[None, :]).to(k_tile.dtype)
        state = tl.dot(faded, k_tile, state * whole, input_precision=PRECISION)
    if NS is not None and (EMIT or KEEP):
        mask = mask & (number % NS == NS - 1)
        number = bh
    tl.store(final + number * K * V + keys[None, :] * V + values[:, None], state, mask=mask)


@triton.jit(do_not_specialize=("T", "H", "NT", "NS", "PER"))
def delta_walk_back(
    q, k, beta, high, low, scores, gates, do, dfinal, dx, dstates, dinitial, bounds, T, H, NT, NS, PER,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx (like v), the gradients of the states after the chunks (batch · H · NT, V, K), and dS_0.

    With segments `dfinal` is (batch · H, NS, K, V), and so is `dinitial` of a walk without dx and dstates.
    """
    strips = tl.cdiv(V, BV)
    strip, number = tl.program_id(0) % strips, (tl.program_id(0) // strips).to(tl.int64)
    bh = number if NS is None else number // NS
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    begin, count = segment_of(number, chunks, NS, PER)
    key_heads = H // SHARED
    key_row = row // H * key_heads + bh % H // SHARED
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    mask = (values < V)[:, None] & (keys < K)[None, :]
    outside = number * K * V + keys[None, :] * V + values[:, None]
    dstate = tl.zeros((BV, BK), tl.float32)
    if dfinal is not None:
        dstate += tl.load(dfinal + outside, mask=mask, other=0.0)
    steps = tl.arange(0, C).to(tl.int64)
    for walked in tl.range(counted(count) if bounds is not None else count, num_stages=STAGES):
        chunk = begin + count - 1 - walked
        at = (bh * NT if bounds is None else origin) + chunk
        t = chunk * C + steps
        q_tile = rows_of(q + key_row * K, t, stop, key_heads * K, keys, K)
        k_tile = rows_of(k + key_row * K, t, stop, key_heads * K, keys, K)
        do_tile = rows_of(do + row * V, t, stop, H * V, values, V)
        rate = up_to(beta + row, t, stop, H)
        from_start, to_end, whole = edges_of(gates, at, C)
        held = dstate.to(k_tile.dtype)
        if dstates is not None:
            inside = dstates + at * K * V + values[:, None] * K + keys[None, :]
            tl.store(inside, held.to(dstates.dtype.element_ty), mask=mask)
        dy = tl.dot(held, tl.trans(k_tile), input_precision=PRECISION) * to_end[None, :]
        dy = tl.dot(tl.trans(do_tile), load_square(scores, at, C), dy, input_precision=PRECISION)
        found = twice(dy.to(k_tile.dtype), high, low, at, False, C, PRECISION)
        if dx is not None:
            store_rows(dx + row * V, found, t, stop, H * V, values, V)
        seen = (turned(do_tile) * from_start[None, :]).to(k_tile.dtype)
        dstate = tl.dot(seen, q_tile, dstate * whole, input_precision=PRECISION)
        taken = (found * -(rate * from_start)[None, :]).to(k_tile.dtype)
        dstate = tl.dot(taken, k_tile, dstate, input_precision=PRECISION)
    if dinitial is not None:
        if NS is not None and dx is not None:
            mask = mask & (number % NS == 0)
            dinitial += (bh - number) * K * V
        tl.store(dinitial + outside, dstate, mask=mask)
