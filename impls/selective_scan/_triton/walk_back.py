"""Back through a step block whose states are known: the adjoint before it, and its operands' gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .keys import unpack
from .lane_sums import over_adjacent, over_channels, over_groups
from .options import add_skip, sigmoid, silu_factors
from .states import join_last
from .step_blocks import per_lane
from .zoh import LN_2, finite_size, zoh_factors, zoh_slope


class Adjoint(NamedTuple):
    """Carried back in time: μ and the gradient of A, M tensors each; the gradients of skip and bias."""

    mu: Any
    A: Any
    skip: Any
    bias: Any


@triton.jit
def walk_back(
    adjoint,
    block,
    writes,
    reads,
    factors,
    operands,
    fixed,
    pairs,
    at,
    step,
    TASK: tl.constexpr,
    TILE: tl.constexpr,
):
    """The adjoint before a step block; and each group's part of dx and dΔ, 2·R tensors.

    Stores dk and dq, summed over the program's channels. pairs: where each lane's belong at the first step.
    """
    R: tl.constexpr = TILE.STEPS
    mu, dA, dskip, dbias = adjoint
    by_group = ()
    for r in tl.static_range(R - 1, -1, -1):
        do = reads.do[r].to(tl.float32)
        if len(factors) > 0:
            do *= factors[r]
        keys = unpack(writes.k[r], operands.k.dtype.element_ty)
        queries = unpack(reads.q[r], operands.q.dtype.element_ty)
        size = finite_size(block.sizes[r], TASK.ZOH)
        value = writes.x[r].to(tl.float32)
        mu, dA, dx, dsize, dkq = step_back(
            mu, dA, block.states[r], block.states[r + 1], block.gates[r], size, keys, queries, value, do,
            fixed, TASK, TILE,
        )  # fmt: skip
        dx = add_skip(dx, fixed, do, TILE.GROUPS)
        if len(fixed.skip) > 0:
            dskip += value * do
        by_group = (dx, dsize) + by_group  # noqa: RUF005 (Triton knows no star)
        store_pairs(pairs, r, dkq, at, step, TILE)
    return Adjoint(mu, dA, dskip, dbias), by_group


@triton.jit
def step_back(
    mu, dA, before, after, gate, size, keys, queries, value, do, fixed, TASK: tl.constexpr, TILE: tl.constexpr
):
    """μ_t = a_t ⊙ Λ_t from μ_{t+1}; dA with the step's term; dx, dΔ of the thread's states (BD, G); dk, dq.

    These are summed over the thread's adjacent channels: 2·M tensors (warps, 32).
    """
    M: tl.constexpr = TILE.STATES
    if TASK.ZOH:
        factors = zoh_factors(size, gate, fixed, M)
    update = size * value
    mus, totals, dk, dq = (), (), (), ()
    over_x = tl.zeros(size.shape, tl.float32)
    over_size = tl.zeros(size.shape, tl.float32)
    over_held = tl.zeros(size.shape, tl.float32)
    for j in tl.static_range(M):
        adjoint = tl.fma(do, queries[j], mu[j])
        m = gate[j] * adjoint
        if TASK.ZOH:
            over_x += adjoint * keys[j] * factors[j]
            over_held += m * keys[j]
            term = adjoint * (value * factors[j])
        else:
            over_x = tl.fma(adjoint, keys[j], over_x)
            term = adjoint * update
        if TASK.GATE == "exp":
            p = m * before[j]
            over_size = tl.fma(p, fixed.rates[j], over_size)
            change = p * size
            if TASK.ZOH:
                written = adjoint * (value * keys[j])
                change += written * zoh_slope(size, gate[j], factors[j], fixed.rates[j], fixed.inverse[j])
            totals += (dA[j] + change,)
        else:
            p = adjoint * before[j]
            over_size -= p * (keys[j] * keys[j])
            term = size * (adjoint * value - p * (2.0 * keys[j]))
            totals += (dA[j],)
        mus += (m,)
        dk += (over_adjacent(term, TILE.ADJACENT),)
        dq += (over_adjacent(after[j] * do, TILE.ADJACENT),)
    if TASK.GATE == "exp":
        over_size *= LN_2
    if TASK.ZOH:
        return mus, totals, over_x, over_size + value * over_held, dk + dq
    else:
        return mus, totals, size * over_x, over_size + value * over_x, dk + dq


@triton.jit
def pair_entries(TILE: tl.constexpr):
    """Where each lane of a warp stores its sums of a step, in (G, 2, M)."""
    LANES: tl.constexpr = 32 // TILE.GROUPS
    lane = tl.arange(0, 32)
    return lane // LANES * (2 * TILE.STATES) + lane % LANES * per_lane(2 * TILE.STATES, LANES)


@triton.jit
def store_pairs(pairs, r: tl.constexpr, dkq, at, step, TILE: tl.constexpr):
    """Sum dk and dq of the block's r-th step over the program's channels, and store them."""
    COUNT: tl.constexpr = 2 * TILE.STATES
    LANES: tl.constexpr = 32 // TILE.GROUPS
    PER: tl.constexpr = per_lane(COUNT, LANES)
    sums = over_channels(dkq, COUNT, TILE.GROUPS)
    inside = tl.arange(0, 32) % LANES * PER < COUNT
    if not TILE.WHOLE:
        inside = inside & (step + r < at.end)
    to = pairs + r * (TILE.GROUPS * COUNT)
    if PER == 1:
        tl.store(to, sums[0], mask=inside)
    else:
        columns = ()
        for j in tl.static_range(PER):
            columns += (tl.reshape(sums[j], (32, 1)),)
        to = to[:, None, None] + tl.arange(0, PER)[None, None, :]
        tl.store(to, join_last(columns, PER), mask=tl.broadcast_to(inside[:, None, None], (32, 1, PER)))


@triton.jit
def store_delta_and_x(
    adjoint,
    gradients,
    by_group,
    operands,
    fixed,
    row,
    at,
    step,
    lanes,
    TASK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Sum dx and dΔ over the groups and store them, by turns; the adjoint, with the bias's gradient."""
    COUNT: tl.constexpr = 2 * TILE.STEPS
    PER: tl.constexpr = per_lane(COUNT, TILE.GROUPS)
    mu, dA, dskip, dbias = adjoint
    sums = over_groups(by_group, COUNT, TILE.ADJACENT)
    for j in tl.static_range(PER):
        which = lanes.group * PER + j
        r = which // 2
        inside = lanes.inside & (which < COUNT)
        if not TILE.WHOLE:
            inside = inside & (step + r < at.end)
        if PER == 1 or j % 2 == 0:
            mask = inside if PER > 1 else inside & (which % 2 == 0)
            tl.store(gradients.x + row + r * TASK.D, sums[j].to(gradients.x.dtype.element_ty), mask=mask)
        if PER == 1 or j % 2 == 1:
            mask = inside if PER > 1 else inside & (which % 2 == 1)
            change = sums[j]
            if TASK.SPREAD:
                if TASK.SOFTPLUS:
                    change *= softplus_slope(operands.delta + row + r * TASK.D, fixed, mask)
                dbias += tl.where(mask, change, 0.0)
            tl.store(
                gradients.delta + row + r * TASK.D, change.to(gradients.delta.dtype.element_ty), mask=mask
            )
    return Adjoint(mu, dA, dskip, dbias)


@triton.jit
def softplus_slope(delta, fixed, mask):
    raw = tl.load(delta, mask=mask, other=0.0).to(tl.float32)
    if len(fixed.bias) > 0:
        raw += fixed.bias[0]
    return sigmoid(raw)


@triton.jit
def gated_outputs(block, writes, reads, operands, fixed, TILE: tl.constexpr):
    """R tensors each, empty without an output gate: its factors, and the parts of what it multiplies."""
    factors, outputs = (), ()
    if len(reads.z) > 0:
        factors = silu_factors(reads.z, TILE)
        for r in tl.static_range(TILE.STEPS):
            queries = unpack(reads.q[r], operands.q.dtype.element_ty)
            output = block.states[r + 1][0] * queries[0]
            for j in tl.static_range(1, TILE.STATES):
                output += block.states[r + 1][j] * queries[j]
            outputs += (add_skip(output, fixed, writes.x[r], TILE.GROUPS),)
    return factors, outputs


@triton.jit
def store_output_gate(dz, outputs, do, z, row, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Store the gradient of the output gate, silu'(z) ⊙ o ⊙ do."""
    PER: tl.constexpr = per_lane(TILE.STEPS, TILE.GROUPS)
    sums = over_groups(outputs, TILE.STEPS, TILE.ADJACENT)
    for j in tl.static_range(PER):
        r = lanes.group * PER + j
        mask = lanes.inside & (r < TILE.STEPS)
        if not TILE.WHOLE:
            mask = mask & (step + r < at.end)
        gating = z[j].to(tl.float32)
        part = sigmoid(gating)
        arriving = tl.load(do + row + r * TASK.D, mask=mask, other=0.0).to(tl.float32)
        change = arriving * sums[j] * (part + gating * part * (1.0 - part))
        tl.store(dz + row + r * TASK.D, change.to(dz.dtype.element_ty), mask=mask)
