"""(I + tril(diag(β) K Kᵀ, −1))⁻¹ of every chunk, in blocks of 16 steps.

Blocks on the diagonal are inverted by substitution, and merged by products in float32: with 64 nearly equal
keys and β near 2, doubling inside a block of 16 is off by the size of the result, and so is a merge in TF32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ...linear_attention._triton.sequences import chunk_steps
from .parts import BLOCK, rows_of


@triton.jit
def substituted(lower):
    """(I + lower)⁻¹ of a strictly lower triangular block, row after row."""
    rows = tl.arange(0, BLOCK)
    inverse = (rows[:, None] == rows[None, :]).to(tl.float32)
    for i in range(1, BLOCK):
        here = rows[:, None] == i
        weights = tl.sum(tl.where(here, lower, 0.0), axis=0)
        row = tl.sum(weights[:, None] * inverse, axis=0)
        inverse = tl.where(here, inverse - row[None, :], inverse)
    return inverse


@triton.jit
def exactly(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def strictly_lower(product):
    rows = tl.arange(0, BLOCK)
    return tl.where(rows[:, None] > rows[None, :], product, 0.0)


@triton.jit
def store_block(inverse, block, I: tl.constexpr, J: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK) + I * BLOCK, tl.arange(0, BLOCK) + J * BLOCK
    tl.store(inverse + rows[:, None] * C + columns[None, :], block)


@triton.jit(do_not_specialize=("T", "H", "NT"))
def delta_inverse(
    k, beta, inverse, places, T, H, NT,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """inverse (batch · H · NT, C, C), float32, of which the upper blocks are left as they are."""
    chunk, bh = tl.program_id(0).to(tl.int64) % NT, tl.program_id(0).to(tl.int64) // NT
    batch, head = bh // H, bh % H
    first, stop = chunk_steps(chunk, T, NT, places, C)
    if first >= stop:  # an empty place
        return
    key_heads = H // SHARED
    keys = k + (batch * T * key_heads + head // SHARED) * K
    rates = beta + batch * T * H + head
    steps = tl.arange(0, BLOCK)
    t0, t1 = first + steps, first + BLOCK + steps
    t2, t3 = first + 2 * BLOCK + steps, first + 3 * BLOCK + steps
    zero = tl.zeros((BLOCK, BLOCK), tl.float32)
    p00, p11, p22, p33, p10 = zero, zero, zero, zero, zero
    p20, p21, p30, p31, p32 = zero, zero, zero, zero, zero
    for begin in range(0, K, BK):
        columns = begin + tl.arange(0, BK)
        k0 = rows_of(keys, t0, stop, key_heads * K, columns, K)
        k1 = rows_of(keys, t1, stop, key_heads * K, columns, K)
        k2 = rows_of(keys, t2, stop, key_heads * K, columns, K)
        k3 = rows_of(keys, t3, stop, key_heads * K, columns, K)
        turned0, turned1, turned2 = tl.trans(k0), tl.trans(k1), tl.trans(k2)
        p00 = tl.dot(k0, turned0, p00, input_precision=PRECISION)
        p11 = tl.dot(k1, turned1, p11, input_precision=PRECISION)
        p22 = tl.dot(k2, turned2, p22, input_precision=PRECISION)
        p33 = tl.dot(k3, tl.trans(k3), p33, input_precision=PRECISION)
        p10 = tl.dot(k1, turned0, p10, input_precision=PRECISION)
        p20 = tl.dot(k2, turned0, p20, input_precision=PRECISION)
        p21 = tl.dot(k2, turned1, p21, input_precision=PRECISION)
        p30 = tl.dot(k3, turned0, p30, input_precision=PRECISION)
        p31 = tl.dot(k3, turned1, p31, input_precision=PRECISION)
        p32 = tl.dot(k3, turned2, p32, input_precision=PRECISION)
    b0 = tl.load(rates + t0 * H, mask=t0 < stop, other=0.0).to(tl.float32)[:, None]
    b1 = tl.load(rates + t1 * H, mask=t1 < stop, other=0.0).to(tl.float32)[:, None]
    b2 = tl.load(rates + t2 * H, mask=t2 < stop, other=0.0).to(tl.float32)[:, None]
    b3 = tl.load(rates + t3 * H, mask=t3 < stop, other=0.0).to(tl.float32)[:, None]
    i0, i1 = substituted(strictly_lower(b0 * p00)), substituted(strictly_lower(b1 * p11))
    i2, i3 = substituted(strictly_lower(b2 * p22)), substituted(strictly_lower(b3 * p33))
    l10, l20, l21, l30, l31, l32 = b1 * p10, b2 * p20, b2 * p21, b3 * p30, b3 * p31, b3 * p32
    i10 = -exactly(i1, exactly(l10, i0))
    i21 = -exactly(i2, exactly(l21, i1))
    i32 = -exactly(i3, exactly(l32, i2))
    i20 = -exactly(i2, exactly(l20, i0) + exactly(l21, i10))
    i31 = -exactly(i3, exactly(l31, i1) + exactly(l32, i21))
    i30 = -exactly(i3, exactly(l30, i0) + exactly(l31, i10) + exactly(l32, i20))
    to = inverse + (bh * NT + chunk) * C * C
    store_block(to, i0, 0, 0, C)
    store_block(to, i1, 1, 1, C)
    store_block(to, i2, 2, 2, C)
    store_block(to, i3, 3, 3, C)
    store_block(to, i10, 1, 0, C)
    store_block(to, i21, 2, 1, C)
    store_block(to, i32, 3, 2, C)
    store_block(to, i20, 2, 0, C)
    store_block(to, i31, 3, 1, C)
    store_block(to, i30, 3, 0, C)


@triton.jit
def load_inverse(inverse, at, C: tl.constexpr):
    """The inverse of the chunk at a place, (C, C); 0 above the diagonal."""
    steps = tl.arange(0, C)
    lower = steps[:, None] >= steps[None, :]
    return tl.load(inverse + at * C * C + steps[:, None] * C + steps[None, :], mask=lower, other=0.0)
