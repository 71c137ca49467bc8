"""Forward: y and the final state, or only what a span of steps adds to the state before it."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import exp2
from .arithmetic import CERTAIN, EMPTY, LOG2E, at_row, decays, one_scale, read, sums


@triton.jit
def load_state(at, mask, C: tl.constexpr):
    """(m, p, q) of a state whose rows are p, q and m."""
    p = tl.load(at, mask=mask, other=0.0)
    q = tl.load(at + C, mask=mask, other=0.0)
    return tl.load(at + 2 * C, mask=mask, other=0.0), p, q


@triton.jit
def store_state(at, m, p, q, mask, C: tl.constexpr):
    tl.store(at, p, mask=mask)
    tl.store(at + C, q, mask=mask)
    tl.store(at + 2 * C, m, mask=mask)


@triton.jit
def forward_tile(
    key, v, valid, inside, row, left, y, marks, m, p, q, log_w, decay, bonus, scale, factor, in_channels,
    DIRECT: tl.constexpr, C: tl.constexpr, R: tl.constexpr, MARK: tl.constexpr, WHOLE: tl.constexpr,
    FLUSH: tl.constexpr,
):  # fmt: skip
    """Write the outputs of a tile with `left` steps, and give the state after it."""
    value = v.to(tl.float32)
    _, present, new_p, new_q, new_m, old_p, old_q, old_m = sums(
        key, value, valid, row, m, p, q, log_w, decay, scale, factor, DIRECT, WHOLE, FLUSH
    )
    if y is not None:
        out, _, _ = read(key, value, present, new_p, new_q, old_p, old_q, old_m, bonus, DIRECT, FLUSH)
        tl.store(y, out.to(y.dtype.element_ty), mask=inside)
    if marks is not None:
        store_state(marks, m, p, q, in_channels, C)
        for i in tl.static_range(1, R // MARK):
            mark_m = scale / LOG2E if DIRECT else at_row(old_m, row, i * MARK)
            mark_p = at_row(old_p, row, i * MARK)
            mark_q = at_row(old_q, row, i * MARK)
            store_state(
                marks + i * 3 * C, mark_m, mark_p, mark_q, in_channels & (WHOLE or left > i * MARK), C
            )
    p = at_row(new_p, row, R - 1)
    q = at_row(new_q, row, R - 1)
    if DIRECT:
        w = tl.maximum(log_w, CERTAIN)
        if WHOLE:
            m = tl.maximum(m + R * w, tl.max(key + (R - 1 - row) * w, axis=0, keep_dims=True))
        else:
            steps = tl.minimum(left, R)
            later = tl.maximum(steps - 1 - row, 0)
            m = tl.maximum(m + steps * w, tl.max(key + later * w, axis=0, keep_dims=True))
        back = exp2(scale - m * LOG2E, FLUSH)
        return m, p * back, q * back
    else:
        return at_row(new_m, row, R - 1), p, q


# Without a known alignment of the data, a thread gets single channels, and so a tile's steps all to itself.
@triton.jit(do_not_specialize=["T", "tiles", "w_batch"], do_not_specialize_on_alignment=["k", "v", "y"])
def ratio_scan_forward(
    log_w, bonus, k, v, entry, y, final, marks, T, tiles, w_batch,
    C: tl.constexpr, R: tl.constexpr, MARK: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, SUMMARY: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """A program walks `tiles` tiles of R steps of BC channels, a span; the next tile's loads are under way.

    entry: states before the spans (B, spans, 3, C), or None: empty. final: (B, 3, C), or with SUMMARY the
    states after the spans (B, spans, 3, C). marks: states before each MARK steps (B, ⌈T/MARK⌉, 3, C).
    """
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks * BC + tl.arange(0, BC))[None, :]
    row = tl.arange(0, R)[:, None]
    span = tl.program_id(1)
    spans = tl.num_programs(1)
    in_channels = tl.full([1, BC], 1, tl.int1) if C % BC == 0 else channel < C

    w = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0)
    u = None if bonus is None else tl.load(bonus + channel, mask=in_channels, other=0.0)
    decay, correction = decays(w, R)
    if entry is None:
        m = tl.full([1, BC], EMPTY, tl.float32)
        p = tl.zeros([1, BC], tl.float32)
        q = tl.zeros([1, BC], tl.float32)
    else:
        m, p, q = load_state(entry + (batch * spans + span) * 3 * C + channel, in_channels, C)

    first = span * tiles * R
    stop = tl.minimum(first + tiles * R, T)
    to = (batch * T + first) * C
    offset = row.to(tl.int64) * C + channel
    if marks is not None:
        marks += (batch * tl.cdiv(T, MARK) + first // MARK) * 3 * C
    inside = in_channels & (row < (R if WHOLE else T - first))
    k_tile = tl.load(k + to + offset, mask=inside, other=0.0)
    v_tile = tl.load(v + to + offset, mask=inside, other=0.0)
    while first < stop:
        after = in_channels & ((row < stop - first - R) if not WHOLE else (first + R < stop))
        next_k = tl.load(k + to + R * C + offset, mask=after, other=0.0)
        next_v = tl.load(v + to + R * C + offset, mask=after, other=0.0)
        # Masks are cheaper made again than kept.
        valid = tl.broadcast_to(row < (R if WHOLE else T - first), (R, BC))
        inside = in_channels & valid
        key = k_tile.to(tl.float32)
        if not WHOLE:
            key = tl.where(valid, key, EMPTY)
        direct, scale, factor = one_scale(key, valid, m, q, w, u, correction, R, WHOLE, FLUSH)
        at_y = None if y is None else y + to + offset
        at_marks = None if marks is None else marks + channel
        if direct:
            m, p, q = forward_tile(
                key, v_tile, valid, inside, row, T - first, at_y, at_marks, m, p, q, w, decay, u, scale,
                factor, in_channels, True, C, R, MARK, WHOLE, FLUSH,
            )  # fmt: skip
        else:
            m, p, q = forward_tile(
                key, v_tile, valid, inside, row, T - first, at_y, at_marks, m, p, q, w, decay, u, scale,
                factor, in_channels, False, C, R, MARK, WHOLE, FLUSH,
            )  # fmt: skip
        k_tile = next_k
        v_tile = next_v
        first += R
        to += R * C
        if marks is not None:
            marks += R // MARK * 3 * C
    if SUMMARY:
        store_state(final + (batch * spans + span) * 3 * C + channel, m, p, q, in_channels, C)
    else:
        store_state(final + batch * 3 * C + channel, m, p, q, in_channels & (span == spans - 1), C)
