"""The walk: one program takes the chunks of a head in order, its strip of the state in registers.

See `anchors` for how decay gets into the operands. Everything that has no order is inside the same loop, so a
chunk's operands are read once and its scores never leave the chip.

Of the two kinds of the kernel, the plain one walks through segments without a wide chunk, the exact one
through the others: it takes the scores of wide chunks under key gates from memory, and decides pair by pair
under scalar ones whether a reset lies between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .anchors import linked, load_spans
from .blocks import FLAGS, KEY, NONE, SCALAR, head_offset, load_rows, locate


@triton.jit(do_not_specialize=("T", "H", "NT", "NS"))
def la_walk(
    x, w, y, spans, resets, edges, factors, wide, scores, columns, first, out, states, last, through,
    T, H, NT, NS, PER, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr, EMIT: tl.constexpr,
    KEEP: tl.constexpr, EXACT: tl.constexpr, VALUED: tl.constexpr, FADED: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """o from queries x, keys w and values y; REVERSE: dv from keys x, queries w and do y, from the end back.

    NS segments of PER chunks each, in the order of the walk, start from `first` (B·H, NS, K, V) and end in
    `last`. EMIT: write `out`; otherwise `through` (B·H, NS, K|1), the log of a segment's decay.
    KEEP: write the state that each chunk reads, (B·H, chunks, K, V), in the dtype of the operands.
    EXACT: see the module; a program whose segment is of the other kind ends at once. VALUED: value gates have
    their decay in y and out (see `valued`), and in columns what factors is for keys. FADED: y has the decay
    of scalar gates from the chunk's middle in it, where the chunk is not wide.
    """
    tile, segment, bh = locate(H, NS, tl.cdiv(V, BV))
    if GATE == SCALAR or (GATE == KEY and EMIT):
        flags = tl.zeros((FLAGS,), dtype=tl.int32)
        for begin in range(0, PER, FLAGS):
            inner = begin + tl.arange(0, FLAGS)
            number = segment * PER + inner
            chunk = NT - 1 - number if REVERSE else number
            flags += tl.load(wide + bh * NT + chunk, mask=(inner < PER) & (number < NT), other=0)
        if (tl.max(flags, axis=0) > 0) != EXACT:
            return
    row = head_offset(bh, T, H)
    steps, keys = tl.arange(0, C), tl.arange(0, BK)
    values = tile * BV + tl.arange(0, BV)
    inside = keys[:, None] * V + values[None, :]
    mask = (keys < K)[:, None] & (values < V)[None, :]
    edge = (bh * NS + segment) * K * V
    state = tl.zeros((BK, BV), dtype=tl.float32)
    if HAS_FIRST:
        state += tl.load(first + edge + inside, mask=mask, other=0.0)
    ordered = steps[:, None] <= steps[None, :] if REVERSE else steps[:, None] >= steps[None, :]
    passed = tl.zeros((BK,), dtype=tl.float32)
    after = tl.full((BK,), 1.0, dtype=tl.float32)
    column_after = tl.full((BV,), 1.0, dtype=tl.float32)
    for step in tl.range(PER, num_stages=STAGES):
        number = segment * PER + step
        live = number < NT
        chunk = tl.where(live, NT - 1 - number if REVERSE else number, NT)
        at = bh * NT + chunk
        t = chunk * C + steps
        x_tile = load_rows(x + row * K, t, T, H * K, keys, K)
        w_tile = load_rows(w + row * K, t, T, H * K, keys, K)
        y_tile = load_rows(y + row * V, t, T, H * V, values, V)
        if GATE == KEY:
            some = (keys < K) & live
            before = tl.load(factors + at * 3 * K + keys, mask=some, other=1.0)
            end = tl.load(factors + at * 3 * K + 2 * K + keys, mask=some, other=1.0)
            # twice by the root: the product of two chunks' factors may be too small for float32
            root = (after * (end if REVERSE else before))[:, None]
            state = state * root * root
            after = before if REVERSE else end
            if EXACT or not EMIT:
                between = tl.load(factors + at * 3 * K + K + keys, mask=some, other=1.0)
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
                from_start = linked(span_start, 0, span, reset)
                to_end = linked(span, reset, span_end, reset_end)
                total = linked(span_start, 0, span_end, reset_end)
                if not EMIT:
                    passed += tl.log(total)
            elif not EMIT:
                passed += span_end - span_start
        if FADED and EXACT:
            near = tl.load(wide + at, mask=live, other=1) == 0
            factor = tl.where(near, tl.exp(-span if REVERSE else span), 1.0)
            y_tile = (y_tile.to(tl.float32) * factor[:, None]).to(y.dtype.element_ty)
        held = state.to(x.dtype.element_ty)
        if KEEP:
            tl.store(states + at * K * V + inside, held, mask=mask & live)
        if GATE == SCALAR and not EXACT:
            # the decay from the middle lies in y, and its inverse in the rows of what is read
            if not FADED:
                factor = tl.exp(span if REVERSE else -span)
                y_tile = (y_tile.to(tl.float32) * factor[:, None]).to(y.dtype.element_ty)
            to_middle = tl.exp(span_end if REVERSE else -span_start)
            state = state * to_middle
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
            acc = tl.dot(x_tile, held, input_precision=PRECISION)
            if GATE == SCALAR:
                acc = acc * ((to_end if REVERSE else from_start)[:, None] if EXACT else to_middle)
            acc = tl.dot(weights, y_tile, acc, input_precision=PRECISION)
            if GATE == SCALAR and not EXACT:
                acc = acc * tl.exp(-span if REVERSE else span)[:, None]
            rows = row * V + t[:, None] * H * V + values[None, :]
            outside = (t < T)[:, None] & (values < V)[None, :]
            tl.store(out + rows, acc.to(out.dtype.element_ty), mask=outside)
        if GATE == KEY and (EXACT or not EMIT):
            state = state * between[:, None]
        if GATE == SCALAR and EXACT:
            state = state * total
            factor = from_start if REVERSE else to_end
            y_tile = (y_tile.to(tl.float32) * factor[:, None]).to(x.dtype.element_ty)
        state = tl.dot(tl.trans(w_tile), y_tile, state, input_precision=PRECISION)
        if GATE == SCALAR and not EXACT:
            state = state * tl.exp(-span_start if REVERSE else span_end)
    if GATE == KEY:
        state = state * after[:, None] * after[:, None]
    if VALUED:
        state = state * column_after[None, :] * column_after[None, :]
    tl.store(last + edge + inside, state, mask=mask)
    if not EMIT and GATE != NONE:  # noqa: SIM102, as only this test is of constants
        if tile == 0:
            if GATE == KEY:
                tl.store(through + (bh * NS + segment) * K + keys, passed, mask=keys < K)
            else:
                tl.store(through + bh * NS + segment, tl.max(passed, axis=0))
