"""Runs the kernels of value gates, forward and backward: see `steps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._triton.plan import Plan, Slot, packed, planned
from .function import whole
from .steps import Steps
from .turns import Frames


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, phase: Slot | None,
    first: Slot | None, *, keep: bool, pairs: bool,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """o, S_T, (keep) o without each step's own write, q and k as they were taken, and the frame's angles."""
    angles = None
    if phase is not None:
        frames = Frames.of(plan, q, phase, pairs=pairs)
        angles = frames.angles()
        q, k = frames.turn(q, k, angles, 2 * frames.K)
    o, through, last = Steps.of(plan, q, log_a, log_b).walk(q, k, v, first, parts=keep)
    return o, last, through if keep else None, q, k, angles


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, phase: Slot | None,
    angles: Slot | None, first: Slot | None, do: Slot, dlast: Slot | None, *, pairs: bool, gates: bool,
) -> tuple[Slot, ...]:  # fmt: skip
    """dq, dk, dv, dS_0, and what `gate_pass` takes (gates): dq, dk, dv without own writes, the state held."""
    steps = Steps.of(plan, q, log_a, log_b)
    held = "held" if gates else "none"
    dq, dq_through, state = steps.walk(do, v, k, first, across=True, parts=gates, last=held)
    dk, dk_through, _ = steps.walk(v, do, q, dlast, across=True, reverse=True, parts=gates, last="none")
    dv, dv_through, dfirst = steps.walk(k, q, do, dlast, reverse=True, parts=gates)
    if phase is not None and angles is not None:
        frames = Frames.of(plan, q, phase, pairs=True)
        dq, dk = frames.turn(dq, dk, angles, q.shape[-1] if pairs else frames.K, back=True)
    return dq, dk, dv, dfirst, dq_through, dk_through, dv_through, state


@planned
def gate_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, do: Slot, through: Slot | None,
    dq: Slot, dk: Slot, dv: Slot, key_ends: Slot | None, value_ends: Slot | None, turn_ends: Slot | None,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """d log_a, d log_b and d phase or their parts, each where its ends are given: see `steps.la_gates`.

    through, dq, dk, dv: o and the gradients without own writes.
    """
    steps = Steps.of(plan, q, log_a, log_b)
    dlog_a = dlog_b = dphase = None
    if key_ends is not None and log_a is not None:
        dlog_a = steps.gates(q, k, dq, dk, log_a, key_ends)
    if value_ends is not None and through is not None:
        dlog_b = steps.gates(do, v, through, dv, log_b, value_ends)
    if turn_ends is not None:
        dphase = steps.gates(q, k, dq, dk, log_b, turn_ends, turn=True)
    return dlog_a, dlog_b, dphase


class SteppedAttention(torch.autograd.Function):
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
        pairs: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        o, last, through, q, k, angles = forward_pass(
            q, k, v, log_a, log_b, phase, first, keep=ctx.needs_input_grad[4], pairs=pairs
        )
        ctx.save_for_backward(q, k, v, log_a, log_b, phase, angles, first, through)
        ctx.pairs = pairs
        ctx.set_materialize_grads(False)
        if angles is not None:
            ctx.mark_non_differentiable(angles)
        return o, last, angles

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, do: Tensor | None, dlast: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, log_a, log_b, phase, angles, first, through = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else packed(do)
        dlast = None if dlast is None else packed(dlast)
        wanted = ctx.needs_input_grad[3:6]
        dq, dk, dv, dfirst, *parts, held = backward_pass(
            q, k, v, log_a, log_b, phase, angles, first, do, dlast, pairs=ctx.pairs, gates=any(wanted)
        )
        found = (None, None, None)
        if any(wanted):
            found = gate_pass(q, k, v, log_a, log_b, do, through, *parts, *ends(held, dlast, wanted))
        gates = [whole(part, gate) for part, gate in zip(found, (log_a, log_b, phase), strict=True)]
        return dq, dk, dv, *gates, None if first is None else dfirst, None


def ends(held: Tensor, dlast: Tensor | None, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """What the gradients of log_a, log_b and phase begin with, where wanted: see `steps.la_gates`."""
    product = torch.zeros_like(held) if dlast is None else held * dlast
    turned = None
    if wanted[2]:
        re, im = held.chunk(2, -2)
        turned = torch.zeros_like(held) if dlast is None else torch.cat([-im, re], -2) * dlast
    by_key, by_value, by_phase = wanted
    return (
        product.sum(-1) if by_key else None,
        product.sum(-2) if by_value else None,
        turned.sum(-1) if by_phase and turned is not None else None,
    )
