"""Backward: the sums of a tile once more from those before it, then their adjoint from its end.

Let y weigh the sums that it reads with h, its own step with s (both times dy). With G, H the adjoint of the
sums P, Q after a step: dv = present·G + s; x = s·(v - y); dk = present·(G v + H) + x; du = Σ x; of the sums
before the step, dλ = Σ past·(G P + H Q). Before the step the adjoint is past·G + h, past·H - h y; without a
bonus, y reads the sums after it, so (h, -h y) is part of (G, H) and s is part of present·G.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import exp2
from .arithmetic import EMPTY, LOG2E, at_row, decays, one_scale, read, sums
from .forward import load_state


@triton.jit
def backward_tile(
    key, v, dy, valid, inside, row, dk, dv, m, p, q, after, G, H, w_total, u_total,
    log_w, decay, bonus, scale, factor,
    DIRECT: tl.constexpr, R: tl.constexpr, WHOLE: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """Write a tile's gradients; the adjoint before it, in scale m, from that after it, in scale `after`."""
    value = v.to(tl.float32)
    past, present, p, q, new_m, old_p, old_q, old_m = sums(
        key, value, valid, row, m, p, q, log_w, decay, scale, factor, DIRECT, WHOLE, FLUSH
    )
    y, state_weight, own_weight = read(key, value, present, p, q, old_p, old_q, old_m, bonus, DIRECT, FLUSH)
    grad = dy.to(tl.float32)
    h = grad * state_weight
    hy = h * y
    if DIRECT:
        into = exp2(scale - after * LOG2E, FLUSH)
    else:
        into = exp2((at_row(new_m, row, R - 1) - after) * LOG2E, FLUSH)
    G *= into
    H *= into
    later_G = tl.zeros(key.shape, tl.float32)
    later_H = tl.zeros(key.shape, tl.float32)
    # Step by step: a reverse scan would send every value to another thread and back.
    for r in tl.static_range(R - 1, -1, -1):
        if bonus is None:
            G += at_row(h, row, r)
            H -= at_row(hy, row, r)
        later_G = tl.where(row == r, G, later_G)
        later_H = tl.where(row == r, H, later_H)
        factor_r = decay if DIRECT and WHOLE else at_row(past, row, r)
        G = factor_r * G
        H = factor_r * H
        if bonus is not None:
            G += at_row(h, row, r)
            H -= at_row(hy, row, r)
    if dk is not None:
        to_k = present * (later_G * value + later_H)
        to_v = present * later_G
        if bonus is not None:
            s = grad * own_weight
            own = s * (value - y)
            to_k += own
            to_v += s
            u_total += tl.sum(own, axis=0, keep_dims=True)
        tl.store(dk, to_k.to(dk.dtype.element_ty), mask=inside)
        tl.store(dv, to_v.to(dv.dtype.element_ty), mask=inside)
        change = later_G * old_p + later_H * old_q
        if DIRECT and WHOLE:
            w_total += decay * tl.sum(change, axis=0, keep_dims=True)
        else:
            w_total += tl.sum(tl.where(valid, past * change, 0.0), axis=0, keep_dims=True)
    if DIRECT:
        G *= factor
        H *= factor
    return G, H, w_total, u_total


@triton.jit(
    do_not_specialize=["T", "tiles", "w_batch"],
    do_not_specialize_on_alignment=["k", "v", "dy", "dk", "dv"],
)
def ratio_scan_backward(
    log_w, bonus, k, v, dy, marks, final, end, dk, dv, dstart, dw, du, T, tiles, w_batch,
    C: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, SUMMARY: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """A program walks `tiles` tiles of R steps of BC channels, a span, from its end.

    marks: states before the tiles (B, ⌈T/R⌉, 3, C); final: the last state (B, 3, C). end: adjoints after the
    spans (B, spans, 3, C), row m unused. dstart: before all spans (B, 3, C), row m 0, or with SUMMARY before
    each span if nothing came after it (B, spans, 3, C). dw, du: sums over a span (B, spans, C).
    """
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = (tl.program_id(0) % blocks * BC + tl.arange(0, BC))[None, :]
    row = tl.arange(0, R)[:, None]
    span = tl.program_id(1)
    spans = tl.num_programs(1)
    in_channels = tl.full([1, BC], 1, tl.int1) if C % BC == 0 else channel < C
    at_span = (batch * spans + span) * C + channel
    at_state = (batch * spans + span) * 3 * C + channel

    w = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0)
    u = None if bonus is None else tl.load(bonus + channel, mask=in_channels, other=0.0)
    decay, correction = decays(w, R)
    G = tl.zeros([1, BC], tl.float32)
    H = tl.zeros([1, BC], tl.float32)
    if not SUMMARY:
        G = tl.load(end + at_state, mask=in_channels, other=0.0)
        H = tl.load(end + at_state + C, mask=in_channels, other=0.0)
    w_total = tl.zeros([1, BC], tl.float32)
    u_total = tl.zeros([1, BC], tl.float32)

    all_tiles = tl.cdiv(T, R)
    stop = span * tiles
    tile = tl.minimum(stop + tiles, all_tiles) - 1
    at_marks = marks + (batch * all_tiles + tile) * 3 * C + channel
    m, p, q = load_state(at_marks, in_channels, C)
    after = tl.load(final + (3 * batch + 2) * C + channel, mask=in_channels, other=0.0)
    if tile + 1 < all_tiles:
        after = tl.load(at_marks + 5 * C, mask=in_channels, other=0.0)
    to = (batch * T + tile * R) * C
    offset = row.to(tl.int64) * C + channel
    inside = in_channels & (row < (R if WHOLE else T - tile * R))
    k_tile = tl.load(k + to + offset, mask=inside, other=0.0)
    v_tile = tl.load(v + to + offset, mask=inside, other=0.0)
    dy_tile = tl.load(dy + to + offset, mask=inside, other=0.0)
    while tile >= stop:
        more = in_channels & (tile > stop)
        whole = tl.broadcast_to(more, (R, BC))
        at_marks -= 3 * C
        next_k = tl.load(k + to - R * C + offset, mask=whole, other=0.0)
        next_v = tl.load(v + to - R * C + offset, mask=whole, other=0.0)
        next_dy = tl.load(dy + to - R * C + offset, mask=whole, other=0.0)
        next_m, next_p, next_q = load_state(at_marks, more, C)
        valid = tl.broadcast_to(row < (R if WHOLE else T - tile * R), (R, BC))
        inside = in_channels & valid
        key = k_tile.to(tl.float32)
        if not WHOLE:
            key = tl.where(valid, key, EMPTY)
        direct, scale, factor = one_scale(key, valid, m, q, w, u, correction, R, WHOLE, FLUSH)
        at_dk = None if dk is None else dk + to + offset
        at_dv = None if dv is None else dv + to + offset
        if direct:
            G, H, w_total, u_total = backward_tile(
                key, v_tile, dy_tile, valid, inside, row, at_dk, at_dv, m, p, q, after, G, H, w_total,
                u_total, w, decay, u, scale, factor, True, R, WHOLE, FLUSH,
            )  # fmt: skip
        else:
            G, H, w_total, u_total = backward_tile(
                key, v_tile, dy_tile, valid, inside, row, at_dk, at_dv, m, p, q, after, G, H, w_total,
                u_total, w, decay, u, scale, factor, False, R, WHOLE, FLUSH,
            )  # fmt: skip
        after = m
        m = next_m
        p = next_p
        q = next_q
        k_tile = next_k
        v_tile = next_v
        dy_tile = next_dy
        tile -= 1
        to -= R * C
    if SUMMARY:
        tl.store(dstart + at_state, G, mask=in_channels)
        tl.store(dstart + at_state + C, H, mask=in_channels)
    else:
        tl.store(dw + at_span, w_total, mask=in_channels)
        if du is not None:
            tl.store(du + at_span, u_total, mask=in_channels)
        if dstart is not None:
            at_start = dstart + batch * 3 * C + channel
            at_first = in_channels & (span == 0)
            tl.store(at_start, G, mask=at_first)
            tl.store(at_start + C, H, mask=at_first)
            tl.store(at_start + 2 * C, tl.zeros([1, BC], tl.float32), mask=at_first)
