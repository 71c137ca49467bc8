"""Exchange between parallel segments: the states before them, and the adjoints after them."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import exp2
from .arithmetic import EMPTY, LOG2E
from .forward import store_state


@triton.jit(do_not_specialize=["spans", "w_batch"])
def ratio_scan_states(
    log_w, state, added, entry, spans, length, w_batch,
    C: tl.constexpr, BC: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """States before each span of `length` steps from the first one and what spans add, (B, spans, 3, C)."""
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    in_channels = channel < C
    decay = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0) * length
    m = tl.full([BC], EMPTY, tl.float32)
    p = tl.zeros([BC], tl.float32)
    q = tl.zeros([BC], tl.float32)
    if state is not None:
        state += batch * 3 * C + channel
        p = tl.load(state, mask=in_channels, other=0.0)
        q = tl.load(state + C, mask=in_channels, other=0.0)
        m = tl.load(state + 2 * C, mask=in_channels, other=0.0)
    at = batch * spans * 3 * C + channel
    span = 0
    while span < spans:
        new_p = tl.load(added + at, mask=in_channels, other=0.0)
        new_q = tl.load(added + at + C, mask=in_channels, other=0.0)
        new_m = tl.load(added + at + 2 * C, mask=in_channels, other=0.0)
        store_state(entry + at, m, p, q, in_channels, C)
        top = tl.maximum(m + decay, new_m)
        past = exp2(((m - top) + decay) * LOG2E, FLUSH)
        present = exp2((new_m - top) * LOG2E, FLUSH)
        p = past * p + present * new_p
        q = past * q + present * new_q
        m = top
        at += 3 * C
        span += 1


@triton.jit(do_not_specialize=["T", "tiles", "spans", "w_batch"])
def ratio_scan_adjoints(
    log_w, marks, final, final_grad, added, end, T, tiles, spans, w_batch,
    C: tl.constexpr, R: tl.constexpr, BC: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """Adjoints after each span from the last one and what every span adds before itself, (B, spans, 3, C)."""
    blocks: tl.constexpr = (C + BC - 1) // BC
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    in_channels = channel < C
    log_decay = tl.load(log_w + batch * w_batch + channel, mask=in_channels, other=0.0)
    at_state = batch * 3 * C + channel
    G = tl.load(final_grad + at_state, mask=in_channels, other=0.0)
    H = tl.load(final_grad + at_state + C, mask=in_channels, other=0.0)
    after = tl.load(final + at_state + 2 * C, mask=in_channels, other=0.0)
    marks += batch * tl.cdiv(T, R) * 3 * C + 2 * C + channel
    span = spans - 1
    stop = T
    while span >= 0:
        at = (batch * spans + span) * 3 * C + channel
        start = span * tiles * R
        m = tl.load(marks + (span * tiles).to(tl.int64) * 3 * C, mask=in_channels, other=0.0)
        new_G = tl.load(added + at, mask=in_channels, other=0.0)
        new_H = tl.load(added + at + C, mask=in_channels, other=0.0)
        tl.store(end + at, G, mask=in_channels)
        tl.store(end + at + C, H, mask=in_channels)
        past = exp2(((m - after) + log_decay * (stop - start)) * LOG2E, FLUSH)
        G = past * G + new_G
        H = past * H + new_H
        after = m
        stop = start
        span -= 1
