"""What a chunk needs of its keys, queries, rates and gates: C × C matrices, before any state is known.

(I + tril(diag(β) K Kᵀ, −1))⁻¹ is found in blocks of 16 steps. Blocks on the diagonal are inverted by
substitution, and merged by products with at least 21 bits: with 64 nearly equal keys and β near 2, doubling
inside a block of 16 is off by the size of the result, and so is a merge in TF32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import chunk_steps
from .parts import BLOCK, block_decay, gates_of, no_gates, rows_of, split, up_to


@triton.jit
def next_row(inverse, above, i):
    """Row i of (I + lower)⁻¹, where above = lowerᵀ and the rows before are known."""
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    weights = tl.sum(tl.where(columns[None, :] == i, above, 0.0), axis=1)
    row = tl.sum(weights[:, None] * inverse, axis=0)
    return tl.where(rows[:, None] == i, inverse - row[None, :], inverse)


@triton.jit
def substituted(a0, a1, a2, a3):
    """(I + lower)⁻¹ of four strictly lower triangular blocks, given transposed, row after row."""
    rows = tl.arange(0, BLOCK)
    one = (rows[:, None] == rows[None, :]).to(tl.float32)
    i0, i1, i2, i3 = one, one, one, one
    for i in range(1, BLOCK):
        i0, i1 = next_row(i0, a0, i), next_row(i1, a1, i)
        i2, i3 = next_row(i2, a2, i), next_row(i3, a3, i)
    return i0, i1, i2, i3


@triton.jit
def exactly(a, b):
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def transposed(product, rate):
    """(tril(diag(β) K Kᵀ, −1))ᵀ of a block on the diagonal, from its K Kᵀ, which is symmetric."""
    rows = tl.arange(0, BLOCK)
    return tl.where(rows[:, None] < rows[None, :], tl.trans(rate) * product, 0.0)


@triton.jit
def store_solution(high, low, block, decay, at):
    """Store a block of G ⊙ inverse, in two parts if the operands have a half type."""
    first, second = split(block * decay, high.dtype.element_ty)
    tl.store(high + at, first)
    if low is not None:
        tl.store(low + at, second)


@triton.jit
def products(x0, x1, x2, x3, y0, y1, y2, y3, p, PRECISION: tl.constexpr):
    """Add x_I y_Jᵀ to ten blocks, those with I ≥ J."""
    p00, p11, p22, p33, p10, p20, p21, p30, p31, p32 = p
    z0, z1, z2, z3 = tl.trans(y0), tl.trans(y1), tl.trans(y2), tl.trans(y3)
    p00 = tl.dot(x0, z0, p00, input_precision=PRECISION)
    p11 = tl.dot(x1, z1, p11, input_precision=PRECISION)
    p22 = tl.dot(x2, z2, p22, input_precision=PRECISION)
    p33 = tl.dot(x3, z3, p33, input_precision=PRECISION)
    p10 = tl.dot(x1, z0, p10, input_precision=PRECISION)
    p20 = tl.dot(x2, z0, p20, input_precision=PRECISION)
    p21 = tl.dot(x2, z1, p21, input_precision=PRECISION)
    p30 = tl.dot(x3, z0, p30, input_precision=PRECISION)
    p31 = tl.dot(x3, z1, p31, input_precision=PRECISION)
    p32 = tl.dot(x3, z2, p32, input_precision=PRECISION)
    return p00, p11, p22, p33, p10, p20, p21, p30, p31, p32


@triton.jit
def four(x, t, stop, stride, columns, W: tl.constexpr):
    """Four blocks of rows from row t on."""
    return (
        rows_of(x, t, stop, stride, columns, W), rows_of(x, t + BLOCK, stop, stride, columns, W),
        rows_of(x, t + 2 * BLOCK, stop, stride, columns, W),
        rows_of(x, t + 3 * BLOCK, stop, stride, columns, W),
    )  # fmt: skip


@triton.jit
def zeros():
    zero = tl.zeros((BLOCK, BLOCK), tl.float32)
    return zero, zero, zero, zero, zero, zero, zero, zero, zero, zero


@triton.jit
def inverted(p, b0, b1, b2, b3):
    """Ten blocks of (I + tril(diag(b) P, −1))⁻¹, in the order of `products`."""
    p00, p11, p22, p33, p10, p20, p21, p30, p31, p32 = p
    i0, i1, i2, i3 = substituted(
        transposed(p00, b0), transposed(p11, b1), transposed(p22, b2), transposed(p33, b3)
    )
    l10, l20, l21, l30, l31, l32 = b1 * p10, b2 * p20, b2 * p21, b3 * p30, b3 * p31, b3 * p32
    i10 = -exactly(i1, exactly(l10, i0))
    i21 = -exactly(i2, exactly(l21, i1))
    i32 = -exactly(i3, exactly(l32, i2))
    i20 = -exactly(i2, exactly(l20, i0) + exactly(l21, i10))
    i31 = -exactly(i3, exactly(l31, i1) + exactly(l32, i21))
    i30 = -exactly(i3, exactly(l30, i0) + exactly(l31, i10) + exactly(l32, i20))
    return i0, i1, i2, i3, i10, i20, i21, i30, i31, i32


@triton.jit(do_not_specialize=("T", "H", "NT"))
def delta_chunks(
    q, k, beta, log_a, high, low, scores, gates, places, T, H, NT,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, SHARED: tl.constexpr, GATED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """G ⊙ inverse as high + low, G ⊙ Q Kᵀ, and γ with γ_C/γ of each chunk.

    high, low, scores: (batch · H · NT, C, C); the blocks above the diagonal are left as they are.
    gates: (batch · H · NT, 2, C).
    """
    chunk, bh = tl.program_id(0).to(tl.int64) % NT, tl.program_id(0).to(tl.int64) // NT
    batch, head = bh // H, bh % H
    first, stop = chunk_steps(chunk, T, NT, places, C)
    if first >= stop:  # an empty place
        return
    key_heads = H // SHARED
    own = (batch * T * key_heads + head // SHARED) * K
    rates = beta + batch * T * H + head
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    t = first + rows
    p = zeros()
    for begin in range(0, K, BK):
        k0, k1, k2, k3 = four(k + own, t, stop, key_heads * K, begin + tl.arange(0, BK), K)
        p = products(k0, k1, k2, k3, k0, k1, k2, k3, p, PRECISION)
    b0 = up_to(rates, t, stop, H)[:, None]
    b1 = up_to(rates, t + BLOCK, stop, H)[:, None]
    b2 = up_to(rates, t + 2 * BLOCK, stop, H)[:, None]
    b3 = up_to(rates, t + 3 * BLOCK, stop, H)[:, None]
    i0, i1, i2, i3, i10, i20, i21, i30, i31, i32 = inverted(p, b0, b1, b2, b3)
    at = (bh * NT + chunk) * C * C + rows[:, None] * C + columns[None, :]
    log_gates = log_a + batch * T * H + head if GATED else None
    s0 = gates_of(log_gates, t, stop, H, no_gates(), GATED)
    s1 = gates_of(log_gates, t + BLOCK, stop, H, last_of(rows, s0), GATED)
    s2 = gates_of(log_gates, t + 2 * BLOCK, stop, H, last_of(rows, s1), GATED)
    s3 = gates_of(log_gates, t + 3 * BLOCK, stop, H, last_of(rows, s2), GATED)
    to = gates + (bh * NT + chunk) * 2 * C + rows
    end = last_of(rows, s3)
    store_gates(to, s0, end, C)
    store_gates(to + BLOCK, s1, end, C)
    store_gates(to + 2 * BLOCK, s2, end, C)
    store_gates(to + 3 * BLOCK, s3, end, C)
    g0, g1, g2, g3 = block_decay(s0, s0), block_decay(s1, s1), block_decay(s2, s2), block_decay(s3, s3)
    g10, g20, g21 = block_decay(s1, s0), block_decay(s2, s0), block_decay(s2, s1)
    g30, g31, g32 = block_decay(s3, s0), block_decay(s3, s1), block_decay(s3, s2)
    down: tl.constexpr = BLOCK * C
    store_solution(high, low, i0, g0, at)
    store_solution(high, low, i1, g1, at + down + BLOCK)
    store_solution(high, low, i2, g2, at + 2 * (down + BLOCK))
    store_solution(high, low, i3, g3, at + 3 * (down + BLOCK))
    store_solution(high, low, i10, g10, at + down)
    store_solution(high, low, i20, g20, at + 2 * down)
    store_solution(high, low, i21, g21, at + 2 * down + BLOCK)
    store_solution(high, low, i30, g30, at + 3 * down)
    store_solution(high, low, i31, g31, at + 3 * down + BLOCK)
    store_solution(high, low, i32, g32, at + 3 * down + 2 * BLOCK)
    p = zeros()
    for begin in range(0, K, BK):
        k0, k1, k2, k3 = four(k + own, t, stop, key_heads * K, begin + tl.arange(0, BK), K)
        q0, q1, q2, q3 = four(q + own, t, stop, key_heads * K, begin + tl.arange(0, BK), K)
        p = products(q0, q1, q2, q3, k0, k1, k2, k3, p, PRECISION)
    p00, p11, p22, p33, p10, p20, p21, p30, p31, p32 = p
    kind = scores.dtype.element_ty
    lower = rows[:, None] >= columns[None, :]
    tl.store(scores + at, tl.where(lower, p00 * g0, 0.0).to(kind))
    tl.store(scores + at + down + BLOCK, tl.where(lower, p11 * g1, 0.0).to(kind))
    tl.store(scores + at + 2 * (down + BLOCK), tl.where(lower, p22 * g2, 0.0).to(kind))
    tl.store(scores + at + 3 * (down + BLOCK), tl.where(lower, p33 * g3, 0.0).to(kind))
    tl.store(scores + at + down, (p10 * g10).to(kind))
    tl.store(scores + at + 2 * down, (p20 * g20).to(kind))
    tl.store(scores + at + 2 * down + BLOCK, (p21 * g21).to(kind))
    tl.store(scores + at + 3 * down, (p30 * g30).to(kind))
    tl.store(scores + at + 3 * down + BLOCK, (p31 * g31).to(kind))
    tl.store(scores + at + 3 * down + 2 * BLOCK, (p32 * g32).to(kind))


@triton.jit
def last_of(rows, gates):
    """Sums and counts at the last step of a block."""
    high, low, resets = gates
    last = rows == BLOCK - 1
    return (
        tl.sum(tl.where(last, high, 0.0)),
        tl.sum(tl.where(last, low, 0.0)),
        tl.sum(tl.where(last, resets, 0)),
    )


@triton.jit
def store_gates(to, gates, end, C: tl.constexpr):
    """γ and γ_C/γ of a block of steps."""
    high, low, resets = gates
    last_high, last_low, count = end
    tl.store(to, tl.where(resets == 0, tl.exp(high + low), 0.0))
    to_end = (last_high - high) + (last_low - low)
    tl.store(to + C, tl.where(resets == count, tl.exp(tl.minimum(to_end, 0.0)), 0.0))


@triton.jit
def load_square(x, at, C: tl.constexpr):
    """The C × C matrix of the chunk at a place, of which no block above the diagonal is stored."""
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.load(x + at * C * C + rows * C + columns, mask=rows // BLOCK >= columns // BLOCK, other=0.0)
