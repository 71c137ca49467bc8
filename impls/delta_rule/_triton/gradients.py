"""Gradients of all operands, by chunk: everything that has no order.

With X = dx and y, S and dS' of the walks, and Z = tril(do yᵀ) ⊙ G, N = −β tril(X yᵀ, −1) ⊙ G:

    dq = γ do Sᵀ + Z K
    dk = (γ_C/γ) y dS'ᵀ − β γ X Sᵀ + Zᵀ Q + (N + Nᵀ) K
    dβ_i = X_i · (v_i − γ_i Sᵀ k_i) + Σ_j N_ij (K Kᵀ)_ij / β_i

The gradient of a sum of log gates adds what reads across its step and takes what ends there: rows of
E = Z ⊙ Q Kᵀ + N ⊙ K Kᵀ less columns, and products with the state. Log gates get the sums of it from their
step on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import RESET, chunk_steps
from .parts import decay_of, edges_of, rows_of, up_to


@triton.jit(do_not_specialize=("T", "H", "NT", "ALL_K", "ALL_V"))
def delta_gradients(
    q, k, v, beta, log_a, gates, do, dx, written, states, dstates, dq, dk, dv, dbeta, dlog_a, places,
    T, H, NT, ALL_K, ALL_V,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SHARED: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program has one chunk and a strip of keys; the gradients of β and gates are parts, one per strip.

    dq, dk: (B, T, H, K), one for each head of v. dbeta, dlog_a: (strips, B, T, H). ALL_K, ALL_V: K and V, for
    bounds of loops: Triton 3.6 folds a loop that is known to have one step, and the kernel that it then makes
    for Hopper reads outside of shared memory.
    """
    strips = tl.cdiv(K, BK)
    strip, rest = tl.program_id(0) % strips, (tl.program_id(0) // strips).to(tl.int64)
    chunk, bh = rest % NT, rest // NT
    batch, head = bh // H, bh % H
    first, stop = chunk_steps(chunk, T, NT, places, C)
    if first >= stop:  # an empty place
        return
    at = bh * NT + chunk
    key_heads = H // SHARED
    key_row, row = batch * T * key_heads + head // SHARED, batch * T * H + head
    keys = strip * BK + tl.arange(0, BK)
    steps = tl.arange(0, C)
    t = first + steps
    rate = up_to(beta + row, t, stop, H)
    alike = tl.zeros((C, C), tl.float32)  # K Kᵀ
    scores = tl.zeros((C, C), tl.float32)  # Q Kᵀ
    for begin in tl.range(0, ALL_K, BK, num_stages=STAGES):
        columns = begin + tl.arange(0, BK)
        key_tile = rows_of(k + key_row * K, t, stop, key_heads * K, columns, K)
        alike = tl.dot(key_tile, tl.trans(key_tile), alike, input_precision=PRECISION)
        if GATED:
            query_tile = rows_of(q + key_row * K, t, stop, key_heads * K, columns, K)
            scores = tl.dot(query_tile, tl.trans(key_tile), scores, input_precision=PRECISION)
    of_outputs = tl.zeros((C, C), tl.float32)  # do yᵀ
    of_inverse = tl.zeros((C, C), tl.float32)  # dx yᵀ
    of_values = tl.zeros((C,), tl.float32)  # dx · v
    for begin in tl.range(0, ALL_V, BV, num_stages=STAGES):
        values = begin + tl.arange(0, BV)
        at_values = row * V + t[:, None] * (H * V) + values[None, :]
        kept = (t < stop)[:, None] & (values < V)[None, :]
        do_tile = tl.load(do + at_values, mask=kept, other=0.0)
        dx_tile = tl.load(dx + at_values, mask=kept, other=0.0)
        y_tile = tl.load(written + at_values, mask=kept, other=0.0)
        of_outputs = tl.dot(do_tile, tl.trans(y_tile), of_outputs, input_precision=PRECISION)
        of_inverse = tl.dot(dx_tile, tl.trans(y_tile), of_inverse, input_precision=PRECISION)
        if strip == 0:
            wide = dx_tile.to(tl.float32)
            of_values += tl.sum(wide * tl.load(v + at_values, mask=kept, other=0.0).to(tl.float32), axis=1)
            tl.store(dv + at_values, (wide * rate[:, None]).to(dv.dtype.element_ty), mask=kept)
    decay = decay_of(log_a + row if GATED else None, t, stop, H, GATED, C)
    above = steps[:, None] > steps[None, :]
    seen = of_outputs * decay
    known = tl.where(above, -of_inverse * decay, 0.0)
    own = tl.where(strip == 0, 1.0, 0.0)  # what all strips find alike is one strip's part
    rate_parts = (of_values + tl.sum(known * alike, axis=1)) * own
    known = known * rate[:, None]
    if GATED:
        pairs = tl.where(above, seen * scores, 0.0) + known * alike
        sums = (tl.sum(pairs, axis=1) - tl.sum(pairs, axis=0)) * own
    both = (known + tl.trans(known)).to(k.dtype.element_ty)
    halved = seen.to(k.dtype.element_ty)
    read = tl.zeros((C, BK), tl.float32)  # do Sᵀ
    ended = tl.zeros((C, BK), tl.float32)  # y dS'ᵀ
    recalled = tl.zeros((C, BK), tl.float32)  # dx Sᵀ
    carried = tl.zeros((BK,), tl.float32)  # S · dS' along the values
    for begin in tl.range(0, ALL_V, BV, num_stages=STAGES):
        values = begin + tl.arange(0, BV)
        at_values = row * V + t[:, None] * (H * V) + values[None, :]
        kept = (t < stop)[:, None] & (values < V)[None, :]
        inside = at * K * V + values[:, None] * K + keys[None, :]
        held = (values < V)[:, None] & (keys < K)[None, :]
        state = tl.load(states + inside, mask=held, other=0.0)
        dstate = tl.load(dstates + inside, mask=held, other=0.0)
        read = tl.dot(tl.load(do + at_values, mask=kept, other=0.0), state, read, input_precision=PRECISION)
        y_tile = tl.load(written + at_values, mask=kept, other=0.0)
        ended = tl.dot(y_tile, dstate, ended, input_precision=PRECISION)
        dx_tile = tl.load(dx + at_values, mask=kept, other=0.0)
        recalled = tl.dot(dx_tile, state, recalled, input_precision=PRECISION)
        if GATED:
            carried += tl.sum(state.to(tl.float32) * dstate.to(tl.float32), axis=0)
    from_start, to_end, whole = edges_of(gates, at, C)
    read = read * from_start[:, None]
    ended = ended * to_end[:, None]
    recalled = recalled * from_start[:, None]
    q_tile = rows_of(q + key_row * K, t, stop, key_heads * K, keys, K)
    k_tile = rows_of(k + key_row * K, t, stop, key_heads * K, keys, K)
    along = tl.sum(recalled * k_tile.to(tl.float32), axis=1)
    at_parts = (strip.to(tl.int64) * (tl.num_programs(0) // (strips * NT)) // H) * T * H + row + t * H
    tl.store(dbeta + at_parts, rate_parts - along, mask=t < stop)
    if GATED:
        sums += tl.sum(read * q_tile.to(tl.float32), axis=1) - along * rate
        to_last = tl.sum(ended * k_tile.to(tl.float32), axis=1)
        before = tl.where(steps[:, None] < steps[None, :], to_last[:, None], 0.0)
        passed = tl.sum(before, axis=0) + whole * tl.sum(carried, axis=0)
        gate = up_to(log_a + row, t, stop, H)
        found = tl.where(gate < RESET, 0.0, tl.cumsum(sums, reverse=True) + passed)
        tl.store(dlog_a + at_parts, found, mask=t < stop)
    query = tl.dot(halved, k_tile, read, input_precision=PRECISION)
    key = ended - recalled * rate[:, None]
    key = tl.dot(tl.trans(halved), q_tile, key, input_precision=PRECISION)
    key = tl.dot(both, k_tile, key, input_precision=PRECISION)
    at_keys = row * K + t[:, None] * (H * K) + keys[None, :]
    kept = (t < stop)[:, None] & (keys < K)[None, :]
    tl.store(dq + at_keys, query.to(dq.dtype.element_ty), mask=kept)
    tl.store(dk + at_keys, key.to(dk.dtype.element_ty), mask=kept)
