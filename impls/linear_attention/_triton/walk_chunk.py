"""The phases of a walk through one chunk: its place, its decay, its scores, and its part in a strip's state.

The decay of a chunk depends on the gate:

- KEY: `Between`, the state's factors between the chunk's edges, where the kernel has loaded them;
- SCALAR: `Spans`, from the chunk's middle;
- SCALAR, EXACT: `Exact`, factors from each step to the edges of the chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .anchors import linked
from .blocks import KEY, SCALAR, load_rows


class Chunk(NamedTuple):
    """at: row in tensors with one per chunk. t: steps in the sequence. live: whether there is one."""

    at: Any
    t: Any
    live: Any


class HeadRows(NamedTuple):
    """Where a head lies in (B, T, H, ·): row of step 0, heads between two steps, steps of the sequence."""

    row: Any
    heads: Any
    stop: Any


class Strip(NamedTuple):
    """Columns of the state (K, V) in registers, [BK, columns]: columns, which exist, cells and their mask."""

    columns: Any
    exist: Any
    cells: Any
    mask: Any


class Between(NamedTuple):
    """Key gates: the state's factors between the chunk's edges [BK]."""

    factor: Any


class Exact(NamedTuple):
    """Factors, none a quotient: of rows that are read, of values that are added, and of the state.

    first: in reverse, the factor of the chunk's first step, after which `written` and `state` begin.
    """

    read: Any
    written: Any
    state: Any
    first: Any


@triton.jit
def strip_of(keys, tile, TAIL: tl.constexpr, TILE):
    """Describe a program's strip, or (TAIL) the columns behind all, which the first program has."""
    if TAIL:
        values = TILE.V // TILE.BV * TILE.BV + tl.arange(0, TILE.TAIL)
    else:
        values = tile * TILE.BV + tl.arange(0, TILE.BV)
    cells = keys[:, None] * TILE.V + values[None, :]
    mask = (keys < TILE.K)[:, None]
    exist = values < TILE.V
    if TAIL:
        exist = exist & (tile == 0)
    return Strip(values, exist, cells, mask & exist[None, :])


@triton.jit
def first_chunk(own, sequences):
    """Row of the sequence's first chunk in tensors with one per chunk.

    Called inside of loops: a product that is made again takes fewer registers.
    """
    return own.head * sequences.NT if sequences.bounds is None else own.origin


@triton.jit
def chunk_of(own, sequences, step, steps, TASK, TILE):
    """Find the segment's chunk that is walked at a step of the loop."""
    number = own.number * own.length + step
    live = number < own.chunks
    chunk = tl.where(live, own.chunks - 1 - number if TASK.REVERSE else number, own.chunks)
    at = first_chunk(own, sequences) + chunk
    t = (chunk * TILE.C).to(tl.int32) + steps if TILE.TAIL else chunk * TILE.C + steps
    return Chunk(at, t, live)


@triton.jit
def load_head(x, rows, t, columns, W: tl.constexpr):
    """Steps t of a head of x (B, T, H, W) at the given columns."""
    return load_rows(x + rows.row * W, t, rows.stop, rows.heads * W, columns, W)


@triton.jit
def scaled(x, factor):
    """Multiply each row of x by its factor; keep the dtype of x."""
    return (x.to(tl.float32) * factor[:, None]).to(x.dtype)


@triton.jit
def load_edges(factors, at, channels, some, N: tl.constexpr):
    """Roots of the factors before the middle of a chunk and after it: see `la_anchor`."""
    before = tl.load(factors + at * 3 * N + channels, mask=some, other=1.0)
    end = tl.load(factors + at * 3 * N + 2 * N + channels, mask=some, other=1.0)
    return before, end


@triton.jit
def enter_by_keys(state, rest, after, passed, factors, keys, chunk, TASK, TILE, EXACT: tl.constexpr):
    """Let the state decay from the chunk before to this one, by key gates.

    Returns both tiles of the state, the root of the factor behind this chunk, the log decay of all chunks so
    far, and `Between`.
    """
    K: tl.constexpr = TILE.K
    some = (keys < K) & chunk.live
    before, end = load_edges(factors, chunk.at, keys, some, K)
    # twice by the root: the product of two chunks' factors may be too small for float32
    root = (after * (end if TASK.REVERSE else before))[:, None]
    state = state * root * root
    if TILE.TAIL:
        rest = rest * root * root
    decay = ()
    if EXACT or not TASK.EMIT:
        between = tl.load(factors + chunk.at * 3 * K + K + keys, mask=some, other=1.0)
        decay = Between(between)
        if not TASK.EMIT:
            passed += 2 * (tl.log(before) + tl.log(end)) + tl.log(between)
    return state, rest, before if TASK.REVERSE else end, passed, decay


@triton.jit
def enter_by_columns(state, after, columns, strip, chunk, TASK, TILE):
    """Like `enter_by_keys` by value gates: the state, and the root of the factor behind this chunk."""
    some = (strip.columns < TILE.V) & chunk.live
    before, end = load_edges(columns, chunk.at, strip.columns, some, TILE.V)
    root = (after * (end if TASK.REVERSE else before))[None, :]
    return state * root * root, before if TASK.REVERSE else end


@triton.jit
def scalar_decay(passed, spans, decays, chunk, TASK, TILE, EXACT: tl.constexpr):
    """The decay of a chunk, `Exact` or its `Spans`, and the log decay of all chunks so far."""
    if not EXACT:
        if not TASK.EMIT:
            passed += spans.end - spans.start
        return spans, passed
    else:
        to_end = linked(spans.span, spans.reset, spans.end, spans.reset_end)
        from_start = linked(spans.start, 0, spans.span, spans.reset)
        total = linked(spans.start, 0, spans.end, spans.reset_end)
        if not TASK.EMIT:
            passed += tl.log(total)
        if not TASK.REVERSE:
            return Exact(from_start, to_end, total, ()), passed
        else:
            # everything decays through the first step, which would leave too little for half types
            first = tl.load(decays.spans + chunk.at * TILE.C, mask=chunk.live, other=0.0)
            first_reset = tl.load(decays.resets + chunk.at * TILE.C, mask=chunk.live, other=0)
            from_first = linked(first, first_reset, spans.span, spans.reset)
            rest_of_chunk = linked(first, first_reset, spans.end, spans.reset_end)
            through_first = linked(spans.start, 0, first, first_reset)
            return Exact(to_end, from_first, rest_of_chunk, through_first), passed


@triton.jit
def unfading(spans, wide, chunk, REVERSE: tl.constexpr):
    """Factors that take the decay out of faded values, unless their chunk is wide."""
    near = tl.load(wide + chunk.at, mask=chunk.live, other=1) == 0
    return tl.where(near, tl.exp(-spans.span if REVERSE else spans.span), 1.0)


@triton.jit
def hold_state(state, strip, x, states, chunk, TASK, TILE):
    """The state that a chunk reads, in the dtype of x; store it, too, if it is to be kept."""
    held = state.to(x.dtype.element_ty)
    if TASK.KEEP:
        tl.store(states + chunk.at * TILE.K * TILE.V + strip.cells, held, mask=strip.mask & chunk.live)
    return held


@triton.jit
def to_middle(state, y_tile, decay, TASK, EXACT: tl.constexpr):
    """Bring scalar decay from or to the chunk's middle into the state and y, unless y has it."""
    if TASK.GATE == SCALAR and not EXACT:
        if not TASK.FADED:
            y_tile = scaled(y_tile, tl.exp(decay.span if TASK.REVERSE else -decay.span))
        state = state * tl.exp(decay.end if TASK.REVERSE else -decay.start)
    return state, y_tile


@triton.jit
def chunk_scores(x_tile, w_tile, ordered, spans, decays, chunk, TASK, TILE, EXACT: tl.constexpr):
    """Scores [C, C] of the chunk's queries and keys, 0 unless `ordered`; in the dtype of x."""
    C: tl.constexpr = TILE.C
    scores = tl.dot(x_tile, tl.trans(w_tile), input_precision=TASK.PRECISION)  # [C, K] @ [K, C]
    if TASK.GATE == SCALAR and EXACT:
        span, reset = spans.span, spans.reset
        if TASK.REVERSE:
            factor = linked(span[:, None], reset[:, None], span[None, :], reset[None, :])
        else:
            factor = linked(span[None, :], reset[None, :], span[:, None], reset[:, None])
        scores = scores * tl.where(ordered, factor, 0.0)
    scores = tl.where(ordered, scores, 0.0).to(x_tile.dtype)
    if TASK.GATE == KEY and EXACT:
        steps = tl.arange(0, C)
        far = tl.load(decays.wide + chunk.at, mask=chunk.live, other=0) != 0
        cells = steps[None, :] * C + steps[:, None] if TASK.REVERSE else steps[:, None] * C + steps[None, :]
        given = tl.load(decays.scores + chunk.at * C * C + cells, mask=ordered & far, other=0.0)
        scores = tl.where(far, given, scores)
    return scores


@triton.jit
def read_state(x_tile, held, scores, y_tile, decay, TASK, EXACT: tl.constexpr):
    """Compute x times the state `held`, plus scores times y, with the decay of scalar gates: [C, columns]."""
    acc = tl.dot(x_tile, held, input_precision=TASK.PRECISION)  # [C, K] @ [K, columns]
    if TASK.GATE == SCALAR and EXACT:
        acc = acc * decay.read[:, None]
    if TASK.GATE == SCALAR and not EXACT:
        acc = acc * tl.exp(decay.end if TASK.REVERSE else -decay.start)
    acc = tl.dot(scores, y_tile, acc, input_precision=TASK.PRECISION)  # [C, C] @ [C, columns]
    if TASK.GATE == SCALAR and not EXACT:
        acc = acc * tl.exp(-decay.span if TASK.REVERSE else decay.span)[:, None]
    return acc


@triton.jit
def store_rows(out, acc, strip, rows, t, TILE):
    """Store [C, columns] as steps t of a head of out (B, T, H, V)."""
    V: tl.constexpr = TILE.V
    by_row = t[:, None] * (rows.heads * V) if TILE.TAIL else t[:, None] * rows.heads * V
    cells = rows.row * V + by_row + strip.columns[None, :]
    outside = (t < rows.stop)[:, None] & strip.exist[None, :]
    tl.store(out + cells, acc.to(out.dtype.element_ty), mask=outside)


@triton.jit
def add_chunk(state, w_tile, y_tile, decay, TASK, EXACT: tl.constexpr):
    """Compute the state after a chunk: let it decay, and add the keys w times the values y."""
    if TASK.GATE == KEY and (EXACT or not TASK.EMIT):
        state = state * decay.factor[:, None]
    if TASK.GATE == SCALAR and EXACT:
        state = state * decay.state
        y_tile = scaled(y_tile, decay.written)
    state = tl.dot(tl.trans(w_tile), y_tile, state, input_precision=TASK.PRECISION)  # [K, C] @ [C, columns]
    if TASK.GATE == SCALAR and EXACT and TASK.REVERSE:
        state = state * decay.first
    if TASK.GATE == SCALAR and not EXACT:
        state = state * tl.exp(-decay.start if TASK.REVERSE else decay.end)
    return state
