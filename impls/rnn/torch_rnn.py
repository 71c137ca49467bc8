"""PyTorch's own fused GRU and LSTM: cuDNN on CUDA, its native loop on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ssmperf import Shape, Unsupported, backend

from .common import check


def fused(
    cell: str, x: Tensor, weights: tuple[Tensor, ...], state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """h (B, T, C) and the final state, each part (B, C), by one layer in one direction without dropout.

    The weights are copied into one buffer in the order that cuDNN wants, which it would do at every call.
    """
    flat = torch.cat([weight.flatten() for weight in weights])
    sizes = [weight.numel() for weight in weights]
    parts = [part.view(weight.shape) for part, weight in zip(flat.split(sizes), weights, strict=True)]
    begin = [part.unsqueeze(0).contiguous() for part in state]
    options = (True, 1, 0.0, torch.is_grad_enabled(), False, True)  # biases .. batch first
    if cell == "lstm":
        output, *final = torch.lstm(x, begin, parts, *options)
    else:
        output, *final = torch.gru(x, begin[0], parts, *options)
    return output, tuple(part.squeeze(0) for part in final)


def true_float32() -> AbstractContextManager[None]:
    """cuDNN's settings without TF32, which it uses for float32 otherwise."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, deterministic=torch.backends.cudnn.deterministic, allow_tf32=False
    )
    return flags


class Fused(torch.autograd.Function):
    """`fused` without TF32 in both directions.

    cuDNN reads its settings when it runs, so settings around the forward call alone would not reach backward.
    """

    @staticmethod
    def forward(ctx: Any, cell: str, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *tensors)]
        with torch.enable_grad(), true_float32():
            output, final = fused(cell, leaves[0], tuple(leaves[1:5]), tuple(leaves[5:]))
        ctx.leaves, ctx.results = leaves, (output, *final)
        return tuple(result.detach() for result in ctx.results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with true_float32():
            found = torch.autograd.grad(ctx.results, ctx.leaves, gradients, retain_graph=True)
        return None, *found


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The products with x, and what cuDNN reserves for backward: gates and states of all steps."""
    return 10 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


def error_bound(span: float, dtype: str) -> float:
    """In half types each step rounds the state, which adds up over the steps that it remembers."""
    return {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1.5e-1}[dtype]


@backend(
    "rnn",
    name="torch_rnn",
    deterministic=False,
    error_bound=error_bound,
    launches=lambda shape: 3 * shape["T"],
    workspace=workspace,
)
def torch_rnn(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
    initial_state: Tensor | None = None,
    *,
    cell: str = "gru",
) -> tuple[Tensor, Tensor]:
    """torch.gru or torch.lstm, in true float32; half types keep the state between steps in their precision.

    Shapes, dtypes and results: see the recurrence `rnn`. Not declared deterministic: some versions of cuDNN
    are not.

    Raises:
        Unsupported: weights of another dtype than x.
    """
    check(cell, weight_hh)
    weights = (weight_ih, weight_hh, bias_ih, bias_hh)
    if any(weight.dtype != x.dtype for weight in weights):
        raise Unsupported(f"x is {x.dtype}: the weights must be, too")
    parts = 2 if cell == "lstm" else 1
    if initial_state is None:
        state = (x.new_zeros(x.shape[0], weight_hh.shape[1]),) * parts
    else:
        state = tuple(initial_state.to(x.dtype).view(len(x), parts, -1).unbind(1))
    if torch.is_grad_enabled():
        output, *final = Fused.apply(cell, x, *weights, *state)  # type: ignore[no-untyped-call]
    else:
        with true_float32():
            output, final = fused(cell, x, weights, state)
    wide = torch.promote_types(x.dtype, torch.float32)
    last = final[0] if cell == "gru" else torch.stack(list(final), dim=1)
    return output, last.to(wide)
