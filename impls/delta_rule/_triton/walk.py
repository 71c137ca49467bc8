"""The walk: a program takes the chunks of a sequence in order, with its strip of the state in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.packed import counted
from ...linear_attention._triton.sequences import sequence_of
from .inverse import load_inverse
from .parts import decay_of, exact_times, rows_of


@triton.jit(do_not_specialize=("T", "H", "NT"))
def delta_walk(
    q, k, v, beta, log_a, inverse, initial, o, final, states, written, bounds, T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARED: tl.constexpr, GATED: tl.constexpr, EMIT: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """o and the final state. EMIT: write o. KEEP: write the state before each chunk, and y, for backward.

    states: (batch · H · NT, K, V). written: y, like v.
    """
    strips = tl.cdiv(V, BV)
    strip, bh = tl.program_id(0) % strips, (tl.program_id(0) // strips).to(tl.int64)
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    head, key_heads = bh % H, H // SHARED
    key_row = row // H * key_heads + head // SHARED
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    inside = keys[:, None] * V + values[None, :]
    mask = (keys < K)[:, None] & (values < V)[None, :]
    state = tl.zeros((BK, BV), tl.float32)
    if initial is not None:
        state += tl.load(initial + bh * K * V + inside, mask=mask, other=0.0)
    steps = tl.arange(0, C).to(tl.int64)
    for number in tl.range(counted(chunks) if bounds is not None else chunks, num_stages=STAGES):
        at = (bh * NT if bounds is None else origin) + number
        t = number * C + steps
        k_tile = rows_of(k + key_row * K, t, stop, key_heads * K, keys, K)
        v_tile = rows_of(v + row * V, t, stop, H * V, values, V)
        rate = tl.load(beta + row + t * H, mask=t < stop, other=0.0).to(tl.float32)
        decay, from_start, to_end, whole = decay_of(log_a + row if GATED else None, t, stop, H, GATED, C)
        held = state.to(k_tile.dtype)
        recalled = tl.dot(k_tile, held, input_precision=PRECISION) * from_start[:, None]
        x = (rate[:, None] * (v_tile.to(tl.float32) - recalled)).to(k_tile.dtype)
        y = exact_times(load_inverse(inverse, at, C) * decay, x, PRECISION)
        if KEEP:
            tl.store(states + at * K * V + inside, state.to(states.dtype.element_ty), mask=mask)
            kept = (t < stop)[:, None] & (values < V)[None, :]
            places = written + row * V + t[:, None] * (H * V) + values[None, :]
            tl.store(places, y.to(written.dtype.element_ty), mask=kept)
        if EMIT:
            q_tile = rows_of(q + key_row * K, t, stop, key_heads * K, keys, K)
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * decay
            out = tl.dot(q_tile, held, input_precision=PRECISION) * from_start[:, None]
            out = tl.dot(scores.to(k_tile.dtype), y.to(k_tile.dtype), out, input_precision=PRECISION)
            places = o + row * V + t[:, None] * (H * V) + values[None, :]
            kept = (t < stop)[:, None] & (values < V)[None, :]
            tl.store(places, out.to(o.dtype.element_ty), mask=kept)
        faded = (y * to_end[:, None]).to(k_tile.dtype)
        state = tl.dot(tl.trans(k_tile), faded, state * whole, input_precision=PRECISION)
    tl.store(final + bh * K * V + inside, state, mask=mask)


@triton.jit(do_not_specialize=("T", "H", "NT"))
def delta_walk_back(
    q, k, beta, log_a, inverse, do, dfinal, dx, dstates, dinitial, bounds, T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARED: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx (like v), the gradients of the states after the chunks (batch · H · NT, K, V), and dS_0."""
    strips = tl.cdiv(V, BV)
    strip, bh = tl.program_id(0) % strips, (tl.program_id(0) // strips).to(tl.int64)
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    head, key_heads = bh % H, H // SHARED
    key_row = row // H * key_heads + head // SHARED
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    inside = keys[:, None] * V + values[None, :]
    mask = (keys < K)[:, None] & (values < V)[None, :]
    dstate = tl.zeros((BK, BV), tl.float32)
    if dfinal is not None:
        dstate += tl.load(dfinal + bh * K * V + inside, mask=mask, other=0.0)
    steps = tl.arange(0, C).to(tl.int64)
    for walked in tl.range(counted(chunks) if bounds is not None else chunks, num_stages=STAGES):
        number = chunks - 1 - walked
        at = (bh * NT if bounds is None else origin) + number
        t = number * C + steps
        q_tile = rows_of(q + key_row * K, t, stop, key_heads * K, keys, K)
        k_tile = rows_of(k + key_row * K, t, stop, key_heads * K, keys, K)
        do_tile = rows_of(do + row * V, t, stop, H * V, values, V)
        rate = tl.load(beta + row + t * H, mask=t < stop, other=0.0).to(tl.float32)
        decay, from_start, to_end, whole = decay_of(log_a + row if GATED else None, t, stop, H, GATED, C)
        tl.store(dstates + at * K * V + inside, dstate.to(dstates.dtype.element_ty), mask=mask)
        scores = tl.dot(k_tile, tl.trans(q_tile), input_precision=PRECISION) * tl.trans(decay)
        dy = tl.dot(k_tile, dstate.to(k_tile.dtype), input_precision=PRECISION) * to_end[:, None]
        dy = tl.dot(scores.to(k_tile.dtype), do_tile, dy, input_precision=PRECISION)
        turned = tl.trans(load_inverse(inverse, at, C) * decay)
        found = exact_times(turned, dy.to(k_tile.dtype), PRECISION)
        places = dx + row * V + t[:, None] * (H * V) + values[None, :]
        tl.store(places, found.to(dx.dtype.element_ty), mask=(t < stop)[:, None] & (values < V)[None, :])
        seen = (do_tile.to(tl.float32) * from_start[:, None]).to(k_tile.dtype)
        dstate = tl.dot(tl.trans(q_tile), seen, dstate * whole, input_precision=PRECISION)
        taken = (found * -(rate * from_start)[:, None]).to(k_tile.dtype)
        dstate = tl.dot(tl.trans(k_tile), taken, dstate, input_precision=PRECISION)
    if dinitial is not None:
        tl.store(dinitial + bh * K * V + inside, dstate, mask=mask)
