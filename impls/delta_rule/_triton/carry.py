"""The state in which each segment of a head begins, from what each makes of any state: S ↦ M S + U.

Backward, the gradient of the state in which each segment ends: dS ↦ Mᵀ dS + dU, from the last segment on.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Measured on an H100 at K = V = 128, in the time that a walk with an output takes for a chunk, 2.8 µs.
WALKS = 2.6  # the three walks of a segment
MOVE = 2.3  # from the edge of a segment to the next
LAUNCHES = 9.0  # of the kernels that segments need beside


def segments_of(chunks: int, programs: int, processors: int) -> int:
    """The number of segments of each head with which walks take least; 1 for none.

    programs: of a walk without segments.
    """

    def cost(segments: int) -> float:
        walk = triton.cdiv(programs * segments, processors) * triton.cdiv(chunks, segments)
        return walk if segments == 1 else WALKS * walk + MOVE * (segments - 1) + LAUNCHES

    most = min(chunks, max(1, 2 * processors // max(1, programs)))
    best = min(range(1, most + 1), key=cost)
    return triton.cdiv(chunks, triton.cdiv(chunks, best))  # with none that is empty


@triton.jit
def square_of(x, rows, columns, K: tl.constexpr, TURNED: tl.constexpr):
    """Some rows and columns of a matrix (K, K), or of its transpose."""
    at = columns[None, :] * K + rows[:, None] if TURNED else rows[:, None] * K + columns[None, :]
    return tl.load(x + at, mask=(rows < K)[:, None] & (columns < K)[None, :], other=0.0)


@triton.jit(do_not_specialize=("NS", "MOVES"))
def delta_carry(
    maps, ends, given, edges, NS, MOVES,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BACK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """edges (heads, NS, K, V) from maps (heads, NS, K, K) and ends (heads, NS, K, V), both in float32.

    given: the first edge, (heads, K, V), or None for 0. MOVES: NS − 1. A program has a strip of values, and
    reads the edge before from memory, where it has written it.
    """
    strips = tl.cdiv(V, BV)
    values = tl.program_id(0) % strips * BV + tl.arange(0, BV)
    head = (tl.program_id(0) // strips).to(tl.int64)
    first = head * NS + (NS - 1 if BACK else 0)
    for begin in tl.static_range(0, K, BK):
        rows = begin + tl.arange(0, BK)
        inside, kept = rows[:, None] * V + values[None, :], (rows < K)[:, None] & (values < V)[None, :]
        edge = tl.zeros((BK, BV), tl.float32)
        if given is not None:
            edge += tl.load(given + head * K * V + inside, mask=kept, other=0.0)
        tl.store(edges + first * K * V + inside, edge, mask=kept)
    for move in range(MOVES):
        segment = first - move if BACK else first + move
        after = segment - 1 if BACK else segment + 1
        tl.debug_barrier()
        for begin in tl.static_range(0, K, BK):
            rows = begin + tl.arange(0, BK)
            inside, kept = rows[:, None] * V + values[None, :], (rows < K)[:, None] & (values < V)[None, :]
            edge = tl.load(ends + segment * K * V + inside, mask=kept, other=0.0)
            for along in tl.static_range(0, K, BK):
                columns = along + tl.arange(0, BK)
                of_map = square_of(maps + segment * K * K, rows, columns, K, BACK)
                others = columns[:, None] * V + values[None, :]
                mask = (columns < K)[:, None] & (values < V)[None, :]
                before = tl.load(edges + segment * K * V + others, mask=mask, other=0.0)
                edge = tl.dot(of_map, before, edge, input_precision=PRECISION)
            tl.store(edges + after * K * V + inside, edge, mask=kept)
