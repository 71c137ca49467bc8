"""What is fused around the recurrence: step sizes by bias and softplus, held inputs, skip and output gate."""

from __future__ import annotations

import triton
import triton.language as tl

from .exchange import apart, flat, from_flat, from_place, together
from .steps import HUGE, LOG2_E

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def channel_values(values, channel, in_channels):
    """One (BD, G) tensor of values (D,); none of None."""
    found = ()
    if values is not None:
        found += (tl.load(values + channel, mask=in_channels, other=0.0).to(tl.float32),)
    return found


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
def fetch_spread(
    x, token, step, end, D: tl.constexpr, channel, group, in_channels, WHOLE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """x at R steps, spread over the groups: each has the next max(1, R // G), as the sums over groups lie."""
    G: tl.constexpr = group.shape[1]
    PER: tl.constexpr = R // G if R > G else 1
    own = group * PER
    at = x + (token + (tl.minimum(step, end - R) if WHOLE else step) + own) * D + channel
    values = ()
    for j in tl.static_range(PER):
        mask = in_channels & (own + j < R)
        if not WHOLE:
            mask = mask & (step + own + j < end)
        values += (tl.load(at + j * D, mask=mask, other=0.0),)
    return values


@triton.jit
def from_group(x, which: tl.constexpr, CHANNELS: tl.constexpr):
    """What one group has of x (BD, G), for every group."""
    G: tl.constexpr = x.shape[1]
    LANES: tl.constexpr = 32 // G
    if G == 1:
        return x
    elif CHANNELS == 1:
        place = tl.arange(0, 32)[None, :] % LANES + which * LANES
        return from_flat(from_place(flat(x), place), G)
    else:
        even, odd = apart(x)
        return together(from_group(even, which, CHANNELS // 2), from_group(odd, which, CHANNELS // 2))


@triton.jit
def shared(own, R: tl.constexpr, CHANNELS: tl.constexpr):
    """R tensors (BD, G), every group the same, from what `fetch_spread` left with each."""
    values = ()
    for r in tl.static_range(R):
        values += (from_group(own[r % len(own)], r // len(own), CHANNELS),)
    return values


@triton.jit
def step_sizes(
    raw, bias, step, end, group,
    SOFTPLUS: tl.constexpr, WHOLE: tl.constexpr, R: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Δ of R steps from delta as `fetch_spread` leaves it; 0 from `end` on."""
    PER: tl.constexpr = R // group.shape[1] if group.shape[1] < R else 1
    own = ()
    for j in tl.static_range(PER):
        size = raw[j].to(tl.float32)
        if len(bias) > 0:
            size += bias[0]
        if SOFTPLUS:
            size = softplus(size)
        if not WHOLE:
            size = tl.where(step + group * PER + j < end, size, 0.0)
        own += (size,)
    return shared(own, R, CHANNELS)


@triton.jit
def silu_factors(z, R: tl.constexpr, CHANNELS: tl.constexpr):
    """silu(z) of R steps, from z as `fetch_spread` leaves it."""
    own = ()
    for j in tl.static_range(len(z)):
        gating = z[j].to(tl.float32)
        own += (gating * sigmoid(gating),)
    return shared(own, R, CHANNELS)


@triton.jit
def step_size(raw, HELD: tl.constexpr):
    """Δ of a step, which is never infinite where inputs are held: a rate of 0 times it is 0."""
    size = raw.to(tl.float32)
    if HELD:
        size = tl.minimum(size, HUGE)
    return size


@triton.jit
def held_rates(rates, HELD: tl.constexpr, M: tl.constexpr):
    """1 / A of rates A·log2(e), 0 where A is 0; of inputs that are not held, nothing."""
    inverse = ()
    if HELD:
        for j in tl.static_range(M):
            some = rates[j] != 0.0
            inverse += (tl.where(some, LOG2_E / tl.where(some, rates[j], 1.0), 0.0),)
    return inverse


@triton.jit
def held_steps(size, gate, rates, inverse, M: tl.constexpr):
    """M tensors: (e^z − 1) / A with z = ΔA, Δ at A = 0; by a series where |z| < 1/2."""
    result = ()
    for j in tl.static_range(M):
        z = size * rates[j] * LN_2
        near = tl.abs(z) < 0.5
        z = tl.where(near, z, 0.0)
        series = z * (1.0 / 40320.0) + 1.0 / 5040.0
        series = series * z + 1.0 / 720.0
        series = series * z + 1.0 / 120.0
        series = series * z + 1.0 / 24.0
        series = series * z + 1.0 / 6.0
        series = series * z + 0.5
        series = series * z + 1.0
        result += (tl.where(near, size * series, (gate[j] - 1.0) * inverse[j]),)
    return result


@triton.jit
def held_slope(size, gate, held, rate, inverse):
    """d/dA of (e^z − 1) / A: (Δ e^z − held) / A, or Δ² times the series of Σ (n + 1) z^n / (n + 2)!."""
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
    return tl.where(near, size * size * series, (size * gate - held) * inverse)


@triton.jit
def advance_held(state, gate, held, keys, value, M: tl.constexpr):
    """The states after a step that writes held ⊙ (value ⊗ keys)."""
    result = ()
    for j in tl.static_range(M):
        result += (gate[j] * state[j] + (value * held[j]) * keys[j],)
    return result
