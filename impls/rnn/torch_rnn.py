"""PyTorch's own fused GRU and LSTM: cuDNN on CUDA, its native loop on the CPU."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .._autocast import without_autocast
from .._autograd import once_differentiable
from .common import check


def fused(
    cell: str, x: Tensor, weights: tuple[Tensor, ...], state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute h (B, T, C) and the parts (B, C) of the final state by one layer, without dropout.

    The weights are copied into one buffer in cuDNN's order; otherwise cuDNN would copy them at every call.
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
    """Forbid cuDNN to compute float32 in TF32, its default."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, deterministic=torch.backends.cudnn.deterministic, allow_tf32=False
    )
    return flags


class Fused(torch.autograd.Function):
    """`fused` without TF32 in forward and backward.

    cuDNN reads its settings when it runs: settings around the forward call would not hold in backward.
    """

    @staticmethod
    def forward(ctx: Any, cell: str, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *tensors)]
        with torch.enable_grad(), true_float32():
            output, final = fused(cell, leaves[0], tuple(leaves[1:5]), tuple(leaves[5:]))
        ctx.save_for_backward(x, *tensors)  # which the leaves are views of
        ctx.leaves, ctx.results = leaves, (output, *final)
        return tuple(result.detach() for result in ctx.results)

    @staticmethod
    @once_differentiable("rnn/torch_rnn")
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with true_float32():
            found = torch.autograd.grad(ctx.results, ctx.leaves, gradients, retain_graph=True)
        return None, *found


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The products with x, and the gates and states of all steps, which cuDNN keeps for backward."""
    return 10 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


def error_bound(span: float, dtype: str) -> float:
    """Bound the relative error. In half types each step rounds the state, and these errors add up.

    In float32 cuDNN's LSTM reaches 6e-5, where torch's own loop stays below 1e-5.
    """
    return {"float64": 1e-12, "float32": 1.2e-4, "float16": 2e-2, "bfloat16": 1.5e-1}[dtype]


@backend(
    "rnn",
    name="torch_rnn",
    deterministic=False,
    error_bound=error_bound,
    launches=lambda shape: 3 * shape["T"],
    workspace=workspace,
)
@without_autocast
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
    """torch.gru or torch.lstm, in true float32; with half types on CUDA, the state between steps is half.

    Shapes, dtypes and results: see the recurrence `rnn`. The dtype computed in is the operands' widest. Not
    declared deterministic, since some versions of cuDNN are not.
    """
    check(cell, weight_hh)
    dtype = working_dtype(x, weight_ih, weight_hh, bias_ih, bias_hh)
    weights = tuple(weight.to(dtype) for weight in (weight_ih, weight_hh, bias_ih, bias_hh))
    parts = 2 if cell == "lstm" else 1
    if initial_state is None:
        state = (weights[0].new_zeros(x.shape[0], weight_hh.shape[1]),) * parts
    else:
        state = tuple(initial_state.to(dtype).view(len(x), parts, -1).unbind(1))
    if torch.is_grad_enabled():
        output, *final = Fused.apply(cell, x.to(dtype), *weights, *state)  # type: ignore[no-untyped-call]
    else:
        with true_float32():
            output, final = fused(cell, x.to(dtype), weights, state)
    wide = torch.promote_types(x.dtype, torch.float32)
    last = final[0] if cell == "gru" else torch.stack(list(final), dim=1)
    return output.to(x.dtype), last.to(wide)


def working_dtype(*operands: Tensor) -> torch.dtype:
    """Choose the dtype that torch computes in: the widest of the operands, and on a CPU float32 at least.

    torch's CPU kernels round the gates of half types to half, and then 1 − z is lost where z is near 1.
    """
    dtypes = [operand.dtype for operand in operands]
    if operands[0].device.type == "cpu":
        dtypes.append(torch.float32)
    return functools.reduce(torch.promote_types, dtypes)
