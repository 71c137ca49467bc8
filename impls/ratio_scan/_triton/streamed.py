"""Both passes over one span of whole tiles, several of them under way.

The tensor memory accelerator brings tiles to shared memory, so that what is under way takes no registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import EMPTY, decays, one_scale
from .backward import backward_tile
from .forward import forward_tile, load_state, store_state


@triton.jit(do_not_specialize=["T", "tiles", "w_batch"], do_not_specialize_on_alignment=["y"])
def ratio_scan_forward_streamed(
    log_w, bonus, k, v, entry, y, final, marks, T, tiles, w_batch,
    C: tl.constexpr, R: tl.constexpr, MARK: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
    FLUSH: tl.constexpr,
):  # fmt: skip
    """A program walks all tiles of BC channels. k, v: descriptors of (B·T, C) with blocks (R, BC)."""
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    first_channel = tl.program_id(0) % blocks * BC
    channel = (first_channel + tl.arange(0, BC))[None, :]
    row = tl.arange(0, R)[:, None]
    in_channels = tl.full([1, BC], 1, tl.int1) if C % BC == 0 else channel < C

    w = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0)
    u = None if bonus is None else tl.load(bonus + channel, mask=in_channels, other=0.0)
    decay, correction = decays(w, R)
    if entry is None:
        m = tl.full([1, BC], EMPTY, tl.float32)
        p = tl.zeros([1, BC], tl.float32)
        q = tl.zeros([1, BC], tl.float32)
    else:
        m, p, q = load_state(entry + batch * 3 * C + channel, in_channels, C)
    valid = tl.full([R, BC], 1, tl.int1)
    inside = in_channels & valid
    offset = row.to(tl.int64) * C + channel
    first_row = (batch * T).to(tl.int32)
    for i in tl.range(0, tiles, num_stages=STAGES):
        step = first_row + i * R
        k_tile = k.load([step, first_channel])
        v_tile = v.load([step, first_channel])
        key = k_tile.to(tl.float32)
        direct, scale, factor = one_scale(key, valid, m, q, w, u, correction, R, True, FLUSH)
        at_y = y + step.to(tl.int64) * C + offset
        at_marks = None if marks is None else marks + (batch * tiles + i) * (R // MARK * 3 * C) + channel
        if direct:
            m, p, q = forward_tile(
                key, v_tile, valid, inside, row, R, at_y, at_marks, m, p, q, w, decay, u, scale,
                factor, in_channels, True, C, R, MARK, True, FLUSH,
            )  # fmt: skip
        else:
            m, p, q = forward_tile(
                key, v_tile, valid, inside, row, R, at_y, at_marks, m, p, q, w, decay, u, scale,
                factor, in_channels, False, C, R, MARK, True, FLUSH,
            )  # fmt: skip
    store_state(final + batch * 3 * C + channel, m, p, q, in_channels, C)


@triton.jit(do_not_specialize=["T", "tiles", "w_batch"], do_not_specialize_on_alignment=["dk", "dv"])
def ratio_scan_backward_streamed(
    log_w, bonus, k, v, dy, marks, final, end, dk, dv, dstart, dw, du, T, tiles, w_batch,
    C: tl.constexpr, R: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """The same from the end. k, v, dy: descriptors; all else as in `ratio_scan_backward` with one span."""
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    first_channel = tl.program_id(0) % blocks * BC
    channel = (first_channel + tl.arange(0, BC))[None, :]
    row = tl.arange(0, R)[:, None]
    in_channels = tl.full([1, BC], 1, tl.int1) if C % BC == 0 else channel < C

    w = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0)
    u = None if bonus is None else tl.load(bonus + channel, mask=in_channels, other=0.0)
    decay, correction = decays(w, R)
    at_state = batch * 3 * C + channel
    G = tl.load(end + at_state, mask=in_channels, other=0.0)
    H = tl.load(end + at_state + C, mask=in_channels, other=0.0)
    after = tl.load(final + at_state + 2 * C, mask=in_channels, other=0.0)
    w_total = tl.zeros([1, BC], tl.float32)
    u_total = tl.zeros([1, BC], tl.float32)
    valid = tl.full([R, BC], 1, tl.int1)
    inside = in_channels & valid
    offset = row.to(tl.int64) * C + channel
    first_row = (batch * T).to(tl.int32)
    for i in tl.range(0, tiles, num_stages=STAGES):
        tile = tiles - 1 - i
        step = first_row + tile * R
        k_tile = k.load([step, first_channel])
        v_tile = v.load([step, first_channel])
        dy_tile = dy.load([step, first_channel])
        m, p, q = load_state(marks + (batch * tiles + tile) * (3 * C) + channel, in_channels, C)
        key = k_tile.to(tl.float32)
        direct, scale, factor = one_scale(key, valid, m, q, w, u, correction, R, True, FLUSH, True)
        at = step.to(tl.int64) * C + offset
        if direct:
            G, H, w_total, u_total = backward_tile(
                key, v_tile, dy_tile, valid, inside, row, dk + at, dv + at, m, p, q, after, G, H, w_total,
                u_total, w, decay, u, scale, factor, True, R, True, FLUSH,
            )  # fmt: skip
        else:
            G, H, w_total, u_total = backward_tile(
                key, v_tile, dy_tile, valid, inside, row, dk + at, dv + at, m, p, q, after, G, H, w_total,
                u_total, w, decay, u, scale, factor, False, R, True, FLUSH,
            )  # fmt: skip
        after = m
    at_sum = batch * C + channel
    tl.store(dw + at_sum, w_total, mask=in_channels)
    if du is not None:
        tl.store(du + at_sum, u_total, mask=in_channels)
    if dstart is not None:
        tl.store(dstart + at_state, G, mask=in_channels)
        tl.store(dstart + at_state + C, H, mask=in_channels)
        tl.store(dstart + at_state + 2 * C, tl.zeros([1, BC], tl.float32), mask=in_channels)
