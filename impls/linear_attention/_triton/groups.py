"""How the kernels' values are grouped on their way from one phase to the next.

A launch gives a kernel its parameters one by one; the kernel groups them, at no cost on the device. Constants
are groups as well: their fields, in capitals, stay constants inside the kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class WalkOperands(NamedTuple):
    """What a walk reads and what it multiplies: queries x, keys w, values y, and the first states."""

    x: Any
    w: Any
    y: Any
    first: Any


class Decays(NamedTuple):
    """Decay as `la_anchor` and `la_spans` prepare it, one row per chunk.

    spans, resets, edges: of scalar gates. factors, scores: of key gates. columns: of value gates, like
    factors. wide: flags of the chunks that are wide.
    """

    spans: Any
    resets: Any
    edges: Any
    factors: Any
    wide: Any
    scores: Any
    columns: Any


class WalkResults(NamedTuple):
    """What a walk writes: see `la_walk`."""

    out: Any
    states: Any
    last: Any
    through: Any


class Sequences(NamedTuple):
    """T steps and H heads in NT chunks, or packed sequences between `bounds`; NS segments of PER chunks."""

    T: Any
    H: Any
    NT: Any
    bounds: Any
    NS: Any
    PER: Any


class WalkTask(NamedTuple):
    """Constants of a walk: what it computes. See `la_walk`."""

    GATE: Any
    REVERSE: Any
    HAS_FIRST: Any
    EMIT: Any
    KEEP: Any
    VALUED: Any
    FADED: Any
    SHARED: Any
    PRECISION: Any


class WalkTile(NamedTuple):
    """Constants of a walk: sizes. K, V: of a head. C, BK, BV: of a program's tiles. TAIL: see `la_walk`."""

    K: Any
    V: Any
    C: Any
    BK: Any
    BV: Any
    TAIL: Any


class Spans(NamedTuple):
    """Scalar gates of a chunk: sums from its middle to each step, to its start and to its end; resets."""

    span: Any
    reset: Any
    start: Any
    end: Any
    reset_end: Any
