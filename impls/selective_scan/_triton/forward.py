"""Forward: S_t = a_t ⊙ S_{t−1} + (Δ_t x_t) ⊗ k_t and o_t = S_t q_t, over all of time or one span of it."""

from __future__ import annotations

import triton
import triton.language as tl

from .exchange import over_groups
from .options import (
    advance_held,
    channel_values,
    fetch_spread,
    held_rates,
    held_steps,
    sigmoid,
    step_size,
    step_sizes,
)
from .packed import span_at
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
    x, delta, k, q, z, token, step, end, D: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    channel, group, in_channels, SPREAD: tl.constexpr,
    PER_K: tl.constexpr, PER_Q: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """x, Δ, and the words of k and q at R steps; Δ if SPREAD, and z if any, each group of some of them."""
    inputs = (fetch_channels(x, token, step, end, D, channel, in_channels, WHOLE, R),)
    if SPREAD:
        inputs += (fetch_spread(delta, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    else:
        inputs += (fetch_channels(delta, token, step, end, D, channel, in_channels, WHOLE, R),)
    inputs += (
        fetch_keys(k, token, step, end, WORDS_K, group, M // PER_K, WHOLE, R),
        fetch_keys(q, token, step, end, WORDS_Q, group, M // PER_Q, WHOLE, R),
    )
    if z is not None:
        inputs += (fetch_spread(z, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    return inputs


@triton.jit(do_not_specialize=["T", "span", "rounds", "spans", "marks"])
def selective_scan_forward(
    x, delta, k, q, A, state, skip, z, bias, table, sums, decays, o, final, saved,
    T, span, rounds, spans, marks,
    D: tl.constexpr, N: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    GATE: tl.constexpr, HELD: tl.constexpr, SOFTPLUS: tl.constexpr,
    KIND_K: tl.constexpr, KIND_Q: tl.constexpr, PER_K: tl.constexpr, PER_Q: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, FLUSH: tl.constexpr, ROUNDS: tl.constexpr,
    R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A program: BD channels of a batch element, one span of time, R steps a round.

    sums, decays: the summaries of all spans, None with one span. saved: (B, marks, G·M, D), the states before
    every ROUNDS rounds, or None. table: spans of packed sequences, whose states are (sequences, D, N).
    """
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    place, before, after, sequence, token, first, end, mark, origin = span_at(
        rest, T, span, spans, marks, table
    )
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, EVEN)

    PER: tl.constexpr = R // G if R > G else 1
    SPREAD: tl.constexpr = SOFTPLUS or bias is not None

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    inverse = held_rates(rates, HELD, M)
    shift = channel_values(bias, channel, in_channels)
    weight = channel_values(skip, channel, in_channels)
    if state is not None:
        S = load_state(state + sequence * D * N, channel, group, N, in_channels, M)
    else:
        S = constant(0.0, BD, G, M)
    if sums is not None:
        S = enter_span(S, sums, decays, rates, place - before, before, 1, channel, group, D, in_channels,
                       GATE, FLUSH, G, M)  # fmt: skip

    if table is not None and FLUSH:
        # The interpreter takes no such bound; there the steps from `end` on do nothing.
        rounds = tl.minimum(rounds, tl.cdiv(end - first, R).to(tl.int32))
    inputs = fetch(x, delta, k, q, z, token, first, end, D, WORDS_K, WORDS_Q, channel, group, in_channels,
                   SPREAD, PER_K, PER_Q, WHOLE, R, M)  # fmt: skip
    for i in range(0, rounds):
        now = first + i * R
        # The next round's operands are under way while this one is computed.
        following = fetch(x, delta, k, q, z, token, now + R, end, D, WORDS_K, WORDS_Q, channel, group,
                          in_channels, SPREAD, PER_K, PER_Q, WHOLE, R, M)  # fmt: skip
        if saved is not None:
            row = mark + (now - origin) // (R * ROUNDS)
            if i % ROUNDS == 0:
                store_plane(saved + row * (G * M * D), S, channel, group, D, in_channels & (now < end), M)
        at = o + (token + now) * D + channel
        sizes = inputs[1]
        if SPREAD:
            sizes = step_sizes(sizes, shift, now, end, group, SOFTPLUS, WHOLE, R, VECTOR)
        totals = ()
        for r in tl.static_range(R):
            size = step_size(sizes[r], HELD)
            keys = unpack(inputs[2][r], KIND_K, M)
            queries = unpack(inputs[3][r], KIND_Q, M)
            gate = gates(size, rates, keys, GATE, FLUSH, M)
            if HELD:
                held = held_steps(size, gate, rates, inverse, M)
                S = advance_held(S, gate, held, keys, inputs[0][r].to(tl.float32), M)
            else:
                S = advance(S, gate, keys, size * inputs[0][r].to(tl.float32), M)
            total = S[0] * queries[0]
            for j in tl.static_range(1, M):
                total = tl.fma(S[j], queries[j], total)
            if skip is not None:
                total += weight[0] * (1.0 / G) * inputs[0][r].to(tl.float32)  # in the sum of G of them
            totals += (total,)
        # A lane gets the sums over all states of PER steps, and stores these.
        totals = over_groups(totals, R, VECTOR)
        for j in tl.static_range(PER):
            r = group * PER + j
            inside = in_channels & (r < R)
            if not WHOLE:
                inside = inside & (now + r < end)
            output = totals[j]
            if z is not None:
                gating = inputs[4][j].to(tl.float32)
                output *= gating * sigmoid(gating)
            tl.store(at + r * D, output.to(o.dtype.element_ty), mask=inside)
        inputs = following
    if after == 0:
        store_state(final + sequence * D * N, S, channel, group, N, in_channels, M)
