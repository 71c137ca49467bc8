"""Parts that the kernels share: where a chunk lies, its gates, products of its steps."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import RESET

CHUNK = 64
BLOCK = tl.constexpr(16)  # steps of a block of the inverse
GRID = tl.constexpr(2.0**-11)  # CHUNK · |RESET| < 2¹³, and float32 has 24 bits


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
def no_gates():
    """Sums and counts before the first step, for `gates_of`."""
    return 0.0, 0.0, 0


@triton.jit
def gates_of(log_a, t, stop, stride, before, GATED: tl.constexpr):
    """Sums of the log gates up to each step, in two parts, and counts of the resets, on top of those before.

    The first parts are multiples of GRID, so a chunk's sums and their differences are exact in float32: steep
    gates cost those after them nothing. The second parts are small. A gate whose factor is 0 in float32 is a
    reset. It is counted and not summed, and no −inf is subtracted from another.
    """
    high, low, count = before
    if GATED:
        log_gate = up_to(log_a, t, stop, stride)
        reset = log_gate < RESET
        log_gate = tl.where(reset, 0.0, log_gate)
        coarse = tl.floor(log_gate * (1.0 / GRID)) * GRID
        fine = log_gate - coarse
        return tl.cumsum(coarse) + high, tl.cumsum(fine) + low, tl.cumsum(reset.to(tl.int32)) + count
    else:
        zero = (t * 0).to(tl.int32)
        return zero.to(tl.float32) + high, zero.to(tl.float32) + low, zero + count


@triton.jit
def block_decay(gates, from_gates):
    """The product of the gates after step s up to step t, (t, s)."""
    high, low, resets = gates
    from_high, from_low, from_resets = from_gates
    kept = resets[:, None] == from_resets[None, :]
    log_decay = (high[:, None] - from_high[None, :]) + (low[:, None] - from_low[None, :])
    return tl.where(kept, tl.exp(tl.minimum(log_decay, 0.0)), 0.0)


@triton.jit
def decay_of(log_a, t, stop, stride, GATED: tl.constexpr, C: tl.constexpr):
    """G of a chunk, (t, s); 0 for s > t."""
    gates = gates_of(log_a, t, stop, stride, no_gates(), GATED)
    steps = tl.arange(0, C)
    return tl.where(steps[:, None] >= steps[None, :], block_decay(gates, gates), 0.0)


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
