"""Summary of a segment: the state that it leaves when it begins with none, and the product of its gates.

With exp gates that product is exp(A·ΣΔ), so the sum of the step sizes says it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import COUNTS
from .keys import fetch_keys, unpack
from .options import silu_factors, step_sizes
from .segments import Segment
from .states import constant, lanes_of, split_program, store_plane, zeros
from .step_blocks import fetch_inputs
from .steps import advance, gates, load_fixed, multiply, retreat
from .zoh import finite_size


@triton.jit(do_not_specialize=COUNTS)
def selective_scan_summary(
    operands, fused, table, summaries, T, length, segments, blocks,
    REVERSE: tl.constexpr, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk one segment of time of a batch element from no state, for a block of channels.

    Forward S ← a ⊙ S + (Δ x) ⊗ k, in all segments but a sequence's last. REVERSE, in descending time,
    S ← a ⊙ (S + x ⊗ q), in all but the first; x is then the gradient of o, without the output gate's factor.

    table: segments of packed sequences, else None. There, a program has any segment, and may end at once.
    """
    channels, index = split_program(TASK.D, TILE)
    at = inner_segment(index, T, length, segments, table, REVERSE)
    if TASK.PACKED:  # noqa: SIM102, as only this test is of constants
        if at.after <= 0:
            return
    lanes = lanes_of(channels, TASK.D, TILE.EVEN, TILE)
    fixed = load_fixed(operands.A, fused, lanes, TASK, TILE.STATES)
    S, product, total = constant(0.0, TILE), constant(1.0, TILE), zeros(TILE)

    step = at.first + length - TILE.STEPS if REVERSE else at.first
    inputs, keys = fetch(operands, fused, at, step, lanes, REVERSE, TASK, TILE)
    for _ in range(0, blocks):
        now = step
        step = tl.maximum(step - TILE.STEPS, at.first) if REVERSE else step + TILE.STEPS
        following, next_keys = fetch(operands, fused, at, step, lanes, REVERSE, TASK, TILE)
        sizes = step_sizes(inputs.delta, fixed, at, now, lanes, TASK, TILE)
        S, product, total = summarise_block(
            S, product, total, inputs, keys, sizes, operands, fixed, REVERSE, TASK, TILE
        )
        inputs, keys = following, next_keys
    store_summary(summaries, at.row, S, product, total, lanes, TASK, TILE)


@triton.jit
def inner_segment(index, T, length, segments, table, REVERSE: tl.constexpr):
    """The index-th segment that others follow (REVERSE: precede), or of packed sequences the index-th of all.

    after: there, how many do.
    """
    if table is None:
        place = index % (segments - 1) + (1 if REVERSE else 0)
        batch = (index // (segments - 1)).to(tl.int64)
        token = batch * T
        row = batch * segments + place
        first = (place * length).to(tl.int64)
        end = tl.minimum(first + length, T)
        others = row
    else:
        row = index.to(tl.int64)
        first = tl.load(table + row)
        end = tl.load(table + segments + row)
        others = tl.load(table + (3 if REVERSE else 4) * segments + row)
        token = first * 0
    return Segment(row, row, others, row, token, first, end, row, row)


@triton.jit
def fetch(operands, fused, at, step, lanes, REVERSE: tl.constexpr, TASK: tl.constexpr, TILE: tl.constexpr):
    """Inputs of a step block, k being what is written; and (REVERSE) k where the gates need it."""
    written = operands.q if REVERSE else operands.k
    inputs = fetch_inputs(operands.x, operands.delta, written, None, fused.z, at, step, lanes, TASK, TILE)
    keys = ()
    if REVERSE and TASK.GATE == "implicit":
        keys = fetch_keys(operands.k, at, step, lanes, TASK.N, TILE)
    return inputs, keys


@triton.jit
def summarise_block(
    S, product, total, inputs, block_keys, sizes, operands, fixed,
    REVERSE: tl.constexpr, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The state, the product of gates and the sum of step sizes after a step block; (REVERSE) before it."""
    M: tl.constexpr = TILE.STATES
    R: tl.constexpr = TILE.STEPS
    if len(inputs.z) > 0:
        factors = silu_factors(inputs.z, TILE)
    for r in tl.static_range(R - 1 if REVERSE else 0, -1 if REVERSE else R, -1 if REVERSE else 1):
        value = inputs.x[r].to(tl.float32)
        if len(inputs.z) > 0:
            value *= factors[r]
        size = finite_size(sizes[r], TASK.ZOH)
        written = unpack(inputs.k[r], (operands.q if REVERSE else operands.k).dtype.element_ty)
        keys = unpack(block_keys[r], operands.k.dtype.element_ty) if len(block_keys) > 0 else written
        gate = gates(size, fixed.rates, keys, TASK.GATE, M)
        if REVERSE:
            S = retreat(S, gate, written, value, M)
        else:
            S = advance(S, gate, size, written, value, fixed, TASK.ZOH, M)
        if TASK.GATE == "exp":
            total += size
        else:
            product = multiply(product, gate, M)
    return S, product, total


@triton.jit
def store_summary(summaries, row, S, product, total, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Store a segment's summary. total: of step sizes, (BD, G), or one per step of a block (BD, 1, R)."""
    plane = row * (TILE.GROUPS * TILE.STATES * TASK.D)
    store_plane(summaries.states + plane, S, lanes, TASK.D, TILE.STATES)
    if TASK.GATE == "exp":
        if len(total.shape) == 3:
            total = tl.broadcast_to(tl.sum(total, axis=2), (TILE.CHANNELS, TILE.GROUPS))
        at = summaries.decays + row * TASK.D + lanes.channel
        tl.store(at, total, mask=lanes.inside & (lanes.group == 0))
    else:
        store_plane(summaries.decays + plane, product, lanes, TASK.D, TILE.STATES)
