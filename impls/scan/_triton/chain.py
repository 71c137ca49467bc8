"""A chain of tiles: each program takes one, and learns the state before it from the tiles that precede it.

So every operand crosses memory once even where batch and channels alone are too few programs.

A tile publishes its affine map; RUNS tiles form a group, whose last one publishes the state after it. A
tile waits for the maps of the tiles before it in its group and for the state after the group before, and
composes them in one fixed tree. So the bits do not depend on who arrives first, and the serial part is one
hop per group.

What makes this safe:

- Progress. A program's tile is the ticket that it draws from a counter, so every tile that it waits for was
  drawn by a program that already runs, and no order or residency of programs is assumed.
- Visibility. A tile publishes 64-bit words that say by themselves whether they are there: memory is
  filled with EMPTY, a word is written once by a relaxed atomic exchange and read by volatile loads, and no
  other memory is read on the strength of it. So no fence is needed, and no order between words.
- EMPTY, two NaNs of all ones, is never published: `publish` turns it into another pair of NaNs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import pack, times_plus, unpack
from .arithmetic import then, then_complex

EMPTY = tl.constexpr(-1)
HEAD = tl.constexpr(16)  # words before the maps: the counter, and room so that rows stay aligned


@triton.jit
def take_ticket(words, strands):
    """The next tile and its strand (batch and channels): all strands of a tile before the next tile."""
    ticket = (tl.atomic_add(words, 1, sem="relaxed") + 1).to(tl.int32)  # the counter starts at EMPTY
    return ticket // strands, ticket % strands


@triton.jit
def publish(to, low, high, mask):
    word = pack(low, high)
    tl.atomic_xchg(to, tl.where(word == EMPTY, EMPTY ^ 1, word), mask=mask, sem="relaxed")


@triton.jit
def look(at, mask):
    return tl.load(at, mask=mask, other=0, volatile=True)


@triton.jit
def awaited(word, at, mask):
    """The words at `at`, looked at once before, when all have been published; 0 outside the mask."""
    while tl.max((word == EMPTY).to(tl.int32)) == 1:
        word = look(at, mask)
    return unpack(word)


@triton.jit
def add(a1, b1, a2, b2):
    return a1 + a2, b1 + b2


@triton.jit
def add_complex(ar1, ai1, br1, bi1, ar2, ai2, br2, bi2):
    return ar1 + ar2, ai1 + ai2, br1 + br2, bi1 + bi2


@triton.jit
def of_last(ar, ai, br, bi, run, COMPLEX: tl.constexpr, RUNS: tl.constexpr):
    """The last run's map in every run."""
    last = run == RUNS - 1
    shape: tl.constexpr = ar.shape
    ar = tl.where(last, ar, 0.0)
    br = tl.where(last, br, 0.0)
    if COMPLEX:
        ai = tl.where(last, ai, 0.0)
        bi = tl.where(last, bi, 0.0)
        ar, ai, br, bi = tl.reduce((ar, ai, br, bi), 0, add_complex, keep_dims=True)
        ai = tl.broadcast_to(ai, shape)
        bi = tl.broadcast_to(bi, shape)
    else:
        ar, br = tl.reduce((ar, br), 0, add, keep_dims=True)
    return tl.broadcast_to(ar, shape), ai, tl.broadcast_to(br, shape), bi


@triton.jit
def compose(ar, ai, br, bi, COMPLEX: tl.constexpr):
    """Runs' maps to those of all runs up to each, and of all runs before each."""
    one = tl.full(ar.shape, 1.0, tl.float32)
    zero = tl.zeros(ar.shape, tl.float32)
    if COMPLEX:
        return tl.associative_scan((ar, ai, br, bi, one, zero, zero, zero), 0, then_complex)
    else:
        ar, br, cr, dr = tl.associative_scan((ar, br, one, zero), 0, then)
        return ar, zero, br, zero, cr, zero, dr, zero


@triton.jit
def enter_runs_linked(
    ar, ai, br, bi, hr, hi, run, words, tile, tiles, batch, batches, at_state, C, in_channels,
    COMPLEX: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Each run's starting state and the state after the tile, from the runs' maps.

    The states before tile 0 and after the tile are in every run. words: HEAD, then the tiles' maps
    (1 or 2 planes, B, tiles, C), then the states after groups (B, groups, C). at_state: batch·C + channel.
    """
    group = tile // RUNS
    place = tile % RUNS
    plane = batches.to(tl.int64) * tiles * C
    maps = words + HEAD + batch * (tiles - 1) * C + at_state
    states = words + HEAD + (2 if COMPLEX else 1) * plane
    states += batch * (tl.cdiv(tiles, RUNS) - 1) * C + at_state

    ar, ai, br, bi, cr, ci, dr, di = compose(ar, ai, br, bi, COMPLEX)
    ar, ai, br, bi = of_last(ar, ai, br, bi, run, COMPLEX, RUNS)
    publishing = in_channels & (run == 0) & (place < RUNS - 1)
    if COMPLEX:
        publish(maps + tile * C, ar, ai, publishing)
        publish(maps + plane + tile * C, br, bi, publishing)
    else:
        publish(maps + tile * C, ar, br, publishing)

    follows = in_channels & (group > 0)
    at_entry = states + (group - 1) * C
    entry = look(at_entry, follows)
    earlier = in_channels & (run < place)
    at_maps = maps + (group * RUNS + run) * C
    first = look(at_maps, earlier)
    if COMPLEX:
        second = look(at_maps + plane, earlier)
        gr, gi = awaited(first, at_maps, earlier)
        xr, xi = awaited(second, at_maps + plane, earlier)
    else:
        gr, xr = awaited(first, at_maps, earlier)
        gi = tl.zeros(gr.shape, tl.float32)
        xi = tl.zeros(gr.shape, tl.float32)
    gr = tl.where(earlier, gr, 1.0)
    gr, gi, xr, xi, _, _, _, _ = compose(gr, gi, xr, xi, COMPLEX)
    gr, gi, xr, xi = of_last(gr, gi, xr, xi, run, COMPLEX, RUNS)

    er, ei = awaited(entry, at_entry, follows)
    hr = tl.where(group > 0, er, hr)
    hi = tl.where(group > 0, ei, hi)
    hr, hi = times_plus(gr, gi, hr, hi, xr, xi, COMPLEX)
    after_r, after_i = times_plus(ar, ai, hr, hi, br, bi, COMPLEX)
    publish(states + group * C, after_r, after_i, in_channels & (run == 0) & (place == RUNS - 1))
    sr, si = times_plus(cr, ci, hr, hi, dr, di, COMPLEX)
    return sr, si, after_r, after_i
