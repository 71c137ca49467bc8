"""Zero-order hold: a step writes (e^z − 1) / A ⊙ (x ⊗ k) with z = ΔA, which is Δ x ⊗ k at A = 0."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import HUGE

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def finite_size(size, ZOH: tl.constexpr):
    """Δ of a step as float32; never infinite under ZOH, so that a rate of 0 times it is 0."""
    size = size.to(tl.float32)
    if ZOH:
        size = tl.minimum(size, HUGE)
    return size


@triton.jit
def inverse_rates(rates, ZOH: tl.constexpr, M: tl.constexpr):
    """1 / A from the rates A·log2(e), 0 where A is 0; empty without ZOH."""
    inverse = ()
    if ZOH:
        for j in tl.static_range(M):
            some = rates[j] != 0.0
            inverse += (tl.where(some, LOG2_E / tl.where(some, rates[j], 1.0), 0.0),)
    return inverse


@triton.jit
def zoh_factors(size, gate, fixed, M: tl.constexpr):
    """M tensors: (e^z − 1) / A with z = ΔA, Δ at A = 0; by a series where |z| < 1/2."""
    result = ()
    for j in tl.static_range(M):
        z = size * fixed.rates[j] * LN_2
        near = tl.abs(z) < 0.5
        z = tl.where(near, z, 0.0)
        series = z * (1.0 / 40320.0) + 1.0 / 5040.0
        series = series * z + 1.0 / 720.0
        series = series * z + 1.0 / 120.0
        series = series * z + 1.0 / 24.0
        series = series * z + 1.0 / 6.0
        series = series * z + 0.5
        series = series * z + 1.0
        result += (tl.where(near, size * series, (gate[j] - 1.0) * fixed.inverse[j]),)
    return result


@triton.jit
def zoh_slope(size, gate, factor, rate, inverse):
    """d/dA of (e^z − 1) / A: (Δ e^z − factor) / A, or Δ² times the series of Σ (n + 1) z^n / (n + 2)!."""
    z = size * rate * LN_2
    near = tl.abs(z) < 0.5
    z = tl.where(near, z, 0.0)
    series = z * (8.0 / 362880.0) + 7.0 / 40320.0
    series = series * z + 6.0 / 5040.0
    series = series * z + 5.0 / 720.0
    series = series * z + 4.0 / 120.0
    series = series * z + 3.0 / 24.0
    series = series * z + 2.0 / 6.0
    series = series * z + 0.5
    return tl.where(near, size * size * series, (size * gate - factor) * inverse)
