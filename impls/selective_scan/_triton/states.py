"""Where a program's lanes stand, and its states: a tuple of M tensors (channels, groups of lanes).

So a thread holds M states of a few adjacent channels, and a sum over them costs no exchange between lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Lanes(NamedTuple):
    """Channel (BD, G), group (1, G), and whether the channel exists (BD, G)."""

    channel: Any
    group: Any
    inside: Any


@triton.jit
def split_program(D, TILE: tl.constexpr):
    """Split a program's index into its block of channels and the rest."""
    blocks = tl.cdiv(D, TILE.CHANNELS)
    return tl.program_id(0) % blocks, tl.program_id(0) // blocks


@triton.jit
def lanes_of(block, D, EVEN: tl.constexpr, TILE: tl.constexpr):
    """Lanes of a block of channels; EVEN: all channels exist."""
    channel = tl.max_contiguous(block * TILE.CHANNELS + tl.arange(0, TILE.CHANNELS), TILE.ADJACENT)[:, None]
    group = tl.arange(0, TILE.GROUPS)[None, :]
    inside = tl.full([TILE.CHANNELS, TILE.GROUPS], 1, tl.int1)
    if not EVEN:
        inside = tl.broadcast_to(channel < D, (TILE.CHANNELS, TILE.GROUPS))
    return Lanes(tl.broadcast_to(channel, (TILE.CHANNELS, TILE.GROUPS)), group, inside)


@triton.jit
def constant(value: tl.constexpr, TILE: tl.constexpr):
    result = ()
    for _ in tl.static_range(TILE.STATES):
        result += (tl.full([TILE.CHANNELS, TILE.GROUPS], value, tl.float32),)
    return result


@triton.jit
def zeros(TILE: tl.constexpr):
    return tl.zeros([TILE.CHANNELS, TILE.GROUPS], tl.float32)


@triton.jit
def load_state(state, lanes, N, M: tl.constexpr):
    """M tensors of a user's state (D, N)."""
    n = lanes.group[:, :, None] * M + tl.arange(0, M)[None, None, :]
    inside = lanes.inside[:, :, None] & (n < N)
    values = tl.load(state + (lanes.channel[:, :, None] * N + n), mask=inside, other=0.0)
    return split_last(values.to(tl.float32), M)


@triton.jit
def store_state(to, state, lanes, N, M: tl.constexpr):
    n = lanes.group[:, :, None] * M + tl.arange(0, M)[None, None, :]
    inside = lanes.inside[:, :, None] & (n < N)
    tl.store(to + (lanes.channel[:, :, None] * N + n), join_last(state, M), mask=inside)


@triton.jit
def plane_offsets(lanes, D, M: tl.constexpr):
    """Offsets (BD, G, M) of the lanes' states in a plane (G·M, D)."""
    state = tl.arange(0, M)[None, None, :]
    return (lanes.group[:, :, None] * M + state) * D + lanes.channel[:, :, None]


@triton.jit
def load_plane(plane, lanes, D, M: tl.constexpr):
    """M tensors of a plane (G·M, D)."""
    inside = tl.broadcast_to(lanes.inside[:, :, None], (lanes.channel.shape[0], lanes.channel.shape[1], M))
    return split_last(tl.load(plane + plane_offsets(lanes, D, M), mask=inside, other=0.0), M)


@triton.jit
def store_plane(plane, state, lanes, D, M: tl.constexpr):
    inside = tl.broadcast_to(lanes.inside[:, :, None], (lanes.channel.shape[0], lanes.channel.shape[1], M))
    tl.store(plane + plane_offsets(lanes, D, M), join_last(state, M), mask=inside)


@triton.jit
def split_last(x, COUNT: tl.constexpr):
    """x (BD, G, COUNT) as COUNT tensors (BD, G)."""
    parts = (x,)
    for s in tl.static_range(5):
        if COUNT >> s > 1:
            evens, odds = (), ()
            for j in tl.static_range(1 << s):
                even, odd = tl.split(tl.reshape(parts[j], (x.shape[0], x.shape[1], COUNT >> (s + 1), 2)))
                evens += (even,)
                odds += (odd,)
            parts = evens + odds
    result = ()
    for j in tl.static_range(COUNT):
        result += (tl.reshape(parts[j], (x.shape[0], x.shape[1])),)
    return result


@triton.jit
def join_last(parts, COUNT: tl.constexpr):
    """COUNT tensors (BD, G) as one (BD, G, COUNT)."""
    BD: tl.constexpr = parts[0].shape[0]
    G: tl.constexpr = parts[0].shape[1]
    for s in tl.static_range(5):
        if COUNT >> s > 1:
            joined = ()
            for j in tl.static_range(COUNT >> (s + 1)):
                pair = tl.join(parts[j], parts[j + (COUNT >> (s + 1))])
                joined += (tl.reshape(pair, (BD, G, 2 << s)),)
            parts = joined
    return tl.reshape(parts[0], (BD, G, COUNT))
