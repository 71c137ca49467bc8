"""One step of the recurrence, and what stays the same over all steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..._triton.arithmetic import COMPILED, HUGE, exp2
from .states import load_state
from .zoh import LOG2_E, inverse_rates, zoh_factors


class Fixed(NamedTuple):
    """The same at every step, empty where absent.

    rates, inverse: M tensors, A in powers of two and (ZOH) 1 / A. bias, skip: one tensor (BD, G).
    """

    rates: Any
    inverse: Any
    bias: Any
    skip: Any


@triton.jit
def load_fixed(A, fused, lanes, TASK: tl.constexpr, M: tl.constexpr):
    rates = ()
    if TASK.GATE == "exp":
        rates = in_powers_of_two(load_state(A, lanes, TASK.N, M), M)
    inverse = inverse_rates(rates, TASK.ZOH, M)
    bias = load_channels(fused.bias, lanes)
    return Fixed(rates, inverse, bias, load_channels(fused.skip, lanes))


@triton.jit
def load_channels(values, lanes):
    """One tensor (BD, G) of values (D,); empty for None."""
    found = ()
    if values is not None:
        found += (tl.load(values + lanes.channel, mask=lanes.inside, other=0.0).to(tl.float32),)
    return found


@triton.jit
def in_powers_of_two(A, M: tl.constexpr):
    rates = ()
    for j in tl.static_range(M):
        rates += (tl.minimum(tl.maximum(A[j], -HUGE), HUGE) * LOG2_E,)
    return rates


@triton.jit
def gates(size, rates, keys, GATE: tl.constexpr, M: tl.constexpr):
    """M tensors: the gates of a step of this size."""
    result = ()
    for j in tl.static_range(M):
        if GATE == "exp":
            result += (exp2(size * rates[j], COMPILED),)
        else:
            result += (1.0 - size * (keys[j] * keys[j]),)
    return result


@triton.jit
def advance(S, gate, size, keys, x, fixed, ZOH: tl.constexpr, M: tl.constexpr):
    """The states after a step: a ⊙ S + Δ x ⊗ k, or ZOH's factors for Δ."""
    result = ()
    if ZOH:
        factors = zoh_factors(size, gate, fixed, M)
        value = x.to(tl.float32)
        for j in tl.static_range(M):
            result += (gate[j] * S[j] + (value * factors[j]) * keys[j],)
    else:
        update = size * x.to(tl.float32)
        for j in tl.static_range(M):
            result += (tl.fma(gate[j], S[j], update * keys[j]),)
    return result


@triton.jit
def retreat(adjoint, gate, queries, value, M: tl.constexpr):
    """The adjoints before a step, in descending time: a ⊙ (μ + value ⊗ q)."""
    result = ()
    for j in tl.static_range(M):
        result += (gate[j] * (adjoint[j] + value * queries[j]),)
    return result


@triton.jit
def multiply(x, y, M: tl.constexpr):
    result = ()
    for j in tl.static_range(M):
        result += (x[j] * y[j],)
    return result


@triton.jit
def read(S, queries, M: tl.constexpr):
    """Σ S q over a thread's M states."""
    total = S[0] * queries[0]
    for j in tl.static_range(1, M):
        total = tl.fma(S[j], queries[j], total)
    return total
