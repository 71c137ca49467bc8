"""The autograd function around the planned passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._autograd import once_differentiable, tie
from ..._triton.ahead import wait
from ..._triton.plan import packed as contiguous  # here, packed are sequences
from .groups import Gradients
from .passes import backward_pass, forward_pass
from .schedule import Call


class Saved(NamedTuple):
    """Tensors kept for backward: the checkpoints; k, q and A as given, and the others contiguous."""

    x: Tensor
    delta: Tensor
    k: Tensor
    q: Tensor
    A: Tensor | None
    skip: Tensor | None
    z: Tensor | None
    bias: Tensor | None
    bounds: Tensor | None
    checkpoints: Tensor | None


class SelectiveScan(torch.autograd.Function):
    """x, Δ, k, q, A, S_0, skip, z, bias (from A on None if absent), call, saves → o, S_T.

    saves: whether to save all operands, and the states at checkpoints, for a backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None,
        skip: Tensor | None, z: Tensor | None, bias: Tensor | None, bounds: Tensor | None, call: Call,
        saves: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        operands = (x, delta, state, skip, z, bias)
        x, delta, state, skip, z, bias = contiguous(x), contiguous(delta), *map(dense, (state, skip, z, bias))
        final = None if bounds is None else _final(x, k, state, bounds)
        o, final, checkpoints, ctx.compiled = forward_pass(
            x, delta, whole_words(k), whole_words(q), dense(A), state, skip, z, bias, final, bounds,
            N=k.shape[-1], call=call, saves=saves,
        )  # fmt: skip
        if checkpoints is not None:
            saved = Saved(x, delta, k, q, A, skip, z, bias, bounds, checkpoints)
            ctx.save_for_backward(*saved, tie(final, operands, saved))
            ctx.call = call
        return o, final

    @staticmethod
    @once_differentiable("selective_scan/triton")
    def backward(ctx: Any, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        wait(ctx.compiled)
        *saved, _ = ctx.saved_tensors
        return *gradients(ctx.call, Saved(*saved), do, dfinal, ctx.needs_input_grad[5]), None, None, None


def gradients(
    call: Call, saved: Saved, do: Tensor, dfinal: Tensor, to_state: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of x, Δ, k, q, A, S_0 (None unless `to_state`), skip, z, bias, from those of o and S_T."""
    x, delta, k, q, A, skip, z, bias, bounds, checkpoints = saved
    dfinal = contiguous(dfinal)
    part = Gradients(
        *backward_pass(
            x, delta, whole_words(k), whole_words(q), dense(A), skip, z, bias, checkpoints,
            contiguous(do), dfinal, None if bounds is None else dfinal.clone(), bounds,
            N=k.shape[2], call=call,
        )
    )  # fmt: skip
    dk, dq = part.kq.sum(1).unbind(3)
    dA = None if A is None else part.A.sum((0, 1))[: k.shape[2]].t().to(A.dtype)
    dskip = None if skip is None else part.skip.sum((0, 1)).to(skip.dtype)
    dbias = None if bias is None else part.bias.sum((0, 1)).to(bias.dtype)
    dstate = part.state if to_state else None
    return part.x, part.delta, _states_of(dk, k), _states_of(dq, q), dA, dstate, dskip, part.z, dbias


def dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else contiguous(x)


def whole_words(k: Tensor) -> Tensor:
    """k or q (B, T, N) in rows of whole words of 8 bytes, contiguous, filled up with zeros."""
    missing = -k.shape[-1] % (8 // k.element_size() or 1)
    if missing:
        k = torch.nn.functional.pad(k, (0, missing))
    k = contiguous(k)
    return k.clone() if k.data_ptr() % 8 else k


def _states_of(sums: Tensor, like: Tensor) -> Tensor:
    """The gradient of k or q from sums (B, T, G, M) per group and state."""
    return sums.to(like.dtype).flatten(2)[..., : like.shape[2]]


def _final(x: Tensor, k: Tensor, state: Tensor | None, bounds: Tensor) -> Tensor:
    """Room for packed sequences' final states; one without steps keeps its own, since no program sees it."""
    if state is not None:
        return state.clone()
    return x.new_zeros(bounds.shape[0] - 1, x.shape[2], k.shape[2], dtype=torch.float32)
