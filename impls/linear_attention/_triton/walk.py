"""The walk: one program takes the chunks of a head in order, its strip of the state in registers.

See `anchors` for how decay gets into the operands. Everything that has no order is inside the same loop, so a
chunk's operands are read once and its scores never leave the chip.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .anchors import linked, load_spans
from .blocks import KEY, SCALAR, head_offset, load_rows, locate


@triton.jit(do_not_specialize=("T", "H", "NT", "NS"))
def la_walk(
    x, w, y, spans, resets, factors, wide, scores, first, out, states, last, through, T, H, NT, NS, PER,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    GATE: tl.constexpr, REVERSE: tl.constexpr, HAS_FIRST: tl.constexpr, EMIT: tl.constexpr,
    KEEP: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """o from queries x, keys w and values y; REVERSE: dv from keys x, queries w and do y, from the end back.

    NS segments of PER chunks each, in the order of the walk, start from `first` (B·H, NS, K, V) and end in
    `last`. EMIT: write `out`; otherwise `through` (B·H, NS, K|1), the log of a segment's decay.
    KEEP: write the state that each chunk reads, (B·H, chunks, K, V), in the dtype of the operands.
    """
    tile, segment, bh = locate(H, NS, tl.cdiv(V, BV))
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
            start = tl.load(factors + at * 3 * K + keys, mask=some, other=1.0)
            between = tl.load(factors + at * 3 * K + K + keys, mask=some, other=1.0)
            end = tl.load(factors + at * 3 * K + 2 * K + keys, mask=some, other=1.0)
            state = state * (after * (end if REVERSE else start))[:, None]
            after = start if REVERSE else end
            if not EMIT:
                passed += tl.log(start) + tl.log(between) + tl.log(end)
        if GATE == SCALAR:
            span, reset, span_end, reset_end = load_spans(spans, resets, at, live, C)
            from_start = linked(0.0, 0, span, reset)
            to_end = linked(span, reset, span_end, reset_end)
            total = linked(0.0, 0, span_end, reset_end)
            if not EMIT:
                passed += tl.log(total)
        held = state.to(x.dtype.element_ty)
        if KEEP:
            tl.store(states + at * K * V + inside, held, mask=mask & live)
        if EMIT:
            weights = tl.dot(x_tile, tl.trans(w_tile), input_precision=PRECISION)
            if GATE == SCALAR:
                if REVERSE:
                    factor = linked(span[:, None], reset[:, None], span[None, :], reset[None, :])
                else:
                    factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
                weights = weights * tl.where(ordered, factor, 0.0)
            if GATE == KEY:
                far = tl.load(wide + at, mask=live, other=0) != 0
                rows, columns = steps[:, None], steps[None, :]
                cells = columns * C + rows if REVERSE else rows * C + columns
                given = tl.load(scores + at * C * C + cells, mask=ordered & far, other=0.0)
                weights = tl.where(far, given.to(tl.float32), weights)
            weights = tl.where(ordered, weights, 0.0)
            acc = tl.dot(x_tile, held, input_precision=PRECISION)
            if GATE == SCALAR:
                acc = acc * (to_end if REVERSE else from_start)[:, None]
            acc = tl.dot(weights.to(x.dtype.element_ty), y_tile, acc, input_precision=PRECISION)
            rows = row * V + t[:, None] * H * V + values[None, :]
            outside = (t < T)[:, None] & (values < V)[None, :]
            tl.store(out + rows, acc.to(out.dtype.element_ty), mask=outside)
        if GATE == KEY:
            state = state * between[:, None]
        if GATE == SCALAR:
            state = state * total
            factor = from_start if REVERSE else to_end
            y_tile = (y_tile.to(tl.float32) * factor[:, None]).to(x.dtype.element_ty)
        state = tl.dot(tl.trans(w_tile), y_tile, state, input_precision=PRECISION)
    if GATE == KEY:
        state = state * after[:, None]
    tl.store(last + edge + inside, state, mask=mask)
    if not EMIT and GATE != 0:  # noqa: SIM102, as only this test is of constants
        if tile == 0:
            if GATE == KEY:
                tl.store(through + (bh * NS + segment) * K + keys, passed, mask=keys < K)
            else:
                tl.store(through + bh * NS + segment, tl.max(passed, axis=0))
