"""Parts that the kernels share: where a chunk lies, its gates, products of its steps."""

from __future__ import annotations

import triton
import triton.language as tl

from ...linear_attention._triton.blocks import RESET

CHUNK = 64
BLOCK = tl.constexpr(16)  # steps of a block of the inverse


@triton.jit
def rows_of(x, t, stop, stride, columns, W: tl.constexpr):
    """Rows t of x (·, W) at the given columns; 0 from row `stop` on and beyond W."""
    mask = (t < stop)[:, None] & (columns < W)[None, :]
    return tl.load(x + t[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def gates_of(log_a, t, stop, stride):
    """Sums of a chunk's log gates up to each step, and counts of the resets up to it.

    A gate whose factor is 0 in float32 is a reset. It is counted and not summed, so that nothing is lost to
    the size of its logarithm, and no −inf is subtracted from another.
    """
    log_gate = tl.load(log_a + t * stride, mask=t < stop, other=0.0).to(tl.float32)
    reset = log_gate < RESET
    return tl.cumsum(tl.where(reset, 0.0, log_gate)), tl.cumsum(reset.to(tl.int32))


@triton.jit
def last_of(x, C: tl.constexpr):
    """The last element of a vector of C."""
    return tl.sum(tl.where(tl.arange(0, C) == C - 1, x, 0), axis=0)


@triton.jit
def between(sums, resets, C: tl.constexpr):
    """G: the product of the gates after step s up to step t, (t, s); 0 for s > t."""
    steps = tl.arange(0, C)
    kept = (steps[:, None] >= steps[None, :]) & (resets[:, None] == resets[None, :])
    return tl.where(kept, tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0)), 0.0)


@triton.jit
def edges(sums, resets, C: tl.constexpr):
    """γ, γ_C/γ and γ_C."""
    total, count = last_of(sums, C), last_of(resets, C)
    from_start = tl.where(resets == 0, tl.exp(sums), 0.0)
    to_end = tl.where(resets == count, tl.exp(tl.minimum(total - sums, 0.0)), 0.0)
    return from_start, to_end, tl.where(count == 0, tl.exp(total), 0.0)


@triton.jit
def decay_of(log_a, t, stop, stride, GATED: tl.constexpr, C: tl.constexpr):
    """G, γ, γ_C/γ and γ_C of a chunk; without gates the ones that make no difference."""
    steps = tl.arange(0, C)
    if GATED:
        sums, resets = gates_of(log_a, t, stop, stride)
        from_start, to_end, whole = edges(sums, resets, C)
        return between(sums, resets, C), from_start, to_end, whole
    else:
        ones = tl.full((C,), 1.0, tl.float32)
        ordered = (steps[:, None] >= steps[None, :]).to(tl.float32)
        return ordered, ones, ones, tl.sum(tl.where(steps == 0, ones, 0.0), axis=0)


@triton.jit
def split(x, dtype: tl.constexpr):
    """A float32 matrix as the sum of two in another dtype; the second is 0 if it is float32 itself."""
    high = x.to(dtype)
    return high, (x - high.to(tl.float32)).to(dtype)


@triton.jit
def exact_times(a, b, PRECISION: tl.constexpr):
    """a · b with a in float32 and b in the operands' dtype: a takes part with twice its digits."""
    if b.dtype == tl.float32:
        return tl.dot(a, b, input_precision=PRECISION)
    else:
        high, low = split(a, b.dtype)
        return tl.dot(low, b, tl.dot(high, b))
