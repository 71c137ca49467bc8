"""Forward: S_t = a_t ⊙ S_{t−1} + (Δ_t x_t) ⊗ k_t and o_t = S_t q_t, over all of time or one span of it."""

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
    load_state,
    store_plane,
    store_state,
    tile,
    unpack,
)


@triton.jit
def fetch(
    x, delta, k, q, token, step, end, D: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    channel, group, in_channels,
    PER_K: tl.constexpr, PER_Q: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """x, Δ, and the words of k and q at R steps."""
    return (
        fetch_channels(x, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_channels(delta, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_keys(k, token, step, end, WORDS_K, group, M // PER_K, WHOLE, R),
        fetch_keys(q, token, step, end, WORDS_Q, group, M // PER_Q, WHOLE, R),
    )


@triton.jit(do_not_specialize=["T", "span", "rounds", "spans", "marks"])
def selective_scan_forward(
    x, delta, k, q, A, state, sums, decays, o, final, saved,
    T, span, rounds, spans, marks,
    D: tl.constexpr, N: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    GATE: tl.constexpr, KIND_K: tl.constexpr, KIND_Q: tl.constexpr, PER_K: tl.constexpr, PER_Q: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, FLUSH: tl.constexpr, ROUNDS: tl.constexpr,
    R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A program: BD channels of a batch element, one span of time, R steps a round.

    sums, decays: the summaries of all spans, None with one span. saved: (B, marks, G·M, D), the states before
    every ROUNDS rounds, or None.
    """
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    place = rest % spans
    batch = (rest // spans).to(tl.int64)
    token = batch * T
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, EVEN)

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    if state is not None:
        S = load_state(state + batch * D * N, channel, group, N, in_channels, M)
    else:
        S = constant(0.0, BD, G, M)
    if sums is not None:
        S = enter_span(S, sums, decays, rates, batch * spans, place, 1, channel, group, D, in_channels,
                       GATE, FLUSH, G, M)  # fmt: skip

    first = (place * span).to(tl.int64)
    end = tl.minimum(first + span, T)
    inputs = fetch(x, delta, k, q, token, first, end, D, WORDS_K, WORDS_Q, channel, group, in_channels,
                   PER_K, PER_Q, WHOLE, R, M)  # fmt: skip
    for i in range(0, rounds):
        now = first + i * R
        # The next round's operands are under way while this one is computed.
        following = fetch(x, delta, k, q, token, now + R, end, D, WORDS_K, WORDS_Q, channel, group,
                          in_channels, PER_K, PER_Q, WHOLE, R, M)  # fmt: skip
        if saved is not None:
            mark = batch * marks + now // (R * ROUNDS)
            if i % ROUNDS == 0:
                store_plane(saved + mark * (G * M * D), S, channel, group, D, in_channels & (now < end), M)
        at = o + (token + now) * D + channel
        for r in tl.static_range(R):
            size = inputs[1][r].to(tl.float32)
            keys = unpack(inputs[2][r], KIND_K, M)
            queries = unpack(inputs[3][r], KIND_Q, M)
            gate = gates(size, rates, keys, GATE, FLUSH, M)
            S = advance(S, gate, keys, size * inputs[0][r].to(tl.float32), M)
            total = S[0] * queries[0]
            for j in tl.static_range(1, M):
                total += S[j] * queries[j]
            total = tl.broadcast_to(tl.sum(total, axis=1, keep_dims=True), (BD, G))
            inside = in_channels & (group == 0)
            if not WHOLE:
                inside = inside & (now + r < end)
            tl.store(at + r * D, total.to(o.dtype.element_ty), mask=inside)
        inputs = following
    if place == spans - 1:
        store_state(final + batch * D * N, S, channel, group, N, in_channels, M)
