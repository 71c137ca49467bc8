"""The forward pass and summaries of spans with operands by way of shared memory, where Triton's pipeliner
brings the rounds to come. Copies under way take no registers, so the assembler gains nothing by asking late.

Whole rounds and blocks, and nothing fused. Tiles are loaded as they are copied, (BD, 1, R) and (1, G, R), and
nothing before the loop is loaded with adjacent states in a thread: the loop would take that layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .exchange import over_groups
from .packed import span_at
from .spans import enter_span
from .steps import (
    advance,
    by_step,
    constant,
    gates,
    in_powers_of_two,
    load_plane,
    products,
    retreat,
    store_plane,
    store_state,
    tile,
    unpack,
)


@triton.jit
def channels_at(x, step, D: tl.constexpr, block, BD: tl.constexpr, R: tl.constexpr):
    """x (BD, 1, R) at R steps. step: of all batches."""
    row = tl.arange(0, R)[None, None, :]
    return tl.load(x + step * D + block * BD + (row * D + tl.arange(0, BD)[:, None, None]))


@triton.jit
def keys_at(k, step, WORDS: tl.constexpr, G: tl.constexpr, R: tl.constexpr):
    """The words of k at R steps: for each word of a group R tensors (1, G)."""
    W: tl.constexpr = WORDS // G
    row = tl.arange(0, R)[None, None, :]
    words = ()
    for w in tl.static_range(W):
        column = tl.arange(0, G)[None, :, None] * W + w
        words += (by_step(tl.load(k + step * WORDS + (row * WORDS + column)), R),)
    return words


@triton.jit
def keys_of(words, r: tl.constexpr, KIND: tl.constexpr, M: tl.constexpr):
    """M tensors (1, G) of step r."""
    own = ()
    for w in tl.static_range(len(words)):
        own += (words[w][r],)
    return unpack(own, KIND, M)


@triton.jit
def value_of(x, r: tl.constexpr, BD: tl.constexpr, G: tl.constexpr):
    return tl.broadcast_to(x[r], (BD, G)).to(tl.float32)


@triton.jit
def states_apart(state, channel, group, N: tl.constexpr, in_channels, M: tl.constexpr):
    """M tensors of a user's (D, N), each loaded by itself."""
    values = ()
    for j in tl.static_range(M):
        values += (tl.load(state + (channel * N + (group * M + j)), mask=in_channels, other=0.0),)
    return values


@triton.jit
def rates_apart(A, channel, group, N: tl.constexpr, in_channels, GATE: tl.constexpr, M: tl.constexpr):
    """As `decay_rates`."""
    rates = ()
    if GATE == "exp":
        rates = in_powers_of_two(states_apart(A, channel, group, N, in_channels, M), M)
    return rates


@triton.jit(do_not_specialize=["T", "span", "rounds", "spans"])
def selective_scan_summary_streamed(
    v, delta, w, k, A, sums, decays,
    T, span, rounds, spans,
    D: tl.constexpr, N: tl.constexpr, WORDS_W: tl.constexpr, WORDS_K: tl.constexpr,
    REVERSE: tl.constexpr, GATE: tl.constexpr, KIND_W: tl.constexpr, KIND_K: tl.constexpr,
    FLUSH: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr,
    VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `selective_scan_summary`, of spans of which the last may be shorter."""
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    rest = tl.program_id(0) // blocks
    place = rest % (spans - 1) + (1 if REVERSE else 0)
    batch = (rest // (spans - 1)).to(tl.int64)
    row = batch * spans + place
    first = (place * span).to(tl.int64)
    if FLUSH:  # the interpreter takes no such bound: there all spans are as long
        rounds = (tl.minimum(T - first, span) // R).to(tl.int32)
    start = batch * T + first
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, True)

    rates = rates_apart(A, channel, group, N, in_channels, GATE, M)
    # Nothing is read: these zeros have the layout that suits the loop, adjacent channels in a thread.
    S = load_plane(sums, channel, group, D, in_channels & (spans < 0), M)
    size = tl.zeros([BD, 1, R], tl.float32)
    kept = ()
    for j in tl.static_range(M):
        kept += (S[j] + 1.0,)
    for i in tl.range(0, rounds, num_stages=STAGES):
        now = start + ((rounds - 1 - i) if REVERSE else i) * R
        values = by_step(channels_at(v, now, D, block, BD, R), R)
        at_once = channels_at(delta, now, D, block, BD, R)
        sizes = by_step(at_once, R)
        words = keys_at(w, now, WORDS_W, G, R)
        if REVERSE and GATE == "implicit":
            others = keys_at(k, now, WORDS_K, G, R)
        if GATE == "exp":
            size += at_once.to(tl.float32)
        for r in tl.static_range(R - 1 if REVERSE else 0, -1 if REVERSE else R, -1 if REVERSE else 1):
            step_size = value_of(sizes, r, BD, G)
            value = value_of(values, r, BD, G)
            written = keys_of(words, r, KIND_W, M)
            keys = written
            if REVERSE and GATE == "implicit":
                keys = keys_of(others, r, KIND_K, M)
            gate = gates(step_size, rates, keys, GATE, FLUSH, M)
            if REVERSE:
                S = retreat(S, gate, written, value, M)
            else:
                S = advance(S, gate, written, step_size * value, M)
            if GATE != "exp":
                kept = products(kept, gate, M)
    store_plane(sums + row * (G * M * D), S, channel, group, D, in_channels, M)
    if GATE == "exp":
        total = tl.broadcast_to(tl.sum(size, axis=2), (BD, G))
        tl.store(decays + row * D + channel, total, mask=in_channels & (group == 0))
    else:
        store_plane(decays + row * (G * M * D), kept, channel, group, D, in_channels, M)


@triton.jit(do_not_specialize=["T", "span", "rounds", "spans", "marks"])
def selective_scan_forward_streamed(
    x, delta, k, q, A, state, sums, decays, o, final, saved,
    T, span, rounds, spans, marks,
    D: tl.constexpr, N: tl.constexpr, WORDS_K: tl.constexpr, WORDS_Q: tl.constexpr,
    GATE: tl.constexpr, KIND_K: tl.constexpr, KIND_Q: tl.constexpr, FLUSH: tl.constexpr,
    ROUNDS: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr,
    VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As `selective_scan_forward`; every G steps are summed over the groups, of which each stores one."""
    blocks = tl.cdiv(D, BD)
    block = tl.program_id(0) % blocks
    place, before, after, sequence, token, first, end, mark, _ = span_at(
        tl.program_id(0) // blocks, T, span, spans, marks, None
    )
    if FLUSH:  # the interpreter takes no such bound: there all spans are as long
        rounds = ((end - first) // R).to(tl.int32)
    start = token + first
    channel, group, in_channels = tile(block, D, BD, G, VECTOR, True)
    PART: tl.constexpr = min(R, G)  # steps that are summed at a time

    rates = rates_apart(A, channel, group, N, in_channels, GATE, M)
    if state is not None:
        S = states_apart(state + sequence * D * N, channel, group, N, in_channels, M)
    else:
        S = constant(0.0, BD, G, M)
    if sums is not None:
        S = enter_span(S, sums, decays, rates, place - before, before, 1, channel, group, D, in_channels,
                       GATE, FLUSH, G, M)  # fmt: skip
    for i in tl.range(0, rounds, num_stages=STAGES):
        now = start + i * R
        values = by_step(channels_at(x, now, D, block, BD, R), R)
        sizes = by_step(channels_at(delta, now, D, block, BD, R), R)
        words = keys_at(k, now, WORDS_K, G, R)
        asked = keys_at(q, now, WORDS_Q, G, R)
        if saved is not None:
            row = mark + first // (R * ROUNDS) + i // ROUNDS
            if i % ROUNDS == 0:
                store_plane(saved + row * (G * M * D), S, channel, group, D, in_channels, M)
        at = o + now * D + channel
        for part in tl.static_range(R // PART):
            totals = ()
            for r in tl.static_range(part * PART, (part + 1) * PART):
                size = value_of(sizes, r, BD, G)
                keys = keys_of(words, r, KIND_K, M)
                queries = keys_of(asked, r, KIND_Q, M)
                gate = gates(size, rates, keys, GATE, FLUSH, M)
                S = advance(S, gate, keys, size * value_of(values, r, BD, G), M)
                total = S[0] * queries[0]
                for j in tl.static_range(1, M):
                    total = tl.fma(S[j], queries[j], total)
                totals += (total,)
            (output,) = over_groups(totals, PART, VECTOR)
            inside = in_channels & (group < PART)
            tl.store(at + (part * PART + group) * D, output.to(o.dtype.element_ty), mask=inside)
    if after == 0:
        store_state(final + sequence * D * N, S, channel, group, N, in_channels, M)
