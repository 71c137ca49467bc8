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

from .exchange import beside, over_channels, over_groups
from .options import (
    LN_2,
    advance_held,
    channel_values,
    fetch_spread,
    held_rates,
    held_slope,
    held_steps,
    sigmoid,
    silu_factors,
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
    in_one,
    load_plane,
    load_state,
    store_plane,
    store_state,
    tile,
    unpack,
)


@triton.jit
def fetch_writes(
    x, delta, k, token, step, end, D: tl.constexpr, WORDS_K: tl.constexpr, channel, group, in_channels,
    SPREAD: tl.constexpr, PER_K: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """x, Δ (spread as in forward), and the words of k at R steps: what the states are made of."""
    inputs = (fetch_channels(x, token, step, end, D, channel, in_channels, WHOLE, R),)
    if SPREAD:
        inputs += (fetch_spread(delta, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    else:
        inputs += (fetch_channels(delta, token, step, end, D, channel, in_channels, WHOLE, R),)
    inputs += (fetch_keys(k, token, step, end, WORDS_K, group, M // PER_K, WHOLE, R),)
    return inputs


@triton.jit
def fetch_reads(
    g, q, z, token, step, end, D: tl.constexpr, WORDS_Q: tl.constexpr, channel, group, in_channels,
    PER_Q: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The gradient of o, the words of q, and z if any (spread as in forward) at R steps."""
    inputs = (
        fetch_channels(g, token, step, end, D, channel, in_channels, WHOLE, R),
        fetch_keys(q, token, step, end, WORDS_Q, group, M // PER_Q, WHOLE, R),
    )
    if z is not None:
        inputs += (fetch_spread(z, token, step, end, D, channel, group, in_channels, WHOLE, R),)
    return inputs


@triton.jit
def step_back(
    mu, before, after, gate, rates, inverse, dA, keys, queries, size, value, g,
    GATE: tl.constexpr, HELD: tl.constexpr, M: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """μ_t = a_t ⊙ Λ_t from μ_{t+1}, dA with its term; dx and dΔ of the thread's states (BD, G); and dk beside
    dq of its C channels, 2·M tensors (warps, 32)."""
    update = size * value
    if HELD:
        held = held_steps(size, gate, rates, inverse, M)
    mus, totals, dk, dq = (), (), (), ()
    over_x = tl.zeros(size.shape, tl.float32)
    over_size = tl.zeros(size.shape, tl.float32)
    over_held = tl.zeros(size.shape, tl.float32)
    for j in tl.static_range(M):
        adjoint = tl.fma(g, queries[j], mu[j])
        m = gate[j] * adjoint
        if HELD:
            over_x += adjoint * keys[j] * held[j]
            over_held += m * keys[j]
            term = adjoint * (value * held[j])
        else:
            over_x = tl.fma(adjoint, keys[j], over_x)
            term = adjoint * update
        if GATE == "exp":
            p = m * before[j]
            over_size = tl.fma(p, rates[j], over_size)
            change = p * size
            if HELD:
                change += (
                    adjoint * (value * keys[j]) * held_slope(size, gate[j], held[j], rates[j], inverse[j])
                )
            totals += (dA[j] + change,)
        else:
            p = adjoint * before[j]
            over_size -= p * (keys[j] * keys[j])
            term = size * (adjoint * value - p * (2.0 * keys[j]))
            totals += (dA[j],)
        mus += (m,)
        dk += (beside(term, C),)
        dq += (beside(after[j] * g, C),)
    if GATE == "exp":
        over_size *= LN_2
    if HELD:
        return mus, totals, over_x, over_size + value * over_held, dk + dq
    else:
        return mus, totals, size * over_x, over_size + value * over_x, dk + dq


@triton.jit
def store_beside(to, values, inside, COUNT: tl.constexpr):
    """COUNT tensors (32,), of which each lane's are next to each other in memory."""
    columns = ()
    for j in tl.static_range(COUNT):
        columns += (tl.reshape(values[j], (32, 1)),)
    at = to[:, None, None] + tl.arange(0, COUNT)[None, None, :]
    tl.store(at, in_one(columns, COUNT), mask=tl.broadcast_to(inside[:, None, None], (32, 1, COUNT)))


@triton.jit(do_not_specialize=["T", "span", "spans", "marks", "span_marks"])
def selective_scan_backward(
    x, delta, k, q, A, skip, z, bias, table, g, saved, final_grad, sums, decays, scratch,
    dx, ddelta, dkq, dA, dstate, dskip, dz, dbias,
    T, span, spans, marks, span_marks,
    D: tl.constexpr, N: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    GATE: tl.constexpr, HELD: tl.constexpr, SOFTPLUS: tl.constexpr,
    KIND_K: tl.constexpr, KIND_Q: tl.constexpr, PER_K: tl.constexpr, PER_Q: tl.constexpr,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, FLUSH: tl.constexpr, ROUNDS: tl.constexpr,
    R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A program: BD channels of a batch element, one span of time, from its end.

    saved: (B, marks, G·M, D). sums, decays: summaries of all spans of the reversed recurrence, None with one
    span. scratch: (rounds of all programs, G·M, BD). dkq: (B, blocks, T, G, 2, M). dA: (B, spans, G·M, D).
    dskip, dbias: (B, spans, D). table: spans of packed sequences, whose states are (sequences, D, N).
    """
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    place, before, after, sequence, token, first, end, mark, origin = span_at(
        rest, T, span, spans, marks, table
    )
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, EVEN)
    own = channel - block * BD
    everywhere = tl.full([BD, G], 1, tl.int1)
    if table is None:
        scratch += tl.program_id(0).to(tl.int64) * (ROUNDS * G * M * BD)
    else:
        own_rounds = tl.minimum(tl.cdiv(end - first, R), ROUNDS)
        scratch += (tl.load(table + 6 * spans + place) * blocks + block * own_rounds) * (G * M * BD)
    partial = token * blocks + block.to(tl.int64) * T
    SPREAD: tl.constexpr = SOFTPLUS or bias is not None
    C: tl.constexpr = VECTOR
    LANES: tl.constexpr = 32 // G
    PER_LANE: tl.constexpr = 2 * M // LANES if 2 * M > LANES else 1  # sums of dk and dq
    PER_GROUP: tl.constexpr = 2 * R // G if 2 * R > G else 1  # sums of dx and dΔ, by turns
    lane = tl.arange(0, 32)  # group · LANES + lane of channels
    entry = lane // LANES * (2 * M) + lane % LANES * PER_LANE
    mine = lane % LANES * PER_LANE < 2 * M

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    inverse = held_rates(rates, HELD, M)
    shift = channel_values(bias, channel, in_channels)
    weight = channel_values(skip, channel, in_channels)
    mu = load_state(final_grad + sequence * D * N, channel, group, N, in_channels, M)
    if sums is not None:
        mu = enter_span(mu, sums, decays, rates, place + after, after, -1, channel, group, D, in_channels,
                        GATE, FLUSH, G, M)  # fmt: skip
    totals = constant(0.0, BD, G, M)
    skip_total = tl.zeros([BD, G], tl.float32)
    bias_total = tl.zeros([BD, G], tl.float32)

    if table is not None and FLUSH:
        # The interpreter takes no such bound; there the marks from `end` on do nothing.
        span_marks = tl.minimum(span_marks, tl.cdiv(end - first, R * ROUNDS).to(tl.int32))
    for b in range(0, span_marks):
        start = first + (span_marks - 1 - b) * (R * ROUNDS)
        last = start + (ROUNDS - 1) * R
        reads = fetch_reads(g, q, z, token, last, end, D, WORDS_Q, channel, group, in_channels,
                            PER_Q, WHOLE, R, M)  # fmt: skip
        # Loaded here and not taken from the first loop: so both loops' operands get one layout.
        last_writes = fetch_writes(x, delta, k, token, last, end, D, WORDS_K, channel, group, in_channels,
                                   SPREAD, PER_K, WHOLE, R, M)  # fmt: skip
        writes = fetch_writes(x, delta, k, token, start, end, D, WORDS_K, channel, group, in_channels,
                              SPREAD, PER_K, WHOLE, R, M)  # fmt: skip
        at_mark = mark + (start - origin) // (R * ROUNDS)
        S = load_plane(saved + at_mark * (G * M * D), channel, group, D, in_channels & (start < end), M)
        for i in range(0, ROUNDS - 1):
            noted = everywhere
            if table is not None:
                noted = everywhere & (start + i * R < end)
            store_plane(scratch + i * (G * M * BD), S, own, group, BD, noted, M)
            following = fetch_writes(x, delta, k, token, start + (i + 1) * R, end, D, WORDS_K, channel, group,
                                     in_channels, SPREAD, PER_K, WHOLE, R, M)  # fmt: skip
            sizes = writes[1]
            if SPREAD:
                sizes = step_sizes(sizes, shift, start + i * R, end, group, SOFTPLUS, WHOLE, R, C)
            for r in tl.static_range(R):
                size = step_size(sizes[r], HELD)
                keys = unpack(writes[2][r], KIND_K, M)
                gate = gates(size, rates, keys, GATE, FLUSH, M)
                if HELD:
                    held = held_steps(size, gate, rates, inverse, M)
                    S = advance_held(S, gate, held, keys, writes[0][r].to(tl.float32), M)
                else:
                    S = advance(S, gate, keys, size * writes[0][r].to(tl.float32), M)
            writes = following
        writes = last_writes
        tl.debug_barrier()

        for i in range(0, ROUNDS):
            now = last - i * R
            kept_gates, states = (), ()
            sizes = writes[1]
            if SPREAD:
                sizes = step_sizes(sizes, shift, now, end, group, SOFTPLUS, WHOLE, R, C)
            for r in tl.static_range(R):
                size = step_size(sizes[r], HELD)
                keys = unpack(writes[2][r], KIND_K, M)
                gate = gates(size, rates, keys, GATE, FLUSH, M)
                kept_gates += (gate,)
                states += (S,)
                if HELD:
                    held = held_steps(size, gate, rates, inverse, M)
                    S = advance_held(S, gate, held, keys, writes[0][r].to(tl.float32), M)
                else:
                    S = advance(S, gate, keys, size * writes[0][r].to(tl.float32), M)
            states += (S,)
            ahead = tl.maximum(now - R, start)
            next_reads = fetch_reads(g, q, z, token, ahead, end, D, WORDS_Q, channel, group, in_channels,
                                     PER_Q, WHOLE, R, M)  # fmt: skip
            next_writes = fetch_writes(x, delta, k, token, ahead, end, D, WORDS_K, channel, group,
                                       in_channels, SPREAD, PER_K, WHOLE, R, M)  # fmt: skip
            slot = tl.maximum(ROUNDS - 2 - i, 0)
            noted = everywhere
            if table is not None:
                noted = everywhere & (start + slot * R < end)
            S = load_plane(scratch + slot * (G * M * BD), own, group, BD, noted, M)
            row = (token + now) * D + channel
            pairs = dkq + (partial + now) * (G * 2 * M) + entry
            by_group, outputs = (), ()
            if z is not None:
                factors = silu_factors(reads[2], R, C)
                for r in tl.static_range(R):
                    queries = unpack(reads[1][r], KIND_Q, M)
                    output = states[r + 1][0] * queries[0]
                    for j in tl.static_range(1, M):
                        output += states[r + 1][j] * queries[j]
                    if skip is not None:
                        output += weight[0] * (1.0 / G) * writes[0][r].to(tl.float32)  # in the sum of G
                    outputs += (output,)
            for r in tl.static_range(R - 1, -1, -1):
                step_g = reads[0][r].to(tl.float32)
                if z is not None:
                    step_g *= factors[r]
                mu, totals, step_dx, step_dsize, terms = step_back(
                    mu, states[r], states[r + 1], kept_gates[r], rates, inverse, totals,
                    unpack(writes[2][r], KIND_K, M), unpack(reads[1][r], KIND_Q, M),
                    step_size(sizes[r], HELD), writes[0][r].to(tl.float32), step_g, GATE, HELD, M, C,
                )  # fmt: skip
                if skip is not None:
                    step_dx += weight[0] * (1.0 / G) * step_g  # in the sum of G of them
                    skip_total += writes[0][r].to(tl.float32) * step_g
                by_group = (step_dx, step_dsize) + by_group  # noqa: RUF005 (Triton knows no star)
                over_d = over_channels(terms, 2 * M, G)
                inside = mine if WHOLE else mine & (now + r < end)
                if PER_LANE == 1:
                    tl.store(pairs + r * (G * 2 * M), over_d[0], mask=inside)
                else:
                    store_beside(pairs + r * (G * 2 * M), over_d, inside, PER_LANE)
            by_group = over_groups(by_group, 2 * R, C)
            for j in tl.static_range(PER_GROUP):
                which = group * PER_GROUP + j
                r = which // 2
                inside = in_channels & (which < 2 * R)
                if not WHOLE:
                    inside = inside & (now + r < end)
                if PER_GROUP == 1 or j % 2 == 0:
                    mask = inside if PER_GROUP > 1 else inside & (which % 2 == 0)
                    tl.store(dx + row + r * D, by_group[j].to(dx.dtype.element_ty), mask=mask)
                if PER_GROUP == 1 or j % 2 == 1:
                    mask = inside if PER_GROUP > 1 else inside & (which % 2 == 1)
                    change = by_group[j]
                    if SPREAD:
                        if SOFTPLUS:
                            raw = tl.load(delta + row + r * D, mask=mask, other=0.0).to(tl.float32)
                            if bias is not None:
                                raw += shift[0]
                            change *= sigmoid(raw)
                        bias_total += tl.where(mask, change, 0.0)
                    tl.store(ddelta + row + r * D, change.to(ddelta.dtype.element_ty), mask=mask)
            if z is not None:
                PER: tl.constexpr = R // G if R > G else 1
                outputs = over_groups(outputs, R, C)
                for j in tl.static_range(PER):
                    r = group * PER + j
                    mask = in_channels & (r < R)
                    if not WHOLE:
                        mask = mask & (now + r < end)
                    gating = reads[2][j].to(tl.float32)
                    part = sigmoid(gating)
                    arriving = tl.load(g + row + r * D, mask=mask, other=0.0).to(tl.float32)
                    change = arriving * outputs[j] * (part + gating * part * (1.0 - part))
                    tl.store(dz + row + r * D, change.to(dz.dtype.element_ty), mask=mask)
            reads = next_reads
            writes = next_writes
        tl.debug_barrier()

    if before == 0:
        store_state(dstate + sequence * D * N, mu, channel, group, N, in_channels, M)
    if dA is not None:
        store_plane(dA + place * (G * M * D), totals, channel, group, D, in_channels, M)
    if skip is not None:
        tl.store(dskip + place * D + channel, skip_total, mask=in_channels & (group == 0))
    if bias is not None:
        bias_sum = tl.broadcast_to(tl.sum(bias_total, axis=1, keep_dims=True), (BD, G))
        tl.store(dbias + place * D + channel, bias_sum, mask=in_channels & (group == 0))
