"""The walk: one program takes the chunks of a head in order, its strip of the state in registers.

See `anchors` for how decay gets into the operands. Everything that has no order is inside the same loop, so a
chunk's operands are read once and its scores never leave the chip.

A segment without a wide chunk has the plain walk, any other the exact one: it takes the scores of wide chunks
under key gates from memory, and decides pair by pair under scalar ones whether a reset lies between. Under
scalar gates both are in one kernel, so that they run beside each other: heads with strong decay do not wait
for those without. Elsewhere the plain walk would lose more in registers: each has a kernel.

A few columns of values behind whole strips are a tail: every program takes them through the same loop as a
second, narrow tile, and the first program of a head writes them. So there is no branch around products, which
would end the pipelining of loads. The functions before the kernel are the parts of a chunk that both tiles go
through. Their `decay` depends on the gate:

- KEY: the state's factors between the chunk's edges, where the kernel has loaded them;
- SCALAR: the sums of log gates from the middle to each step, to before the first one and to the last one;
- SCALAR, EXACT: factors of rows that are read, of values that are added, and of the state; REVERSE: the last
  two from after the chunk's first step, and the factor of that step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.packed import counted
from ..._triton.sequences import sequence_of
from .anchors import linked, load_spans
from .blocks import FLAGS, KEY, NONE, SCALAR, load_rows, locate
from .heads import key_head_offset

BOTH, PLAIN, EXACT_ALONE = WALKS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # that a kernel has


@triton.jit
def scaled(x, factor):
    """Multiply each row of x by its factor; keep the dtype of x."""
    return (x.to(tl.float32) * factor[:, None]).to(x.dtype)


@triton.jit
def to_middle(
    state, y_tile, decay, GATE: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, FADED: tl.constexpr
):
    """Bring scalar decay from or to the chunk's middle into the state and y, unless y has it."""
    if GATE == SCALAR and not EXACT:
        span, span_start, span_end = decay
        if not FADED:
            y_tile = scaled(y_tile, tl.exp(span if REVERSE else -span))
        state = state * tl.exp(span_end if REVERSE else -span_start)
    return state, y_tile


@triton.jit
def read_state(
    x_tile, held, weights, y_tile, decay,
    GATE: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute x times the state `held`, plus weights times y, with the decay of scalar gates."""
    acc = tl.dot(x_tile, held, input_precision=PRECISION)
    if GATE == SCALAR and EXACT:
        acc = acc * decay[0][:, None]
    if GATE == SCALAR and not EXACT:
        span, span_start, span_end = decay
        acc = acc * tl.exp(span_end if REVERSE else -span_start)
    acc = tl.dot(weights, y_tile, acc, input_precision=PRECISION)
    if GATE == SCALAR and not EXACT:
        acc = acc * tl.exp(-span if REVERSE else span)[:, None]
    return acc


@triton.jit
def add_chunk(
    state, w_tile, y_tile, decay,
    GATE: tl.constexpr, REVERSE: tl.constexpr, EXACT: tl.constexpr, EMIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the state after a chunk: let it decay, and add the keys w times the values y."""
    if GATE == KEY and (EXACT or not EMIT):
        state = state * decay[0][:, None]
    if GATE == SCALAR and EXACT:
        state = state * decay[2]
        y_tile = scaled(y_tile, decay[1])
    state = tl.dot(tl.trans(w_tile), y_tile, state, input_precision=PRECISION)
    if GATE == SCALAR and EXACT and REVERSE:
        state = state * decay[3]
    if GATE == SCALAR and not EXACT:
        _, span_start, span_end = decay
        state = state * tl.exp(-span_start if REVERSE else span_end)
    return state


# A loop that is known to have one step would not be pipelined: see `Walk.fits`.
@triton.jit(do_not_specialize=("T", "H", "NT", "NS", "PER"))
def la_walk(
    x, w, y, spans, resets, edges, factors, wide, scores, columns, first, out, states, last, through,
    T, H, NT, bounds, NS, PER,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    TAIL: tl.constexpr, GATE: tl.constexpr, REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr,
    EMIT: tl.constexpr, KEEP: tl.constexpr, VALUED: tl.constexpr, FADED: tl.constexpr,
    SHARED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, EXACT_STAGES: tl.constexpr,
    KINDS: tl.constexpr,
):  # fmt: skip
    """o from queries x, keys w and values y; REVERSE: dv from keys x, queries w and do y, from the end back.

    NS segments of PER chunks each, in the order of the walk, start from `first` (B·H, NS, K, V) and end in
    `last`. A packed sequence has NS segments, too, of as many chunks as that takes.
    EMIT: write `out`; otherwise `through` (B·H, NS, K|1), the log of a segment's decay. KEEP: write the state
    that each chunk reads, (B·H, chunks, K, V), in the dtype of the operands.
    VALUED: value gates have their decay in y and out (see `valued`), and in columns what factors is for keys.
    FADED: y has the decay of scalar gates from the chunk's middle in it, where the chunk is not wide. TAIL:
    width of the tile for the columns behind the last whole strip, or 0; never with VALUED. SHARED: heads per
    key head; 1 for key gates. STAGES, EXACT_STAGES: of the loops of the plain and of the exact walk. KINDS:
    which of the two the kernel has; a program whose segment needs the other one ends at once.
    """
    far = False
    if GATE == SCALAR or (GATE == KEY and EMIT):
        _, segment, bh = locate(H, NS, tl.cdiv(V - TAIL, BV))
        _, _, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
        most = PER
        if bounds is not None:
            most = counted(tl.cdiv(chunks, NS))
        flags = tl.zeros((FLAGS,), dtype=tl.int32)
        for begin in range(0, most, FLAGS):
            inner = begin + tl.arange(0, FLAGS)
            number = segment * most + inner
            chunk = chunks - 1 - number if REVERSE else number
            at = wide + (bh * NT if bounds is None else origin) + chunk
            flags += tl.load(at, mask=(inner < most) & (number < chunks), other=0)
        far = tl.max(flags, axis=0) > 0
    if far:
        if KINDS != PLAIN:
            walk_segment(
                x, w, y, spans, resets, edges, factors, wide, scores, columns, first, out, states, last,
                through, T, H, NT, bounds, NS, PER, K, V, C, BK, BV, TAIL, GATE, REVERSE, HAS_FIRST, EMIT,
                KEEP, True, VALUED, FADED, SHARED, PRECISION, EXACT_STAGES,
            )  # fmt: skip
    else:
        if KINDS != EXACT_ALONE:
            walk_segment(
                x, w, y, spans, resets, edges, factors, wide, scores, columns, first, out, states, last,
                through, T, H, NT, bounds, NS, PER, K, V, C, BK, BV, TAIL, GATE, REVERSE, HAS_FIRST, EMIT,
                KEEP, False, VALUED, FADED, SHARED, PRECISION, STAGES,
            )  # fmt: skip


@triton.jit
def walk_segment(
    x, w, y, spans, resets, edges, factors, wide, scores, columns, first, out, states, last, through,
    T, H, NT, bounds, NS, PER,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    TAIL: tl.constexpr, GATE: tl.constexpr, REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr,
    EMIT: tl.constexpr, KEEP: tl.constexpr, EXACT: tl.constexpr, VALUED: tl.constexpr, FADED: tl.constexpr,
    SHARED: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The walk of a program through its segment. EXACT: see the module; the rest as in `la_walk`."""
    tile, segment, bh = locate(H, NS, tl.cdiv(V - TAIL, BV))
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    if bounds is not None:
        PER = counted(tl.cdiv(chunks, NS))
    steps, keys = tl.arange(0, C), tl.arange(0, BK)
    values = tile * BV + tl.arange(0, BV)
    inside = keys[:, None] * V + values[None, :]
    mask = (keys < K)[:, None] & (values < V)[None, :]
    edge = (bh * NS + segment) * K * V
    state = tl.zeros((BK, BV), dtype=tl.float32)
    if HAS_FIRST:
        state += tl.load(first + edge + inside, mask=mask, other=0.0)
    if TAIL:
        rest_values = V // BV * BV + tl.arange(0, TAIL)
        rest_inside = keys[:, None] * V + rest_values[None, :]
        rest_mask = (keys < K)[:, None] & ((rest_values < V) & (tile == 0))[None, :]
        rest = tl.zeros((BK, TAIL), dtype=tl.float32)
        if HAS_FIRST:
            rest += tl.load(first + edge + rest_inside, mask=rest_mask, other=0.0)
    ordered = steps[:, None] <= steps[None, :] if REVERSE else steps[:, None] >= steps[None, :]
    passed = tl.zeros((BK,), dtype=tl.float32)
    after = tl.full((BK,), 1.0, dtype=tl.float32)
    column_after = tl.full((BV,), 1.0, dtype=tl.float32)
    # with a tail, numbers of steps have 32 bits, and 64 once multiplied by this: that takes fewer registers
    heads = H.to(tl.int64) if TAIL else H
    key_row, key_heads = row, heads
    if SHARED > 1:
        key_row, key_heads = key_head_offset(bh, T, H, SHARED), heads // SHARED
        if bounds is not None:
            key_row = row // H * key_heads + bh % H // SHARED
    for step in tl.range(PER, num_stages=STAGES):
        number = segment * PER + step
        live = number < chunks
        chunk = tl.where(live, chunks - 1 - number if REVERSE else number, chunks)
        at = (bh * NT if bounds is None else origin) + chunk
        t = (chunk * C).to(tl.int32) + steps if TAIL else chunk * C + steps
        x_tile = load_rows(x + key_row * K, t, stop, key_heads * K, keys, K)
        w_tile = load_rows(w + key_row * K, t, stop, key_heads * K, keys, K)
        y_tile = load_rows(y + row * V, t, stop, heads * V, values, V)
        if TAIL:
            y_rest = load_rows(y + row * V, t, stop, heads * V, rest_values, V)
        decay = ()
        if GATE == KEY:
            some = (keys < K) & live
            before = tl.load(factors + at * 3 * K + keys, mask=some, other=1.0)
            end = tl.load(factors + at * 3 * K + 2 * K + keys, mask=some, other=1.0)
            # twice by the root: the product of two chunks' factors may be too small for float32
            root = (after * (end if REVERSE else before))[:, None]
            state = state * root * root
            if TAIL:
                rest = rest * root * root
            after = before if REVERSE else end
            if EXACT or not EMIT:
                between = tl.load(factors + at * 3 * K + K + keys, mask=some, other=1.0)
                decay = (between,)
            if not EMIT:
                passed += 2 * (tl.log(before) + tl.log(end)) + tl.log(between)
        if VALUED:
            some = (values < V) & live
            column_before = tl.load(columns + at * 3 * V + values, mask=some, other=1.0)
            column_end = tl.load(columns + at * 3 * V + 2 * V + values, mask=some, other=1.0)
            root = (column_after * (column_end if REVERSE else column_before))[None, :]
            state = state * root * root
            column_after = column_before if REVERSE else column_end
        if GATE == SCALAR:
            span, reset, span_start, span_end, reset_end = load_spans(spans, resets, edges, at, live, C)
            if EXACT:
                to_end = linked(span, reset, span_end, reset_end)
                from_start = linked(span_start, 0, span, reset)
                total = linked(span_start, 0, span_end, reset_end)
                if not EMIT:
                    passed += tl.log(total)
                if REVERSE:
                    # everything decays through the first step, which would leave too little for half types
                    first_span = tl.load(spans + at * C, mask=live, other=0.0)
                    first_reset = tl.load(resets + at * C, mask=live, other=0)
                    from_first = linked(first_span, first_reset, span, reset)
                    rest_of_chunk = linked(first_span, first_reset, span_end, reset_end)
                    through_first = linked(span_start, 0, first_span, first_reset)
                    decay = (to_end, from_first, rest_of_chunk, through_first)
                else:
                    decay = (from_start, to_end, total)
            else:
                decay = (span, span_start, span_end)
                if not EMIT:
                    passed += span_end - span_start
        if FADED and EXACT:
            near = tl.load(wide + at, mask=live, other=1) == 0
            factor = tl.where(near, tl.exp(-span if REVERSE else span), 1.0)
            y_tile = scaled(y_tile, factor)
            if TAIL:
                y_rest = scaled(y_rest, factor)
        held = state.to(x.dtype.element_ty)
        if KEEP:
            tl.store(states + at * K * V + inside, held, mask=mask & live)
        state, y_tile = to_middle(state, y_tile, decay, GATE, REVERSE, EXACT, FADED)
        if EMIT:
            weights = tl.dot(x_tile, tl.trans(w_tile), input_precision=PRECISION)
            if GATE == SCALAR and EXACT:
                if REVERSE:
                    factor = linked(span[:, None], reset[:, None], span[None, :], reset[None, :])
                else:
                    factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
                weights = weights * tl.where(ordered, factor, 0.0)
            weights = tl.where(ordered, weights, 0.0).to(x.dtype.element_ty)
            if GATE == KEY and EXACT:
                far = tl.load(wide + at, mask=live, other=0) != 0
                cells = (
                    steps[None, :] * C + steps[:, None] if REVERSE else steps[:, None] * C + steps[None, :]
                )
                given = tl.load(scores + at * C * C + cells, mask=ordered & far, other=0.0)
                weights = tl.where(far, given, weights)
        if TAIL:  # before the strip: fewer registers spill than the other way round
            held_rest = rest.to(x.dtype.element_ty)
            if KEEP:
                tl.store(states + at * K * V + rest_inside, held_rest, mask=rest_mask & live)
            rest, y_rest = to_middle(rest, y_rest, decay, GATE, REVERSE, EXACT, FADED)
            if EMIT:
                acc = read_state(x_tile, held_rest, weights, y_rest, decay, GATE, REVERSE, EXACT, PRECISION)
                rows = row * V + t[:, None] * (heads * V) + rest_values[None, :]
                outside = (t < stop)[:, None] & ((rest_values < V) & (tile == 0))[None, :]
                tl.store(out + rows, acc.to(out.dtype.element_ty), mask=outside)
            rest = add_chunk(rest, w_tile, y_rest, decay, GATE, REVERSE, EXACT, EMIT, PRECISION)
        if EMIT:
            acc = read_state(x_tile, held, weights, y_tile, decay, GATE, REVERSE, EXACT, PRECISION)
            by_row = t[:, None] * (heads * V) if TAIL else t[:, None] * H * V
            rows = row * V + by_row + values[None, :]
            outside = (t < stop)[:, None] & (values < V)[None, :]
            tl.store(out + rows, acc.to(out.dtype.element_ty), mask=outside)
        state = add_chunk(state, w_tile, y_tile, decay, GATE, REVERSE, EXACT, EMIT, PRECISION)
    if GATE == KEY:
        state = state * after[:, None] * after[:, None]
        if TAIL:
            rest = rest * after[:, None] * after[:, None]
    if VALUED:
        state = state * column_after[None, :] * column_after[None, :]
    tl.store(last + edge + inside, state, mask=mask)
    if TAIL:
        tl.store(last + edge + rest_inside, rest, mask=rest_mask)
    if not EMIT and GATE != NONE:  # noqa: SIM102, as only this test is of constants
        if tile == 0:
            if GATE == KEY:
                tl.store(through + (bh * NS + segment) * K + keys, passed, mask=keys < K)
            else:
                tl.store(through + bh * NS + segment, tl.max(passed, axis=0))
