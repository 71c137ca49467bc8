"""Backward: Λ_t = do_t ⊗ q_t + a_{t+1} ⊙ Λ_{t+1} in descending time, and from it every operand's gradient.

dq_t = Σ_d S_t do_t, dk_t = Σ_d Λ_t Δ_t x_t, dx_t = Δ_t Σ_n Λ_t k_t. With P_t = Λ_t ⊙ a_t ⊙ S_{t−1} of exp
gates, dΔ_t = Σ_n P_t A + x_t Σ_n Λ_t k_t and dA = Σ_t P_t Δ_t. With Q_t = Λ_t ⊙ S_{t−1} of implicit ones,
−Q_t k_t² stands for P_t A, and −2 k_t Σ_d Q_t Δ_t joins dk_t. No gate is divided by, so resets are exact.

States come from those that forward saved before every ROUNDS rounds of R steps: they are advanced once to
note the state before each round, and once more within a round, whose states and gates stay in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .spans import enter_span
from .steps import (
    advance,
    constant,
    decay_rates,
    fetch_channels,
    fetch_keys,
    gates,
    load_plane,
    load_state,
    store_plane,
    store_state,
    tile,
    unpack,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def fetch_writes(
    x, delta, k, token, step, end, D: tl.constexpr, WORDS_K: tl.constexpr, channel, group, in_channels,
    PER_K: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """x, Δ, and the words of k at R steps: what the states are made of."""
    return (
        fetch_channels(x, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_channels(delta, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_keys(k, token, step, end, WORDS_K, group, M // PER_K, WHOLE, R),
    )


@triton.jit
def fetch_reads(
    g, q, token, step, end, D: tl.constexpr, WORDS_Q: tl.constexpr, channel, group, in_channels,
    PER_Q: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The gradient of o, and the words of q at R steps."""
    return (
        fetch_channels(g, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_keys(q, token, step, end, WORDS_Q, group, M // PER_Q, WHOLE, R),
    )


@triton.jit
def over_channels(terms, M: tl.constexpr):
    """Sums over the channels of 2·M terms (BD, G), as (G, 2·M)."""
    if M == 8:
        joined = ()
        for j in tl.static_range(8):
            joined += (tl.join(terms[j], terms[j + 8]),)
    else:
        joined = terms
    fours = ()
    for j in tl.static_range(4):
        fours += (tl.join(joined[j], joined[j + 4]),)
    sums = tl.join(tl.join(fours[0], fours[2]), tl.join(fours[1], fours[3]))
    return tl.reshape(tl.sum(sums, axis=0), (terms[0].shape[1], 2 * M))


@triton.jit
def step_back(
    mu, before, after, gate, rates, dA, keys, queries, size, value, g,
    GATE: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """μ_t = a_t ⊙ Λ_t from μ_{t+1}, dA with its term, dx and dΔ (BD, G), and dk beside dq (G, 2·M)."""
    update = size * value
    mus, totals, dk, dq = (), (), (), ()
    over_x = tl.zeros(size.shape, tl.float32)
    over_size = tl.zeros(size.shape, tl.float32)
    for j in tl.static_range(M):
        adjoint = g * queries[j] + mu[j]
        over_x += adjoint * keys[j]
        m = gate[j] * adjoint
        term = adjoint * update
        if GATE == "exp":
            p = m * before[j]
            over_size += p * rates[j]
            totals += (dA[j] + p * size,)
        else:
            p = adjoint * before[j]
            over_size -= p * (keys[j] * keys[j])
            term -= (p * size) * (2.0 * keys[j])
            totals += (dA[j],)
        mus += (m,)
        dk += (term,)
        dq += (after[j] * g,)
    if GATE == "exp":
        over_size *= LN_2
    over_size += value * over_x
    dx = size * tl.sum(over_x, axis=1, keep_dims=True)
    dsize = tl.broadcast_to(tl.sum(over_size, axis=1, keep_dims=True), size.shape)
    return mus, totals, dx, dsize, over_channels(dk + dq, M)


@triton.jit(do_not_specialize=["T", "span", "spans", "marks", "span_marks"])
def selective_scan_backward(
    x, delta, k, q, A, g, saved, final_grad, sums, decays, scratch,
    dx, ddelta, dkq, dA, dstate,
    T, span, spans, marks, span_marks,
    D: tl.constexpr, N: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    GATE: tl.constexpr, KIND_K: tl.constexpr, KIND_Q: tl.constexpr, PER_K: tl.constexpr, PER_Q: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, FLUSH: tl.constexpr, ROUNDS: tl.constexpr,
    R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A program: BD channels of a batch element, one span of time, from its end.

    saved: (B, marks, G·M, D). sums, decays: summaries of all spans of the reversed recurrence, None with one
    span. scratch: (programs, ROUNDS, G·M, BD). dkq: (B, blocks, T, G, 2, M). dA: (B, spans, G·M, D).
    """
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    place = rest % spans
    batch = (rest // spans).to(tl.int64)
    token = batch * T
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, EVEN)
    own, _, everywhere = tile(0, BD, BD, G, VECTOR, True)
    scratch += tl.program_id(0).to(tl.int64) * (ROUNDS * G * M * BD)
    partial = (batch * blocks + block) * T
    entry = tl.arange(0, G)[:, None] * (2 * M) + tl.arange(0, 2 * M)[None, :]

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    mu = load_state(final_grad + batch * D * N, channel, group, N, in_channels, M)
    if sums is not None:
        mu = enter_span(mu, sums, decays, rates, batch * spans + spans - 1, spans - 1 - place, -1, channel,
                        group, D, in_channels, GATE, FLUSH, G, M)  # fmt: skip
    totals = constant(0.0, BD, G, M)

    first = (place * span).to(tl.int64)
    end = tl.minimum(first + span, T)
    for b in range(0, span_marks):
        start = first + (span_marks - 1 - b) * (R * ROUNDS)
        last = start + (ROUNDS - 1) * R
        reads = fetch_reads(g, q, token, last, end, D, WORDS_Q, channel, group, in_channels,
                            PER_Q, WHOLE, R, M)  # fmt: skip
        writes = fetch_writes(x, delta, k, token, start, end, D, WORDS_K, channel, group, in_channels,
                              PER_K, WHOLE, R, M)  # fmt: skip
        mark = batch * marks + start // (R * ROUNDS)
        S = load_plane(saved + mark * (G * M * D), channel, group, D, in_channels & (start < end), M)
        for i in range(0, ROUNDS - 1):
            store_plane(scratch + i * (G * M * BD), S, own, group, BD, everywhere, M)
            following = fetch_writes(x, delta, k, token, start + (i + 1) * R, end, D, WORDS_K, channel, group,
                                     in_channels, PER_K, WHOLE, R, M)  # fmt: skip
            for r in tl.static_range(R):
                size = writes[1][r].to(tl.float32)
                keys = unpack(writes[2][r], KIND_K, M)
                gate = gates(size, rates, keys, GATE, FLUSH, M)
                S = advance(S, gate, keys, size * writes[0][r].to(tl.float32), M)
            writes = following
        tl.debug_barrier()

        for i in range(0, ROUNDS):
            now = last - i * R
            kept_gates, states = (), ()
            for r in tl.static_range(R):
                size = writes[1][r].to(tl.float32)
                keys = unpack(writes[2][r], KIND_K, M)
                gate = gates(size, rates, keys, GATE, FLUSH, M)
                kept_gates += (gate,)
                states += (S,)
                S = advance(S, gate, keys, size * writes[0][r].to(tl.float32), M)
            states += (S,)
            ahead = tl.maximum(now - R, start)
            next_reads = fetch_reads(g, q, token, ahead, end, D, WORDS_Q, channel, group, in_channels,
                                     PER_Q, WHOLE, R, M)  # fmt: skip
            next_writes = fetch_writes(x, delta, k, token, ahead, end, D, WORDS_K, channel, group,
                                       in_channels, PER_K, WHOLE, R, M)  # fmt: skip
            slot = tl.maximum(ROUNDS - 2 - i, 0)
            S = load_plane(scratch + slot * (G * M * BD), own, group, BD, everywhere, M)
            row = (token + now) * D + channel
            pairs = dkq + (partial + now) * (G * 2 * M) + entry
            for r in tl.static_range(R - 1, -1, -1):
                inside = in_channels & (group == 0)
                in_groups = entry < G * 2 * M
                if not WHOLE:
                    inside = inside & (now + r < end)
                    in_groups = in_groups & (now + r < end)
                mu, totals, step_dx, step_dsize, step_keys = step_back(
                    mu, states[r], states[r + 1], kept_gates[r], rates, totals,
                    unpack(writes[2][r], KIND_K, M), unpack(reads[1][r], KIND_Q, M),
                    writes[1][r].to(tl.float32), writes[0][r].to(tl.float32), reads[0][r].to(tl.float32),
                    GATE, M,
                )  # fmt: skip
                tl.store(dx + row + r * D, step_dx.to(dx.dtype.element_ty), mask=inside)
                tl.store(ddelta + row + r * D, step_dsize.to(ddelta.dtype.element_ty), mask=inside)
                tl.store(pairs + r * (G * 2 * M), step_keys, mask=in_groups)
            reads = next_reads
            writes = next_writes
        tl.debug_barrier()

    if place == 0:
        store_state(dstate + batch * D * N, mu, channel, group, N, in_channels, M)
    if dA is not None:
        store_plane(dA + (batch * spans + place) * (G * M * D), totals, channel, group, D, in_channels, M)
