"""Arithmetic of both passes on a tile of R steps × BC channels: a thread holds all steps of its channels.

So scans over the steps stay within a thread: a step costs what it costs one after another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import exp2

EMPTY = tl.constexpr(-1e38)  # m of a state that holds nothing
LOG2E = tl.constexpr(1.4426950408889634)
SPAN = tl.constexpr(64.0)  # binary digits that a tile's common scale may lie above a step's sum
LARGEST_BONUS = tl.constexpr(30.0)  # in binary digits, of the direct path
CERTAIN = tl.constexpr(-1e30)  # a decay of log -inf, that no multiplication with 0 makes NaN


@triton.jit
def reciprocal(x, FLUSH: tl.constexpr):
    if FLUSH:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def then(a1, p1, q1, c1, d1, e1, a2, p2, q2, c2, d2, e2):
    """Compose two spans: x becomes a·x + (p, q) after all of a span, c·x + (d, e) before its last step."""
    return a1 * a2, a2 * p1 + p2, a2 * q1 + q2, c2 * a1, c2 * p1 + d2, c2 * q1 + e2


@triton.jit
def follow(m1, p1, q1, decay, m2, p2, q2):
    """The state (m, p, q) after a span. m1 - top is exact where the two are near, and so gives back what
    rounding took from m1 + decay."""
    top = tl.maximum(m1 + decay, m2)
    past = tl.exp2(((m1 - top) + decay) * 1.4426950408889634)
    present = tl.exp2((m2 - top) * 1.4426950408889634)
    return top, past * p1 + present * p2, past * q1 + present * q2


@triton.jit
def then_stable(w1, m1, p1, q1, v1, l1, d1, e1, w2, m2, p2, q2, v2, l2, d2, e2):
    """Compose two spans, each as (log decay, m, p, q), first with and then without its last step."""
    m, p, q = follow(m1, p1, q1, w2, m2, p2, q2)
    l, d, e = follow(m1, p1, q1, v2, l2, d2, e2)
    return w1 + w2, m, p, q, w1 + v2, l, d, e


@triton.jit
def at_row(x, row, WHICH: tl.constexpr):
    """One step's values, (1, BC). Unlike 0, -0 adds nothing to any value, so no addition remains."""
    return tl.sum(tl.where(row == WHICH, x, -0.0), axis=0, keep_dims=True)


@triton.jit
def largest(x, R: tl.constexpr):
    """The maximum over R steps, (1, BC), by halves, each of which follows the layout of what uses it."""
    x = tl.trans(x)
    for s in tl.static_range(6):
        if R >> s > 1:
            even, odd = tl.split(tl.reshape(x, (x.shape[0], R >> (s + 1), 2)))
            x = tl.maximum(even, odd)
    return tl.trans(tl.reshape(x, (x.shape[0], 1)))


@triton.jit
def decays(log_w, R: tl.constexpr):
    """e^λ rounded to float32, and what R such factors lack to e^{Rλ}, which a long memory would notice."""
    exact = log_w.to(tl.float64)
    decay = tl.exp(exact).to(tl.float32)
    usual = exact > -60.0
    missing = tl.where(usual, exact - tl.log(tl.where(usual, decay, 1.0).to(tl.float64)), 0.0)
    return decay, tl.exp(R * missing).to(tl.float32)


@triton.jit
def one_scale(
    key, valid, m, q, log_w, bonus, correction, R: tl.constexpr, WHOLE: tl.constexpr, FLUSH: tl.constexpr,
    HALVES: tl.constexpr = False,
):  # fmt: skip
    """Whether one scale serves all steps of the tile, of all channels; that scale, and the state's factor.

    The scale is that of the largest exponent, in binary digits. It serves if no sum of the tile falls more
    than SPAN below it: each is at least its own key, and at least the decayed sum before the tile. HALVES:
    find the largest exponent by halves, for whole tiles from shared memory.
    """
    if HALVES:
        high, low = largest(key, R), -largest(-key, R)
    else:
        high = tl.max(key, axis=0, keep_dims=True)
        low = tl.min(key if WHOLE else tl.where(valid, key, -EMPTY), axis=0, keep_dims=True)
    scale = tl.maximum(m, high) * LOG2E
    factor = exp2(m * LOG2E - scale, FLUSH) * correction
    past = q * factor
    smallest: tl.constexpr = 2.0 ** (-SPAN.value)
    good = (low * LOG2E - scale >= -SPAN) | (past * exp2(log_w * (R * LOG2E), FLUSH) >= smallest)
    if bonus is not None:
        good = good & (tl.abs(bonus * LOG2E) <= LARGEST_BONUS)
    return tl.min(tl.min(good.to(tl.int32), axis=1), axis=0) == 1, scale, factor


@triton.jit
def sums(
    key, value, valid, row, m, p, q, log_w, decay, scale, factor,
    DIRECT: tl.constexpr, WHOLE: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """Factors `past` and `present` of every step, sums (p, q, m) after it and before it.

    DIRECT: all in one scale; otherwise each in that of its largest exponent.
    """
    nothing = tl.zeros(key.shape, tl.float32)
    if DIRECT:
        present = exp2(key * LOG2E - scale, FLUSH)
        past = tl.broadcast_to(decay, key.shape)
        if not WHOLE:
            past = tl.where(valid, past, 1.0)
        old_p = tl.where(row == 0, p * factor, -0.0)
        old_q = tl.where(row == 0, q * factor, -0.0)
        add_p = tl.where(row == 0, past * old_p + present * value, present * value)
        add_q = tl.where(row == 0, past * old_q + present, present)
        _, p, q, _, old_p, old_q = tl.associative_scan(
            (past, add_p, add_q, nothing + 1.0, old_p, old_q), 0, then
        )
        return past, present, p, q, nothing, old_p, old_q, nothing
    else:
        w = tl.where(valid, log_w, 0.0)
        one = tl.where(valid, 1.0, nothing)
        first_m, first_p, first_q = follow(m, p, q, w, key, one * value, one)
        _, m, p, q, _, old_m, old_p, old_q = tl.associative_scan(
            (
                w,
                tl.where(row == 0, first_m, key),
                tl.where(row == 0, first_p, one * value),
                tl.where(row == 0, first_q, one),
                nothing,
                tl.where(row == 0, m, nothing + EMPTY),
                tl.where(row == 0, p, nothing),
                tl.where(row == 0, q, nothing),
            ),
            0,
            then_stable,
        )
        past = exp2(((old_m - m) + w) * LOG2E, FLUSH)
        present = one * exp2((key - m) * LOG2E, FLUSH)
        return past, present, p, q, m, old_p, old_q, old_m


@triton.jit
def read(key, value, present, p, q, old_p, old_q, old_m, bonus, DIRECT: tl.constexpr, FLUSH: tl.constexpr):
    """y, and the weights in it of the sums that it reads, and of the own step beside them."""
    if bonus is None:
        under = reciprocal(q, FLUSH)
        return p * under, under, under
    elif DIRECT:
        own = exp2(bonus * LOG2E, FLUSH) * present
        under = reciprocal(old_q + own, FLUSH)
        return (old_p + own * value) * under, under, own * under
    else:
        top = tl.maximum(old_m, bonus + key)
        past = exp2((old_m - top) * LOG2E, FLUSH)
        own = exp2((bonus + key - top) * LOG2E, FLUSH)
        under = reciprocal(past * old_q + own, FLUSH)
        return (past * old_p + own * value) * under, past * under, own * under
