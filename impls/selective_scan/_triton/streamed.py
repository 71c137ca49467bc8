"""The forward pass and summaries with operands by way of shared memory, where Triton's pipeliner brings them.

Asynchronous copies use no registers, so ptxas has no reason to sink them towards their use. Step blocks and
blocks of channels are whole, and there are no options. Tiles are loaded as they are copied, (BD, 1, R) and
(1, G, R), and nothing before the loop is loaded with adjacent states in a thread: the loop would take that
layout.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import COMPILED
from .groups import COUNTS
from .keys import per_word, unpack
from .lane_sums import over_groups
from .segments import fold, segment_at
from .states import Lanes, constant, lanes_of, load_plane, split_last, split_program, store_plane, store_state
from .steps import Fixed, advance, gates, in_powers_of_two, multiply, read, retreat
from .summary import inner_segment, store_summary


@triton.jit(do_not_specialize=COUNTS)
def selective_scan_forward_streamed(
    operands, state, summaries, o, final, saved,
    T, length, segments, checkpoints, blocks, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk one segment as `selective_scan_forward` does; the outputs of every G steps are summed together."""
    channels, index = split_program(TASK.D, TILE)
    at = segment_at(index, T, length, segments, checkpoints, None)
    if COMPILED:  # the interpreter takes no such bound: there all segments are as long
        blocks = ((at.end - at.first) // TILE.STEPS).to(tl.int32)
    start = at.token + at.first
    lanes = lanes_of(channels, TASK.D, True, TILE)
    fixed = Fixed(rates_apart(operands.A, lanes, TASK, TILE.STATES), (), (), ())
    if state is not None:
        S = load_apart(state + at.sequence * TASK.D * TASK.N, lanes, TASK.N, TILE.STATES)
    else:
        S = constant(0.0, TILE)
    if summaries is not None:
        S = fold(S, summaries, fixed.rates, at.row - at.before, at.before, 1, lanes, TASK, TILE)

    for i in tl.range(0, blocks, num_stages=TILE.STAGES):
        token = start + i * TILE.STEPS
        values = load_channels(operands.x, token, channels, TASK.D, TILE)
        sizes = load_channels(operands.delta, token, channels, TASK.D, TILE)
        keys = load_keys(operands.k, token, TASK.N, TILE)
        queries = load_keys(operands.q, token, TASK.N, TILE)
        if saved is not None:
            row = at.checkpoint + at.first // (TILE.STEPS * TILE.BLOCKS) + i // TILE.BLOCKS
            if i % TILE.BLOCKS == 0:
                plane = saved + row * (TILE.GROUPS * TILE.STATES * TASK.D)
                store_plane(plane, S, lanes, TASK.D, TILE.STATES)
        to = o + token * TASK.D + lanes.channel
        S = scan_and_store(S, to, values, sizes, keys, queries, operands, fixed, lanes, TASK, TILE)
    if at.after == 0:
        store_state(final + at.sequence * TASK.D * TASK.N, S, lanes, TASK.N, TILE.STATES)


@triton.jit(do_not_specialize=COUNTS)
def selective_scan_summary_streamed(
    operands, summaries, T, length, segments, blocks,
    REVERSE: tl.constexpr, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk one segment as `selective_scan_summary` does; a sequence's last segment may be shorter."""
    channels, index = split_program(TASK.D, TILE)
    at = inner_segment(index, T, length, segments, None, REVERSE)
    if COMPILED:  # the interpreter takes no such bound: there all segments are as long
        blocks = (tl.minimum(T - at.first, length) // TILE.STEPS).to(tl.int32)
    start = at.token + at.first
    lanes = lanes_of(channels, TASK.D, True, TILE)
    fixed = Fixed(rates_apart(operands.A, lanes, TASK, TILE.STATES), (), (), ())
    S = zeros_by_channels(summaries.states, lanes, segments, TASK.D, TILE.STATES)
    sizes_sum = tl.zeros([TILE.CHANNELS, 1, TILE.STEPS], tl.float32)
    product = ()
    for j in tl.static_range(TILE.STATES):
        product += (S[j] + 1.0,)

    for i in tl.range(0, blocks, num_stages=TILE.STAGES):
        token = start + ((blocks - 1 - i) if REVERSE else i) * TILE.STEPS
        values = split_last(load_block(operands.x, token, channels, TASK.D, TILE), TILE.STEPS)
        block = load_block(operands.delta, token, channels, TASK.D, TILE)
        sizes = split_last(block, TILE.STEPS)
        written = load_keys(operands.q if REVERSE else operands.k, token, TASK.N, TILE)
        keys = ()
        if REVERSE and TASK.GATE == "implicit":
            keys = load_keys(operands.k, token, TASK.N, TILE)
        if TASK.GATE == "exp":
            sizes_sum += block.to(tl.float32)
        S, product = summarise_block(
            S, product, values, sizes, written, keys, operands, fixed, REVERSE, TASK, TILE
        )
    store_summary(summaries, at.row, S, product, sizes_sum, lanes, TASK, TILE)


@triton.jit
def scan_and_store(
    S, to, values, sizes, keys, queries, operands, fixed, lanes, TASK: tl.constexpr, TILE: tl.constexpr
):
    """The states after a step block, whose outputs are stored: of G steps at a time, each group one."""
    M: tl.constexpr = TILE.STATES
    PART: tl.constexpr = min(TILE.STEPS, TILE.GROUPS)
    for part in tl.static_range(TILE.STEPS // PART):
        totals = ()
        for r in tl.static_range(part * PART, (part + 1) * PART):
            size = step_of(sizes, r, TILE)
            key = keys_of(keys, r, operands.k.dtype.element_ty)
            query = keys_of(queries, r, operands.q.dtype.element_ty)
            gate = gates(size, fixed.rates, key, TASK.GATE, M)
            S = advance(S, gate, size, key, step_of(values, r, TILE), fixed, False, M)
            totals += (read(S, query, M),)
        (output,) = over_groups(totals, PART, TILE.ADJACENT)
        inside = lanes.inside & (lanes.group < PART)
        tl.store(to + (part * PART + lanes.group) * TASK.D, output.to(to.dtype.element_ty), mask=inside)
    return S


@triton.jit
def summarise_block(
    S, product, values, sizes, written, keys, operands, fixed,
    REVERSE: tl.constexpr, TASK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The state and the product of gates after a step block, or (REVERSE) before it."""
    M: tl.constexpr = TILE.STATES
    R: tl.constexpr = TILE.STEPS
    for r in tl.static_range(R - 1 if REVERSE else 0, -1 if REVERSE else R, -1 if REVERSE else 1):
        size = step_of(sizes, r, TILE)
        value = step_of(values, r, TILE)
        write = keys_of(written, r, (operands.q if REVERSE else operands.k).dtype.element_ty)
        key = keys_of(keys, r, operands.k.dtype.element_ty) if len(keys) > 0 else write
        gate = gates(size, fixed.rates, key, TASK.GATE, M)
        if REVERSE:
            S = retreat(S, gate, write, value, M)
        else:
            S = advance(S, gate, size, write, value, fixed, False, M)
        if TASK.GATE != "exp":
            product = multiply(product, gate, M)
    return S, product


@triton.jit
def load_block(x, token, channels, D: tl.constexpr, TILE: tl.constexpr):
    """x (BD, 1, R) at a step block. token: its first step, among those of all batch elements."""
    row = tl.arange(0, TILE.STEPS)[None, None, :]
    first = x + token * D + channels * TILE.CHANNELS
    return tl.load(first + (row * D + tl.arange(0, TILE.CHANNELS)[:, None, None]))


@triton.jit
def load_channels(x, token, channels, D: tl.constexpr, TILE: tl.constexpr):
    """R tensors (BD, 1)."""
    return split_last(load_block(x, token, channels, D, TILE), TILE.STEPS)


@triton.jit
def load_keys(k, token, N: tl.constexpr, TILE: tl.constexpr):
    """The words of k at a step block: per word of a group R tensors (1, G)."""
    WORDS: tl.constexpr = N // per_word(k.dtype.element_ty)
    W: tl.constexpr = WORDS // TILE.GROUPS
    first = k.to(tl.pointer_type(tl.int64)) + token * WORDS
    row = tl.arange(0, TILE.STEPS)[None, None, :]
    words = ()
    for w in tl.static_range(W):
        column = tl.arange(0, TILE.GROUPS)[None, :, None] * W + w
        words += (split_last(tl.load(first + (row * WORDS + column)), TILE.STEPS),)
    return words


@triton.jit
def keys_of(words, r: tl.constexpr, dtype: tl.constexpr):
    """M tensors (1, G) of step r."""
    own = ()
    for w in tl.static_range(len(words)):
        own += (words[w][r],)
    return unpack(own, dtype)


@triton.jit
def step_of(x, r: tl.constexpr, TILE: tl.constexpr):
    return tl.broadcast_to(x[r], (TILE.CHANNELS, TILE.GROUPS)).to(tl.float32)


@triton.jit
def load_apart(state, lanes, N: tl.constexpr, M: tl.constexpr):
    """M tensors of a user's (D, N), each loaded by itself."""
    values = ()
    for j in tl.static_range(M):
        at = state + (lanes.channel * N + (lanes.group * M + j))
        values += (tl.load(at, mask=lanes.inside, other=0.0),)
    return values


@triton.jit
def rates_apart(A, lanes, TASK: tl.constexpr, M: tl.constexpr):
    rates = ()
    if TASK.GATE == "exp":
        rates = in_powers_of_two(load_apart(A, lanes, TASK.N, M), M)
    return rates


@triton.jit
def zeros_by_channels(plane, lanes, segments, D: tl.constexpr, M: tl.constexpr):
    """M zeros in the layout that suits the loop, adjacent channels in a thread. Nothing is read."""
    nowhere = lanes.inside & (segments < 0)
    return load_plane(plane, Lanes(lanes.channel, lanes.group, nowhere), D, M)
