"""Runs the kernels, forward and backward, for real operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._triton.plan import Plan, Slot, packed, planned
from .phase import phase_gradient
from .schedule import KEY, NONE, SCALAR
from .tiles import Tiles
from .walking import Walk


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, first: Slot | None,
    *, keep: bool, turning: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """o, S_T, the chunks' log decays, the states before them, and the block sizes that both passes share.

    A walk has no log decays, and states only if they are kept for a backward pass. turning: the phase's
    gradient will be wanted, which needs what a walk does not have.
    """
    schedule = Walk.of(plan, q, v, log_a)
    if not turning and schedule.fits:
        o, last, kept = schedule.forward(q, k, v, log_a, first, keep=keep)
        return o, last, None, kept, schedule.tiles
    totals = schedule.per_chunk(schedule.K if schedule.gate == KEY else 1)
    increments = schedule.increments(k, v, log_a, totals, reverse=False)
    states, last, _ = schedule.carry(first, increments, totals, q.dtype)
    o = schedule.output(q, v, log_a, states, schedule.attention(q, k, log_a), reverse=False)
    return o, last, totals, states, schedule.tiles


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, totals: Slot | None, states: Slot, last: Slot,
    do: Slot, dlast: Slot | None, *, cut: Tiles, turning: bool,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, d log_a or its parts, dS_0, and the adjoints of the states after chunks.

    cut: block sizes of forward, whose chunks these are. turning: dq and dk are wanted in float32.
    """
    schedule = Walk.of(plan, q, v, log_a, cut)
    if totals is None:
        return *schedule.backward(q, k, v, log_a, states, do, dlast), None
    increments = schedule.increments(q, do, log_a, totals, reverse=True)
    adjoints, dfirst, boundary = schedule.carry(dlast, increments, totals, q.dtype, states)
    dv = schedule.output(k, do, log_a, adjoints, schedule.attention(q, k, log_a), reverse=True)
    dscores = schedule.scores(do, v, log_a, SCALAR if schedule.gate == SCALAR else NONE)
    dtype = torch.float32 if turning else q.dtype
    dq, dk, dlog_a = schedule.grad_qk(q, k, v, do, log_a, states, adjoints, dscores, boundary, dtype)
    return dq, dk, dv, None if log_a is None else dlog_a, dfirst, adjoints if turning else None


class LinearAttention(torch.autograd.Function):
    """(o, S_T) of real contiguous operands of one dtype.

    log_a float32: None, (H, K|1) or (B, T, H, K|1). phase: already in q and k, given only to receive
    its gradient: (H, K/2|1) or (B, T, H, K/2|1). Keeps the operands and the states before each chunk (in the
    operands' dtype, T/chunk · K · V a head), recomputes the scores.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None,
        first: Tensor | None,
        phase: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        o, last, totals, states, cut = forward_pass(
            q, k, v, log_a, first, keep=any(ctx.needs_input_grad), turning=ctx.needs_input_grad[5]
        )
        ctx.save_for_backward(q, k, v, log_a, totals, states, last)
        ctx.cut, ctx.has_first = cut, first is not None
        ctx.phase_shape = None if phase is None else phase.shape
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_a, totals, states, last = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else packed(do)
        dlast = None if dlast is None else packed(dlast)
        turning = ctx.needs_input_grad[5]
        dq, dk, dv, dlog_a, dfirst, adjoints = backward_pass(
            q, k, v, log_a, totals, states, last, do, dlast, cut=ctx.cut, turning=turning
        )
        dphase = None
        if turning:
            dphase = phase_gradient(q, k, dq, dk, states, last, adjoints, ctx.cut.chunk)
            dphase = dphase.sum_to_size(*([1] * (4 - len(ctx.phase_shape))), *ctx.phase_shape)
            dphase = dphase.view(ctx.phase_shape)
        return dq, dk, dv, whole(dlog_a, log_a), dfirst if ctx.has_first else None, dphase


def whole(parts: Tensor | None, log_a: Tensor | None) -> Tensor | None:
    """The gradient of the log gates from its parts: tiles of K, and all steps of constant gates."""
    if parts is None or log_a is None:
        return None
    if parts.shape[-1] != log_a.shape[-1]:
        parts = parts.sum(-1, keepdim=True)
    return parts.sum((0, 1)) if log_a.dim() == 2 else parts
