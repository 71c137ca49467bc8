"""Runs the kernels of value gates, forward and backward: see `valued`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..._autograd import once_differentiable, tie
from ..._triton.plan import Plan, Slot, packed, planned
from ..._triton.sequences import Packing
from .function import whole
from .tiles import Tiles
from .turns import Frames
from .valued import Valued

FRAME = 64  # steps between two angles


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, phase: Slot | None,
    first: Slot | None, bounds: Slot | None, *, keep: bool, by_value: bool, pairs: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """o, S_T, the frame's angles, block sizes, a walk's states and its o, and q and k as they were taken.

    keep, by_value: see `Valued.forward_valued`.
    """
    angles, do = None, replace(v, aligned=True)
    if phase is not None:
        frames = framed(plan, q, phase, q.shape[-1] // 2 if pairs else q.shape[-1], bounds)
        angles = frames.angles()
        q, k = frames.turn(q, k, angles)
    schedule = Valued.of(plan, q, v, log_a, pairs=pairs or phase is not None, bounds=bounds)
    o, last, states, made = schedule.forward_valued(
        q, k, v, log_a, log_b, first, keep=keep, by_value=by_value
    )
    if keep:
        plan.expect(
            backward_pass, q, k, v, log_a, log_b, phase, angles, first, states, made, do, None, bounds,
            cut=schedule.tiles, pairs=pairs, wanted=(log_a is not None, by_value, phase is not None),
        )  # fmt: skip
    return o, last, angles, schedule.tiles, states, made, q, k


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, phase: Slot | None,
    angles: Slot | None, first: Slot | None, states: Slot | None, made: Slot | None, do: Slot,
    dlast: Slot | None, bounds: Slot | None, *, cut: Tiles, pairs: bool, wanted: tuple[bool, bool, bool],
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, d log_a, d log_b and d phase or their parts (those that are wanted), dS_0."""
    by_key, by_value, by_phase = wanted
    both = pairs or phase is not None
    schedule = Valued.of(
        plan, q, v, log_a, pairs=both, turning=by_phase, cut=cut, unrounded=phase is not None, bounds=bounds
    )
    dq, dk, dv, dlog_a, dlog_b, dphase, dfirst = schedule.backward_valued(
        q, k, v, log_a, log_b, first, states, made, do, dlast, gates=(by_key, by_value)
    )
    if phase is not None and angles is not None and dq is not None and dk is not None:
        K = q.shape[-1] // 2
        frames = framed(plan, q, phase, K, bounds)
        channels = 2 * K if pairs else K
        dq, dk, dlog_a, dphase = frames.turn_back(dq, dk, angles, channels, q.dtype, dlog_a, dphase)
    return dq, dk, dv, dlog_a, dlog_b, dphase if by_phase else None, dfirst


def framed(plan: Plan, q: Slot, phase: Slot, K: int, bounds: Slot | None) -> Frames:
    packing = Packing.of(plan, bounds, q.shape[1], FRAME)
    return Frames.of(plan, q, phase, K, steps=FRAME, packing=packing)


class ValuedAttention(torch.autograd.Function):
    """(o, S_T, angles) with value gates log_b (B, T, H, V): otherwise like `LinearAttention`."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None,
        log_b: Tensor,
        phase: Tensor | None,
        first: Tensor | None,
        bounds: Tensor | None,
        pairs: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        operands = (q, k)
        o, last, angles, cut, states, made, q, k = forward_pass(
            q, k, v, log_a, log_b, phase, first, bounds, keep=True, by_value=ctx.needs_input_grad[4],
            pairs=pairs,
        )  # fmt: skip
        tied = tie(last, operands, (q, k))
        ctx.save_for_backward(bounds, q, k, v, log_a, log_b, phase, angles, first, states, made, tied)
        ctx.cut, ctx.pairs = cut, pairs
        ctx.set_materialize_grads(False)
        if angles is not None:
            ctx.mark_non_differentiable(angles)
        return o, last, angles

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(
        ctx: Any, do: Tensor | None, dlast: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        bounds, q, k, v, log_a, log_b, phase, angles, first, states, made, _ = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else packed(do)
        dlast = None if dlast is None else packed(dlast)
        dq, dk, dv, dlog_a, dlog_b, dphase, dfirst = backward_pass(
            q, k, v, log_a, log_b, phase, angles, first, states, made, do, dlast, bounds,
            cut=ctx.cut, pairs=ctx.pairs, wanted=ctx.needs_input_grad[3:6],
        )  # fmt: skip
        gates = whole(dlog_a, log_a), whole(dlog_b, log_b), whole(dphase, phase)
        return dq, dk, dv, *gates, None if first is None else dfirst, None, None


def attended_valued(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, log_b: Tensor, phase: Tensor | None,
    first: Tensor | None, bounds: Tensor | None, pairs: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The results of `ValuedAttention`, without what a backward pass would need."""
    o, last, angles, *_ = forward_pass(
        q, k, v, log_a, log_b, phase, first, bounds, keep=False, by_value=False, pairs=pairs
    )
    return o, last, angles
