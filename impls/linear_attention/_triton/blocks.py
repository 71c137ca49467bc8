"""Parts that the kernels share: where a program stands, sums of gates, the gates' gradient.

Every sum of log gates here starts afresh in its chunk or block of SUB steps, so it is ≤ 0,
keeps float32's relative accuracy after a reset, and -inf gives 0 without an -inf - -inf.

The gradient of the log gate of step t sums over pairs of a key before t and a query from t on:

    d log_a_t = Σ_{s ≥ t} (q_s · dq_s - k_s · dk_s) + Σ_{s < t} k_s · dk°_s + Λ · decay S

over the steps of a chunk, with dk° the part of dk through the state after the chunk, dk the one inside it, S
the state before and Λ the adjoint after it. Pairs of a step with itself are left out of q · dq and k · dk.
Without them nothing of order 1 has to cancel where all decay is strong. Pairs after t still cancel, up to the
rounding of operands in their dtype.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.sequences import head_offset

SUB = tl.constexpr(16)  # steps of a block inside which key gates are applied pair by pair
NONE, SCALAR, KEY = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FLAGS = tl.constexpr(256)  # chunks whose flags are read at once


@triton.jit
def locate(H, NT, TILES: tl.constexpr):
    """(tile, chunk, batch·head) of this program, the last two int64."""
    pid = tl.program_id(0)
    tile, rest = pid % TILES, (pid // TILES).to(tl.int64)
    chunk, bh = rest % NT, rest // NT
    return tile, chunk, bh


@triton.jit
def locate_heads_first(H, NT, TILES: tl.constexpr):
    """The same; programs beside each other have the heads of one chunk, which lie side by side."""
    pid = tl.program_id(0)
    tile, rest = pid % TILES, (pid // TILES).to(tl.int64)
    head, rest = rest % H, rest // H
    chunk, batch = rest % NT, rest // NT
    return tile, chunk, batch * H + head


@triton.jit
def load_rows(x, t, T, stride, cols, W: tl.constexpr):
    """Rows t of x (·, W) at the given columns, zero outside."""
    mask = (t < T)[:, None] & (cols < W)[None, :]
    return tl.load(x + t[:, None] * stride + cols[None, :], mask=mask, other=0.0)


@triton.jit
def load_chunk(x, left, stride, cols, C: tl.constexpr, W: tl.constexpr):
    """C rows from x on (·, W) at the given columns, zero after the `left` first ones. Offsets are int32."""
    steps = tl.arange(0, C)
    mask = (steps < left)[:, None] & (cols < W)[None, :]
    return tl.load(x + steps[:, None] * stride + cols[None, :], mask=mask, other=0.0)


@triton.jit
def store_chunk(x, tile, left, stride, C: tl.constexpr, W: tl.constexpr, BW: tl.constexpr):
    """Store C rows of BW columns from x on (·, W): the `left` first ones, W columns of each."""
    steps, columns = tl.arange(0, C)[:, None], tl.arange(0, BW)[None, :]
    tl.store(x + steps * stride + columns, tile.to(x.dtype.element_ty), mask=(steps < left) & (columns < W))


@triton.jit
def gate_base(log_a, bh, T, H, K: tl.constexpr, GATE: tl.constexpr, CONST: tl.constexpr):
    """Address of a head's first gate: log_a is (H, K|1) if CONST, else (B, T, H, K|1)."""
    width = K if GATE == KEY else 1
    row = bh % H if CONST else head_offset(bh, T, H)
    return log_a + row * width


@triton.jit
def gate_stride(H, K: tl.constexpr, GATE: tl.constexpr, CONST: tl.constexpr):
    """Distance between the gates of two steps."""
    width = K if GATE == KEY else 1
    return H * 0 if CONST else H * width


@triton.jit
def gate_columns(keys, K: tl.constexpr, KG: tl.constexpr):
    """Columns of the gates of channels: both parts of a complex channel have one gate, of KG = K / 2."""
    if KG == K:
        return keys
    else:
        return keys % KG


@triton.jit
def partners(keys, K: tl.constexpr):
    """The other parts of complex channels, and their signs under J: see `turns`."""
    return (keys + K // 2) % K, tl.where(keys < K // 2, 1.0, -1.0)


@triton.jit
def decay(
    log_a, start, T, stride, cols, K: tl.constexpr, C: tl.constexpr, GATE: tl.constexpr, TO_END: tl.constexpr,
    AFTER: tl.constexpr = False,
):  # fmt: skip
    """Log of the decay from before step `start` to each of C steps, or (TO_END) from each to the last.

    [C, cols] for key gates, [C, 1] for scalar ones. AFTER: from after step `start`.
    """
    rows = tl.arange(0, C)
    t = start + rows
    inside = t < T
    if AFTER:
        inside = inside & (rows > 0)
    if TO_END:
        t = t + 1
        inside = (rows < C - 1) & (t < T)
    if GATE == KEY:
        mask = inside[:, None] & (cols < K)[None, :]
        gates = tl.load(log_a + t[:, None] * stride + cols[None, :], mask=mask, other=0.0)
        return tl.cumsum(gates, axis=0, reverse=TO_END)
    else:
        gates = tl.load(log_a + t * stride, mask=inside, other=0.0)
        return tl.cumsum(gates, axis=0, reverse=TO_END)[:, None]


@triton.jit
def first_decay(log_a, start, T, stride, cols, K: tl.constexpr, GATE: tl.constexpr):
    """Decay factor of step `start`: [cols] for key gates, a scalar for scalar ones."""
    if GATE == KEY:
        gates = tl.load(log_a + start * stride + cols, mask=(cols < K) & (start < T), other=0.0)
    else:
        gates = tl.load(log_a + start * stride, mask=start < T, other=0.0)
    return tl.exp(gates)


@triton.jit
def total_decay(log_a, start, T, stride, cols, K: tl.constexpr, C: tl.constexpr, GATE: tl.constexpr):
    """Sum of the log gates of C steps: [cols] for key gates, a scalar for scalar ones."""
    t = start + tl.arange(0, C)
    if GATE == KEY:
        mask = (t < T)[:, None] & (cols < K)[None, :]
        gates = tl.load(log_a + t[:, None] * stride + cols[None, :], mask=mask, other=0.0)
        return tl.sum(gates, axis=0)
    else:
        return tl.sum(tl.load(log_a + t * stride, mask=t < T, other=0.0), axis=0)


@triton.jit
def some_wide(wide, origin, count, chunks):
    """Whether one of so many int32 flags from `origin` on is set. chunks: the count, as a bound of loops."""
    flags = tl.zeros((FLAGS,), dtype=tl.int32)
    for begin in range(0, chunks, FLAGS):
        chunk = begin + tl.arange(0, FLAGS)
        flags += tl.load(wide + origin + chunk, mask=chunk < count, other=0)
    return tl.max(flags, axis=0) > 0


@triton.jit
def block_starts(carried, ends, C: tl.constexpr, BK: tl.constexpr):
    """Compute what the gate's gradient begins with in each block of SUB steps, [C / SUB, BK].

    carried: [C, BK], what each step of the chunk adds through the state after it. ends: [BK], what passes
    through the whole chunk.
    """
    sums = tl.sum(tl.reshape(carried, (C // SUB, SUB, BK)), axis=1)
    blocks = tl.arange(0, C // SUB)
    earlier = (blocks[None, :] < blocks[:, None])[:, :, None]
    return tl.sum(tl.where(earlier, sums[None, :, :], 0.0), axis=1) + ends[None, :]


@triton.jit
def store_starts(boundary, starts, at, keys, some, K: tl.constexpr, C: tl.constexpr):
    """Store them at chunk `at` of boundary (·, C / SUB, K)."""
    blocks = tl.arange(0, C // SUB)
    cells = boundary + (at * (C // SUB) + blocks[:, None]) * K + keys[None, :]
    tl.store(cells, starts, mask=(keys < K)[None, :] & some)
