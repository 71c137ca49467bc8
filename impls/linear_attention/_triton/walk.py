"""The walk: one program takes the chunks of a head in order, its strip of the state in registers.

See `anchors` for how decay gets into the operands. Everything that has no order is inside the same loop, so a
chunk's operands are read once and its scores never leave the chip.

A segment without a wide chunk has the plain walk, any other the exact one: it takes the scores of wide chunks
under key gates from memory, and decides pair by pair under scalar ones whether a reset lies between. Under
scalar gates both are in one kernel, so that they run beside each other: heads with strong decay do not wait
for those without. Elsewhere the plain walk would lose more in registers: each has a kernel.

A few columns of values behind whole strips are a tail: every program takes them through the same loop as a
second, narrow tile, and the first program of a head writes them. So there is no branch around products, which
would end the pipelining of loads. `walk_chunk` has the phases of a chunk, which both tiles go through.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.packed import counted
from ..._triton.sequences import sequence_of
from .anchors import load_spans
from .blocks import FLAGS, KEY, NONE, SCALAR, locate
from .groups import Decays, Sequences, WalkOperands, WalkResults, WalkTask, WalkTile
from .heads import key_head_offset
from .walk_chunk import (
    HeadRows,
    add_chunk,
    chunk_of,
    chunk_scores,
    enter_by_columns,
    enter_by_keys,
    first_chunk,
    hold_state,
    load_head,
    read_state,
    scalar_decay,
    scaled,
    store_rows,
    strip_of,
    to_middle,
    unfading,
)

BOTH, PLAIN, EXACT_ALONE = WALKS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # that a kernel has


class Segment(NamedTuple):
    """What a program walks: a strip of the values (`tile`) of one segment of a head.

    number: of the segment. head: number of sequence and head. row, stop: its first row and its steps. chunks:
    of the sequence, the first at `origin` in tensors with one row per chunk. length: chunks of the segment.
    """

    tile: Any
    number: Any
    head: Any
    row: Any
    stop: Any
    chunks: Any
    origin: Any
    length: Any


@triton.jit
def segment_of(sequences, TILE):
    """Find this program's segment."""
    T, H, NT, bounds, NS, PER = sequences
    tile, number, bh = locate(H, NS, tl.cdiv(TILE.V - TILE.TAIL, TILE.BV))
    row, stop, chunks, origin = sequence_of(bh, T, H, NT, bounds, TILE.C)
    if bounds is not None:
        PER = counted(tl.cdiv(chunks, NS))
    return Segment(tile, number, bh, row, stop, chunks, origin, PER)


@triton.jit
def any_wide(wide, sequences, REVERSE: tl.constexpr, TILE):
    """Whether a chunk of this program's segment is wide."""
    own = segment_of(sequences, TILE)
    flags = tl.zeros((FLAGS,), dtype=tl.int32)
    for begin in range(0, own.length, FLAGS):
        inner = begin + tl.arange(0, FLAGS)
        number = own.number * own.length + inner
        chunk = own.chunks - 1 - number if REVERSE else number
        at = wide + first_chunk(own, sequences) + chunk
        flags += tl.load(at, mask=(inner < own.length) & (number < own.chunks), other=0)
    return tl.max(flags, axis=0) > 0


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
    operands = WalkOperands(x, w, y, first)
    decays = Decays(spans, resets, edges, factors, wide, scores, columns)
    results = WalkResults(out, states, last, through)
    sequences = Sequences(T, H, NT, bounds, NS, PER)
    TASK: tl.constexpr = WalkTask(GATE, REVERSE, HAS_FIRST, EMIT, KEEP, VALUED, FADED, SHARED, PRECISION)
    TILE: tl.constexpr = WalkTile(K, V, C, BK, BV, TAIL)
    far = False
    if GATE == SCALAR or (GATE == KEY and EMIT):
        far = any_wide(wide, sequences, REVERSE, TILE)
    if far:
        if KINDS != PLAIN:
            walk_segment(operands, decays, results, sequences, TASK, TILE, True, EXACT_STAGES)
    else:
        if KINDS != EXACT_ALONE:
            walk_segment(operands, decays, results, sequences, TASK, TILE, False, STAGES)


@triton.jit
def walk_segment(operands, decays, results, sequences, TASK, TILE, EXACT: tl.constexpr, STAGES: tl.constexpr):
    """Walk through a program's segment. EXACT: see the module; the rest as in `la_walk`."""
    own = segment_of(sequences, TILE)
    steps, keys = tl.arange(0, TILE.C), tl.arange(0, TILE.BK)
    strip = strip_of(keys, own.tile, False, TILE)
    edge = (own.head * sequences.NS + own.number) * TILE.K * TILE.V
    state, rest = first_state(operands.first, edge, strip, TASK.HAS_FIRST), ()
    if TILE.TAIL:
        tail = strip_of(keys, own.tile, True, TILE)
        rest = first_state(operands.first, edge, tail, TASK.HAS_FIRST)
    ordered = steps[:, None] <= steps[None, :] if TASK.REVERSE else steps[:, None] >= steps[None, :]
    passed = tl.zeros((TILE.BK,), dtype=tl.float32)
    after = tl.full((TILE.BK,), 1.0, dtype=tl.float32)
    column_after = tl.full((TILE.BV,), 1.0, dtype=tl.float32)
    rows, key_rows = rows_of(own, sequences, TASK.SHARED, TILE.TAIL)
    for step in tl.range(own.length, num_stages=STAGES):
        chunk = chunk_of(own, sequences, step, steps, TASK, TILE)
        x_tile = load_head(operands.x, key_rows, chunk.t, keys, TILE.K)
        w_tile = load_head(operands.w, key_rows, chunk.t, keys, TILE.K)
        y_tile = load_head(operands.y, rows, chunk.t, strip.columns, TILE.V)
        if TILE.TAIL:
            y_rest = load_head(operands.y, rows, chunk.t, tail.columns, TILE.V)
        spans, decay = (), ()
        if TASK.GATE == KEY:
            state, rest, after, passed, decay = enter_by_keys(
                state, rest, after, passed, decays.factors, keys, chunk, TASK, TILE, EXACT
            )
        if TASK.VALUED:
            state, column_after = enter_by_columns(
                state, column_after, decays.columns, strip, chunk, TASK, TILE
            )
        if TASK.GATE == SCALAR:
            spans = load_spans(decays.spans, decays.resets, decays.edges, chunk.at, chunk.live, TILE.C)
            decay, passed = scalar_decay(passed, spans, decays, chunk, TASK, TILE, EXACT)
        if TASK.FADED and EXACT:
            factor = unfading(spans, decays.wide, chunk, TASK.REVERSE)
            y_tile = scaled(y_tile, factor)
            if TILE.TAIL:
                y_rest = scaled(y_rest, factor)
        held = hold_state(state, strip, operands.x, results.states, chunk, TASK, TILE)
        state, y_tile = to_middle(state, y_tile, decay, TASK, EXACT)
        scores = ()
        if TASK.EMIT:
            scores = chunk_scores(x_tile, w_tile, ordered, spans, decays, chunk, TASK, TILE, EXACT)
        if TILE.TAIL:  # before the strip: fewer registers spill than the other way round
            held_rest = hold_state(rest, tail, operands.x, results.states, chunk, TASK, TILE)
            rest, y_rest = to_middle(rest, y_rest, decay, TASK, EXACT)
            if TASK.EMIT:
                out = read_state(x_tile, held_rest, scores, y_rest, decay, TASK, EXACT)
                store_rows(results.out, out, tail, rows, chunk.t, TILE)
            rest = add_chunk(rest, w_tile, y_rest, decay, TASK, EXACT)
        if TASK.EMIT:
            out = read_state(x_tile, held, scores, y_tile, decay, TASK, EXACT)
            store_rows(results.out, out, strip, rows, chunk.t, TILE)
        state = add_chunk(state, w_tile, y_tile, decay, TASK, EXACT)
    if TASK.GATE == KEY:
        state = state * after[:, None] * after[:, None]
        if TILE.TAIL:
            rest = rest * after[:, None] * after[:, None]
    if TASK.VALUED:
        state = state * column_after[None, :] * column_after[None, :]
    tl.store(results.last + edge + strip.cells, state, mask=strip.mask)
    if TILE.TAIL:
        tl.store(results.last + edge + tail.cells, rest, mask=tail.mask)
    if not TASK.EMIT and TASK.GATE != NONE:  # noqa: SIM102, as only this test is of constants
        if own.tile == 0:
            store_passed(results.through, passed, own, sequences.NS, keys, TASK, TILE)


@triton.jit
def first_state(first, edge, strip, HAS_FIRST: tl.constexpr):
    """The state in which a segment begins: 0, or that in memory."""
    state = tl.zeros(strip.mask.shape, dtype=tl.float32)
    if HAS_FIRST:
        state += tl.load(first + edge + strip.cells, mask=strip.mask, other=0.0)
    return state


@triton.jit
def rows_of(own, sequences, SHARED: tl.constexpr, TAIL: tl.constexpr):
    """Where the rows of the segment's head lie, and those of its key head."""
    T, H, _, bounds, _, _ = sequences
    # with a tail, numbers of steps have 32 bits, and 64 once multiplied by this: that takes fewer registers
    heads = H.to(tl.int64) if TAIL else H
    key_row, key_heads = own.row, heads
    if SHARED > 1:
        key_row, key_heads = key_head_offset(own.head, T, H, SHARED), heads // SHARED
        if bounds is not None:
            key_row = own.row // H * key_heads + own.head % H // SHARED
    return HeadRows(own.row, heads, own.stop), HeadRows(key_row, key_heads, own.stop)


@triton.jit
def store_passed(through, passed, own, NS, keys, TASK, TILE):
    """Store the log of a segment's decay."""
    at = own.head * NS + own.number
    if TASK.GATE == KEY:
        tl.store(through + at * TILE.K + keys, passed, mask=keys < TILE.K)
    else:
        tl.store(through + at, tl.max(passed, axis=0))
