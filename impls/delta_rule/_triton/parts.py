"""Parts that the kernels share: where a chunk lies, its gates, products of its steps."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import RESET

CHUNK = 64
BLOCK = tl.constexpr(16)  # steps of a block of the inverse


@triton.jit
def rows_of(x, t, stop, stride, columns, W: tl.constexpr):
    """Rows t of x (·, W) at the given columns; 0 from row `stop` on and beyond W."""
    mask = (t < stop)[:, None] & (columns < W)[None, :]
    return tl.load(x + t[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def up_to(x, t, stop, stride):
    """Elements t of a vector as float32; 0 from `stop` on."""
    return tl.load(x + t * stride, mask=t < stop, other=0.0).to(tl.float32)


@triton.jit
def gates_of(log_a, t, stop, stride, total, count, GATED: tl.constexpr):
    """Sums of the log gates up to each step, and counts of the resets, on top of those before.

    A gate whose factor is 0 in float32 is a reset. It is counted and not summed, so that nothing is lost to
    the size of its logarithm, and no −inf is subtracted from another.
    """
    if GATED:
        log_gate = up_to(log_a, t, stop, stride)
        reset = log_gate < RESET
        return tl.cumsum(tl.where(reset, 0.0, log_gate)) + total, tl.cumsum(reset.to(tl.int32)) + count
    else:
        zero = (t * 0).to(tl.int32)
        return zero.to(tl.float32) + total, zero + count


@triton.jit
def block_decay(sums, resets, from_sums, from_resets):
    """The product of the gates after step s up to step t, (t, s)."""
    kept = resets[:, None] == from_resets[None, :]
    return tl.where(kept, tl.exp(tl.minimum(sums[:, None] - from_sums[None, :], 0.0)), 0.0)


@triton.jit
def decay_of(log_a, t, stop, stride, GATED: tl.constexpr, C: tl.constexpr):
    """G of a chunk, (t, s); 0 for s > t."""
    sums, resets = gates_of(log_a, t, stop, stride, 0.0, 0, GATED)
    steps = tl.arange(0, C)
    return tl.where(steps[:, None] >= steps[None, :], block_decay(sums, resets, sums, resets), 0.0)


@triton.jit
def edges_of(gates, at, C: tl.constexpr):
    """γ, γ_C/γ and γ_C of the chunk at a place."""
    steps = tl.arange(0, C)
    own = gates + at * 2 * C
    return tl.load(own + steps), tl.load(own + C + steps), tl.load(own + C - 1)


@triton.jit
def split(x, dtype: tl.constexpr):
    """A float32 matrix as the sum of two in another dtype; the second is 0 if it is float32 itself."""
    high = x.to(dtype)
    return high, (x - high.to(tl.float32)).to(dtype)
