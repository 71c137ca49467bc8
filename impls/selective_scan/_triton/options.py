"""Fused options: step sizes by bias and softplus, the skip, and the output gate."""

from __future__ import annotations

import triton
import triton.language as tl

from .step_blocks import gather_spread
from .zoh import LOG2_E


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(-x * LOG2_E))


@triton.jit
def softplus(x):
    """log(1 + e^x), as max(x, 0) + 2 artanh(e / (2 + e)) with e = e^−|x|: relative error of a few 10⁻⁷."""
    e = tl.exp2(-tl.abs(x) * LOG2_E)
    s = e / (2.0 + e)
    square = s * s
    series = 1.0 / 13.0 * square + 1.0 / 11.0
    series = series * square + 1.0 / 9.0
    series = series * square + 1.0 / 7.0
    series = series * square + 1.0 / 5.0
    series = series * square + 1.0 / 3.0
    return tl.maximum(x, 0.0) + 2.0 * s * (series * square + 1.0)


@triton.jit
def step_sizes(delta, fixed, at, step, lanes, TASK: tl.constexpr, TILE: tl.constexpr):
    """Δ of a step block: as loaded; or (SPREAD) formed from spread values, 0 from the segment's end on."""
    if TASK.SPREAD:
        own = ()
        for j in tl.static_range(len(delta)):
            size = delta[j].to(tl.float32)
            if len(fixed.bias) > 0:
                size += fixed.bias[0]
            if TASK.SOFTPLUS:
                size = softplus(size)
            if not TILE.WHOLE:
                size = tl.where(step + lanes.group * len(delta) + j < at.end, size, 0.0)
            own += (size,)
        return gather_spread(own, TILE)
    else:
        return delta


@triton.jit
def silu_factors(z, TILE: tl.constexpr):
    """silu(z) of a step block, from spread z."""
    own = ()
    for j in tl.static_range(len(z)):
        gating = z[j].to(tl.float32)
        own += (gating * sigmoid(gating),)
    return gather_spread(own, TILE)


@triton.jit
def add_skip(total, fixed, x, G: tl.constexpr):
    """Add a G-th of skip ⊙ x: the sum over the groups has all of it."""
    if len(fixed.skip) > 0:
        total += fixed.skip[0] * (1.0 / G) * x.to(tl.float32)
    return total
