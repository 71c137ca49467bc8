"""Runs the kernels, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._autograd import once_differentiable, tie
from ..._triton.plan import Plan, Slot, packed, planned
from .heads import repeated
from .padded import padded, whole_width
from .schedule import NONE, SCALAR
from .tiles import Tiles
from .turns import Frames
from .walking import Walk


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, phase: Slot | None, first: Slot | None,
    bounds: Slot | None, *, keep: bool, pairs: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """o, S_T, the angles of the frame in which q and k were turned, and what a backward pass shares.

    That is block sizes, q, k and v as they were taken (under key gates a walk turns them while it brings the
    decay in), the chunks' log decays and the states before them. A walk has no log decays, and states only if
    they are kept for a backward pass; with them, what else `Walk.forward` keeps, or None four times.
    """
    width = whole_width(v)
    first = first and padded(plan, first, width)
    both = pairs or phase is not None
    given, do = q.shape[-1], replace(v, aligned=True)
    channels = given * 2 if both and not pairs else given
    schedule = Walk.of(plan, q, v, log_a, pairs=both, width=width, channels=channels, bounds=bounds)
    angles = spin = None
    kept: tuple[Slot | None, ...] | None = None
    if phase is not None:
        frames = Frames.of(
            plan, q, phase, channels // 2, steps=schedule.tiles.chunk, packing=schedule.packing
        )
        angles = frames.angles()
        if schedule.fits and schedule.by_channel:
            spin = frames, angles
        else:
            q, k = frames.turn(q, k, angles)
    if schedule.fits:
        totals = None
        o, last, states, v, kept = schedule.forward(q, k, v, log_a, first, keep=keep, spin=spin)
    else:
        q, k = repeated(plan, q, schedule.H), repeated(plan, k, schedule.H)
        v = padded(plan, v, width)
        totals = schedule.per_chunk(schedule.K if schedule.by_channel else 1)
        increments = schedule.increments(k, v, log_a, totals, reverse=False)
        states, last, *_ = schedule.carry(first, increments, totals, q.dtype)
        o = schedule.output(q, v, log_a, states, schedule.attention(q, k, log_a), reverse=False)
    kept = kept or (None,) * 4
    if keep:
        plan.expect(
            backward_pass, q, k, v, log_a, phase, angles, totals, states, *kept, do, None,
            bounds, cut=schedule.tiles, pairs=pairs, turning=phase is not None, channels=given,
        )  # fmt: skip
    return o, last, angles, schedule.tiles, q, k, v, totals, states, *kept


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, phase: Slot | None, angles: Slot | None,
    totals: Slot | None, states: Slot, late: Slot | None, early: Slot | None, factors: Slot | None,
    wide: Slot | None, do: Slot, dlast: Slot | None, bounds: Slot | None, *, cut: Tiles, pairs: bool,
    turning: bool, channels: int,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, d log_a and d phase or their parts, dS_0.

    q, k, v: as forward took them. late, early, factors, wide: what it kept beside states. cut: block sizes of
    forward, whose chunks these are. turning: whether the phase's gradient is wanted. channels: of dq and dk.
    """
    both, spin = pairs or phase is not None, None
    walked = channels * 2 if both and not pairs else channels
    dlast = dlast and padded(plan, dlast, v.shape[-1])
    schedule = Walk.of(
        plan, q, v, log_a, pairs=both, turning=turning, cut=cut, channels=walked, unrounded=phase is not None,
        bounds=bounds,
    )  # fmt: skip
    if phase is not None:
        frames = Frames.of(plan, q, phase, walked // 2, steps=cut.chunk, packing=schedule.packing)
    if totals is None:
        if phase is not None and angles is not None and schedule.by_channel:
            spin = frames, angles
        dq, dk, dv, dlog_a, dphase, dfirst = schedule.backward(
            q, k, v, log_a, states, do, dlast, spin=spin, channels=channels,
            kept=(late, early, factors, wide) if late and early and factors and wide else None,
        )  # fmt: skip
    else:
        do = padded(plan, do, v.shape[-1])
        increments = schedule.increments(q, do, log_a, totals, reverse=True)
        adjoints, dfirst, *edges = schedule.carry(dlast, increments, totals, q.dtype, states)
        dv = schedule.output(k, do, log_a, adjoints, schedule.attention(q, k, log_a), reverse=True)
        dscores = schedule.scores(do, v, log_a, SCALAR if schedule.gate == SCALAR else NONE)
        dq, dk, dlog_a, dphase = schedule.grad_qk(q, k, v, do, log_a, states, adjoints, dscores, *edges)
    if spin is None and phase is not None and angles is not None:
        found = frames.turn_back(dq, dk, angles, channels, q.dtype, dlog_a, dphase)
        dq, dk, dlog_a, dphase = found
    return dq, dk, dv, None if log_a is None else dlog_a, dphase if turning else None, dfirst


class LinearAttention(torch.autograd.Function):
    """(o, S_T, angles) of contiguous operands of one real dtype; q and k may have fewer heads than v.

    Or they are one head that is expanded to all: it is read in its place, and has a gradient for each head.
    log_a (float32) and phase: None, (H, K|1) or (B, T, H, K|1). pairs: q and k are (B, T, H, 2 K), complex
    channels as `_triton.turns` lays them out. With pairs or a phase, states are (B, H, 2 K, V); with a phase,
    S_T is seen from a frame that has turned by the last of the angles (B·H, frames + 1, K|1), else None.
    bounds: of packed sequences, whose states are (n, H, K, V); see `sequences`.
    Keeps the operands and the states before each chunk (in the operands' dtype, T/chunk · K · V per head),
    recomputes the scores. With phases under key gates, it also keeps turned queries and keys (each T · 2 K
    per head), except in float16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None,
        phase: Tensor | None,
        first: Tensor | None,
        bounds: Tensor | None,
        pairs: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.heads, ctx.channels, ctx.values = q.shape[2], q.shape[-1], v.shape[-1]
        operands = (q, k, v, first)
        if expanded(q, k, v.shape[2]):
            q, k = q[:, :, :1].contiguous(), k[:, :, :1].contiguous()
        o, last, angles, cut, q, k, v, *kept = forward_pass(
            q, k, v, log_a, phase, first, bounds, keep=True, pairs=pairs
        )
        last = narrowed(last, ctx.values)
        tied = tie(last, operands, (q, k, v))
        ctx.save_for_backward(bounds, q, k, v, log_a, phase, angles, *kept, tied)
        ctx.cut, ctx.pairs, ctx.has_first = cut, pairs, first is not None
        ctx.set_materialize_grads(False)
        if angles is not None:
            ctx.mark_non_differentiable(angles)
        return narrowed(o, ctx.values), last, angles

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(
        ctx: Any, do: Tensor | None, dlast: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        bounds, q, k, v, log_a, phase, angles, totals, states, *kept, _ = ctx.saved_tensors
        do = v.new_zeros(*v.shape[:-1], ctx.values) if do is None else packed(do)
        dlast = None if dlast is None else packed(dlast)
        dq, dk, dv, dlog_a, dphase, dfirst = backward_pass(
            q, k, v, log_a, phase, angles, totals, states, *kept, do, dlast, bounds,
            cut=ctx.cut, pairs=ctx.pairs, turning=ctx.needs_input_grad[4], channels=ctx.channels,
        )  # fmt: skip
        dq, dk = (each if each.shape[2] == ctx.heads else shared_sum(each, ctx.heads) for each in (dq, dk))
        dv, dfirst = narrowed(dv, ctx.values), narrowed(dfirst, ctx.values) if ctx.has_first else None
        return dq, dk, dv, whole(dlog_a, log_a), whole(dphase, phase), dfirst, None, None


def attended(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, first: Tensor | None,
    bounds: Tensor | None, pairs: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The results of `LinearAttention`, without what a backward pass would need."""
    o, last, angles, *_ = forward_pass(q, k, v, log_a, phase, first, bounds, keep=False, pairs=pairs)
    return narrowed(o, v.shape[-1]), narrowed(last, v.shape[-1]), angles


def expanded(q: Tensor, k: Tensor, heads: int) -> bool:
    """Whether q and k are views that show one head as all of so many."""
    return heads > 1 and q.shape[2] == k.shape[2] == heads and q.stride(2) == k.stride(2) == 0


def narrowed(x: Tensor, width: int) -> Tensor:
    """The first `width` columns, all of which may be there."""
    return x if x.shape[-1] == width else x[..., :width]


def shared_sum(x: Tensor, heads: int) -> Tensor:
    """Add up the gradients (B, T, H, K) of the heads that share a key head."""
    return x.unflatten(2, (heads, -1)).sum(3)


def whole(parts: Tensor | None, gates: Tensor | None) -> Tensor | None:
    """A gate's gradient from its parts: steps of constant gates, tiles of K, parts of complex channels."""
    if parts is None or gates is None:
        return None
    if gates.dim() == 2:
        parts = parts.sum((0, 1))
    width = gates.shape[-1]
    return parts if parts.shape[-1] == width else parts.unflatten(-1, (-1, width)).sum(-2)
