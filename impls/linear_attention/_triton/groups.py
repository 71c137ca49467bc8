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


class GradOperands(NamedTuple):
    """What gradients are made of: the walk's queries x and keys w, keys k without decay, v, do and log gates.

    states, adjoints: at the edges of chunks, (B·H, chunks, K, V).
    """

    x: Any
    w: Any
    k: Any
    v: Any
    do: Any
    log_a: Any
    states: Any
    adjoints: Any


class GradResults(NamedTuple):
    """Gradients; dscores, boundary and turns: of wide chunks, for `la_grad_key`.

    dq_states, dk_states: where the parts of wide chunks through states go, which may be dq and dk.
    """

    dscores: Any
    boundary: Any
    turns: Any
    dq_states: Any
    dk_states: Any
    dq: Any
    dk: Any
    dlog_a: Any
    dphase: Any


class GradChunk(NamedTuple):
    """A program's chunk. tile: of keys. head: number of batch and head. start: first step.

    begin: row of that step in (B, T, H, ·). left: steps from it on. at: row in tensors with one per chunk.
    """

    tile: Any
    head: Any
    start: Any
    begin: Any
    left: Any
    at: Any
    T: Any
    H: Any


class GradTask(NamedTuple):
    """Constants of gradients: see `la_grads`."""

    GATE: Any
    CONST: Any
    TURN: Any
    FADED: Any
    SHARED: Any
    PRECISION: Any
    PART: Any


class GradTile(NamedTuple):
    """Constants of gradients: sizes. K, KG, V: of a head, KG of its gates. C, BK, BV: of tiles."""

    K: Any
    KG: Any
    V: Any
    C: Any
    BK: Any
    BV: Any
