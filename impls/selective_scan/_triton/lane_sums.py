"""Sums over the lanes of a warp, of several tensors at once.

Lanes in pairs: each keeps half of the tensors, gives the other half away and adds what it gets, until one
tensor is left per lane. COUNT tensors over as many lanes take COUNT − 1 exchanges, not COUNT · log2(COUNT).

A tensor whose elements are exchanged is (warps, 32), the place in a row being group · LANES + lane with
LANES = 32 / G: where a thread holds adjacent channels of a group, that is the lane of the warp.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def flat(x):
    """x (warps · lanes, G) as (warps, 32)."""
    G: tl.constexpr = x.shape[1]
    LANES: tl.constexpr = 32 // G
    WARPS: tl.constexpr = x.shape[0] // LANES
    return tl.reshape(tl.permute(tl.reshape(x, (WARPS, LANES, G)), (0, 2, 1)), (WARPS, 32))


@triton.jit
def from_flat(x, G: tl.constexpr):
    WARPS: tl.constexpr = x.shape[0]
    LANES: tl.constexpr = 32 // G
    return tl.reshape(tl.permute(tl.reshape(x, (WARPS, G, LANES)), (0, 2, 1)), (WARPS * LANES, G))


@triton.jit
def from_place(x, place):
    return tl.gather(x, tl.broadcast_to(place, x.shape), 1)


@triton.jit
def exchange_halves(values, BIT: tl.constexpr, HALF: tl.constexpr):
    place = tl.arange(0, 32)[None, :]
    upper = tl.broadcast_to((place & BIT) != 0, values[0].shape)
    kept = ()
    for j in tl.static_range(HALF):
        mine = tl.where(upper, values[j + HALF], values[j])
        other = tl.where(upper, values[j], values[j + HALF])
        kept += (mine + from_place(other, place ^ BIT),)
    return kept


@triton.jit
def spread_sums(values, COUNT: tl.constexpr, LANES: tl.constexpr, UNIT: tl.constexpr):
    """Sums of COUNT tensors (warps, 32) over LANES places UNIT split_pairs: a tuple of PER tensors.

    With PER = max(1, COUNT // LANES), place i of LANES holds the sums of tensors PER·i … PER·i + PER − 1;
    places from COUNT on hold those of i mod COUNT.
    """
    PER: tl.constexpr = COUNT // LANES if COUNT > LANES else 1
    for s in tl.static_range(6):
        if COUNT >> (s + 1) >= PER:
            values = exchange_halves(values, (COUNT >> (s + 1)) // PER * UNIT, COUNT >> (s + 1))
    for s in tl.static_range(5):
        if COUNT << s < LANES:
            other = tl.arange(0, 32)[None, :] ^ ((COUNT << s) * UNIT)
            values = (values[0] + from_place(values[0], other),)
    return values


@triton.jit
def over_adjacent(x, ADJACENT: tl.constexpr):
    """Sums over the adjacent channels of a thread, of x (BD, G), as (warps, 32)."""
    return flat(tl.sum(tl.reshape(x, (x.shape[0] // ADJACENT, ADJACENT, x.shape[1])), axis=1))


@triton.jit
def over_channels(values, COUNT: tl.constexpr, G: tl.constexpr):
    """Sums of COUNT tensors (warps, 32) over channels: PER tensors (32,), as `spread_sums` leaves them."""
    LANES: tl.constexpr = 32 // G
    values = spread_sums(values, COUNT, LANES, 1)
    sums = ()
    for j in tl.static_range(COUNT // LANES if COUNT > LANES else 1):
        sums += (tl.sum(values[j], axis=0),)
    return sums


@triton.jit
def split_pairs(x):
    """x (BD, G) as even and odd channels (BD // 2, G)."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0] // 2, 2, x.shape[1])), (0, 2, 1)))


@triton.jit
def interleave(even, odd):
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 1)), (2 * even.shape[0], even.shape[1]))


@triton.jit
def over_groups(values, COUNT: tl.constexpr, ADJACENT: tl.constexpr):
    """Sums of COUNT tensors (BD, G) over their groups: PER tensors (BD, G), as `spread_sums` leaves them."""
    G: tl.constexpr = values[0].shape[1]
    PER: tl.constexpr = COUNT // G if COUNT > G else 1
    if ADJACENT == 1:
        flats = ()
        for j in tl.static_range(COUNT):
            flats += (flat(values[j]),)
        flats = spread_sums(flats, COUNT, G, 32 // G)
        sums = ()
        for j in tl.static_range(PER):
            sums += (from_flat(flats[j], G),)
        return sums
    else:
        evens, odds = (), ()
        for j in tl.static_range(COUNT):
            even, odd = split_pairs(values[j])
            evens += (even,)
            odds += (odd,)
        evens = over_groups(evens, COUNT, ADJACENT // 2)
        odds = over_groups(odds, COUNT, ADJACENT // 2)
        sums = ()
        for j in tl.static_range(PER):
            sums += (interleave(evens[j], odds[j]),)
        return sums
