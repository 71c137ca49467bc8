"""The autograd function around the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ssmperf.ahead import start, wait

from .groups import Arriving, Operands, Fused
from .launches import scan, scan_back, whole_words
from .plan import Fusion, Plan, streamable

KINDS = (torch.float32, torch.bfloat16, torch.float16)


class Saved(NamedTuple):
    """What forward keeps for backward: operands and fused options, and the states at checkpoints."""

    x: Tensor
    delta: Tensor
    k: Tensor
    q: Tensor
    A: Tensor | None
    skip: Tensor | None
    z: Tensor | None
    bias: Tensor | None
    checkpoints: Tensor | None


@dataclass(frozen=True, slots=True)
class Call:
    """What a call is beside its tensors; bounds: of packed sequences. device: where its kernels run."""

    gate: str
    softplus: bool
    zoh: bool
    bounds: Sequence[int] | None
    device: torch.device

    def plan(self, pass_: str, operands: Operands, given: Saved, *streamed: Tensor) -> Plan:
        """The plan of a pass; streamed: what it reads beside x, Δ, k and q."""
        fused = Fusion(
            given.skip is not None, given.z is not None, given.bias is not None,
            self.softplus, self.zoh, self.bounds,
        )  # fmt: skip
        N = given.k.shape[2]
        streams = streamable(N, fused, *operands[:4], *streamed)
        return Plan.of(pass_, given.x, given.k, given.q, self.gate, fused, self.device, streams=streams)


def on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def kernel_operands(given: Saved) -> tuple[Operands, Fused]:
    """The operands and fused options as the kernels take them; contiguous are all but k, q and A."""
    A = None if given.A is None else given.A.contiguous()
    operands = Operands(given.x, given.delta, whole_words(given.k), whole_words(given.q), A)
    return operands, Fused(given.skip, given.z, given.bias)


class SelectiveScan(torch.autograd.Function):
    """x, Δ, k, q, A, S_0, skip, z, bias (from A on None if absent), gate, softplus, zoh, bounds → o, S_T.

    Saves all operands, and the states at checkpoints.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None,
        skip: Tensor | None, z: Tensor | None, bias: Tensor | None,
        gate: str, softplus: bool, zoh: bool, bounds: Sequence[int] | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, delta = x.contiguous(), delta.contiguous()
        skip, z, bias, state = (
            None if each is None else each.contiguous() for each in (skip, z, bias, state)
        )
        given = Saved(x, delta, k, q, A, skip, z, bias, None)
        call = Call(gate, softplus, zoh, bounds, x.device)
        operands, fused = kernel_operands(given)
        plan = call.plan("forward", operands, given)
        o = torch.empty_like(x)
        final = _final(plan, x, state, bounds)
        ctx.compiled = None
        if any(ctx.needs_input_grad):
            batches = 1 if bounds is not None else plan.B
            checkpoints = x.new_empty(batches, plan.checkpoints, plan.rows, plan.D, dtype=torch.float32)
            given = given._replace(checkpoints=checkpoints)
            if on_gpu(x):
                ctx.compiled = start(
                    _compiles_alike(call, plan, given),
                    partial(backward_without_memory, call, given, o, final),
                )
        ctx.save_for_backward(*given)
        ctx.call = call
        with torch.cuda.device_of(x):
            scan(plan, operands, fused, state, o, final, given.checkpoints)
        return o, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        wait(ctx.compiled)
        given = Saved(*ctx.saved_tensors)
        with torch.cuda.device_of(given.x):
            gradients = backward(ctx.call, given, do, dfinal)
        dx, ddelta, dk, dq, dA, dstate, *others = gradients
        return dx, ddelta, dk, dq, dA, dstate if ctx.needs_input_grad[5] else None, *others, *(None,) * 4


def backward(call: Call, given: Saved, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of x, Δ, k, q, A, S_0, skip, z and bias, from those of o and S_T."""
    arriving = Arriving(do.contiguous(), dfinal.contiguous())
    operands, fused = kernel_operands(given)
    plan = call.plan("backward", operands, given, arriving.o)
    assert given.checkpoints is not None
    part = scan_back(plan, operands, fused, given.checkpoints, arriving)
    dk, dq = part.kq.sum(1).movedim(3, 0).flatten(3)[..., : plan.N]
    dA = None if given.A is None else part.A.sum((0, 1))[: plan.N].t().to(given.A.dtype)
    dskip, dbias = (
        None if like is None else each.sum((0, 1)).to(like.dtype)
        for each, like in ((part.skip, given.skip), (part.bias, given.bias))
    )
    return (
        part.x,
        part.delta,
        dk.to(given.k.dtype),
        dq.to(given.q.dtype),
        dA,
        part.state,
        dskip,
        part.z,
        dbias,
    )


def backward_without_memory(call: Call, given: Saved, o: Tensor, final: Tensor) -> Callable[[], object]:
    """The backward pass on tensors without memory: its launches can only be compiled.

    o, final: results of forward; their gradients have the same shapes and dtypes.
    """
    meta = Saved(*(None if each is None else each.detach().to("meta") for each in given))
    do, dfinal = o.detach().to("meta"), final.detach().to("meta")

    def compute() -> None:
        with torch.cuda.device(call.device.index if call.device.type == "cuda" else -1):
            backward(call, meta, do, dfinal)

    return compute


def _compiles_alike(call: Call, plan: Plan, given: Saved) -> tuple[Any, ...]:
    """The key of calls whose backward passes launch the same kernels."""
    dtypes = tuple(None if each is None else each.dtype for each in given)
    described = (call.gate, call.softplus, call.zoh, call.device, call.bounds is None)
    return dtypes, *described, plan.streams, plan.segments > 1, str(plan.constants)


def _final(plan: Plan, x: Tensor, state: Tensor | None, bounds: Sequence[int] | None) -> Tensor:
    """Room for the final states; a packed sequence without steps keeps its own, for no program sees it."""
    if bounds is None:
        return x.new_empty(plan.B, plan.D, plan.N, dtype=torch.float32)
    if state is not None:
        return state.clone()
    return x.new_zeros(len(bounds) - 1, plan.D, plan.N, dtype=torch.float32)
