"""Spans of time side by side: what each does to the state, and the state before one from those of the others.

A span's summary is the state that it leaves when it begins with none, and the product of its gates: of exp
gates that is exp(A·ΣΔ), so the sum of the step sizes says it. Summaries are folded in order, always the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .options import (
    advance_held,
    channel_values,
    fetch_spread,
    held_rates,
    held_steps,
    silu_factors,
    step_size,
    step_sizes,
)
from .steps import (
    advance,
    constant,
    decay_rates,
    exponential2,
    fetch_channels,
    fetch_keys,
    gates,
    load_plane,
    products,
    retreat,
    store_plane,
    tile,
    unpack,
)


@triton.jit
def enter_span(
    S, sums, decays, rates, first, count, stride: tl.constexpr, channel, group, D, in_channels,
    GATE: tl.constexpr, FLUSH: tl.constexpr, G: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The state after `count` spans that begin with S: rows first, first + stride, and so on.

    sums: (B, spans, G·M, D). decays: ΣΔ (B, spans, D) for exp gates, else products (B, spans, G·M, D).
    """
    i = 0
    while i < count:
        row = first + i * stride
        added = load_plane(sums + row * (G * M * D), channel, group, D, in_channels, M)
        if GATE == "exp":
            size = tl.load(decays + row * D + channel, mask=in_channels, other=0.0)
        else:
            kept = load_plane(decays + row * (G * M * D), channel, group, D, in_channels, M)
        after = ()
        for j in tl.static_range(M):
            gate = exponential2(size * rates[j], FLUSH) if GATE == "exp" else kept[j]
            after += (gate * S[j] + added[j],)
        S = after
        i += 1
    return S


@triton.jit
def fetch(
    v, delta, w, k, z, token, step, end, D: tl.constexpr, WORDS_W: tl.constexpr, WORDS_K: tl.constexpr,
    channel, group, in_channels, SPREAD: tl.constexpr,
    PER_W: tl.constexpr, PER_K: tl.constexpr, ALSO_K: tl.constexpr,
    WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """v, Δ, the words of w and, if ALSO_K, those of k, and z if any, at R steps; Δ spread as in forward."""
    inputs = (fetch_channels(v, token, step, end, D, channel, in_channels, WHOLE, R),)
    if SPREAD:
        inputs += (fetch_spread(delta, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    else:
        inputs += (fetch_channels(delta, token, step, end, D, channel, in_channels, WHOLE, R),)
    inputs += (fetch_keys(w, token, step, end, WORDS_W, group, M // PER_W, WHOLE, R),)
    if ALSO_K:
        inputs += (fetch_keys(k, token, step, end, WORDS_K, group, M // PER_K, WHOLE, R),)
    if z is not None:
        inputs += (fetch_spread(z, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    return inputs


@triton.jit(do_not_specialize=["T", "span", "rounds", "spans"])
def selective_scan_summary(
    v, delta, w, k, A, z, bias, table, inner, sums, decays,
    T, span, rounds, spans,
    D: tl.constexpr, N: tl.constexpr, WORDS_W: tl.constexpr, WORDS_K: tl.constexpr,
    REVERSE: tl.constexpr, GATE: tl.constexpr, HELD: tl.constexpr, SOFTPLUS: tl.constexpr,
    KIND_W: tl.constexpr, KIND_K: tl.constexpr, PER_W: tl.constexpr, PER_K: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A program: BD channels of a batch element, one span of time, which begins with nothing.

    Forward S ← a ⊙ S + (Δ v) ⊗ w, where v is x and w is k, of all spans but the last; REVERSE, in descending
    time, S ← a ⊙ (S + v ⊗ w), where v is the gradient of o and w is q, of all spans but the first. k: what
    the gates need of it, else w. z: only if REVERSE; v is yet to be multiplied by silu(z). table, inner:
    spans of packed sequences, and which of them are not the last (the first).
    """
    ALSO_K: tl.constexpr = REVERSE and GATE == "implicit"
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    SPREAD: tl.constexpr = SOFTPLUS or bias is not None
    if table is None:
        place = rest % (spans - 1) + (1 if REVERSE else 0)
        batch = (rest // (spans - 1)).to(tl.int64)
        token = batch * T
        row = batch * spans + place
        first = (place * span).to(tl.int64)
        end = tl.minimum(first + span, T)
    else:
        row = tl.load(inner + rest)
        first = tl.load(table + row)
        end = tl.load(table + spans + row)
        token = first * 0
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, EVEN)

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    inverse = held_rates(rates, HELD, M)
    shift = channel_values(bias, channel, in_channels)
    S = constant(0.0, BD, G, M)
    kept = constant(1.0, BD, G, M)
    size = tl.zeros([BD, G], tl.float32)
    step = first + span - R if REVERSE else first
    inputs = fetch(v, delta, w, k, z, token, step, end, D, WORDS_W, WORDS_K, channel, group, in_channels,
                   SPREAD, PER_W, PER_K, ALSO_K, WHOLE, R, M)  # fmt: skip
    for _ in range(0, rounds):
        now = step
        step = tl.maximum(step - R, first) if REVERSE else step + R
        # The next round's operands are under way while this one is computed.
        following = fetch(v, delta, w, k, z, token, step, end, D, WORDS_W, WORDS_K, channel, group,
                          in_channels, SPREAD, PER_W, PER_K, ALSO_K, WHOLE, R, M)  # fmt: skip
        sizes = inputs[1]
        if SPREAD:
            sizes = step_sizes(sizes, shift, now, end, group, SOFTPLUS, WHOLE, R, VECTOR)
        if z is not None:
            factors = silu_factors(inputs[4 if ALSO_K else 3], R, VECTOR)
        for r in tl.static_range(R - 1 if REVERSE else 0, -1 if REVERSE else R, -1 if REVERSE else 1):
            value = inputs[0][r].to(tl.float32)
            if z is not None:
                value *= factors[r]
            taken = step_size(sizes[r], HELD)
            written = unpack(inputs[2][r], KIND_W, M)
            keys = written
            if ALSO_K:
                keys = unpack(inputs[3][r], KIND_K, M)
            gate = gates(taken, rates, keys, GATE, FLUSH, M)
            if REVERSE:
                S = retreat(S, gate, written, value, M)
            elif HELD:
                held = held_steps(taken, gate, rates, inverse, M)
                S = advance_held(S, gate, held, written, value, M)
            else:
                S = advance(S, gate, written, taken * value, M)
            if GATE == "exp":
                size += taken
            else:
                kept = products(kept, gate, M)
        inputs = following
    store_plane(sums + row * (G * M * D), S, channel, group, D, in_channels, M)
    if GATE == "exp":
        tl.store(decays + row * D + channel, size, mask=in_channels & (group == 0))
    else:
        store_plane(decays + row * (G * M * D), kept, channel, group, D, in_channels, M)
