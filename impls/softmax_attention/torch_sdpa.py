"""PyTorch's scaled_dot_product_attention, which chooses among its own kernels.

Without a forget gate and a cache it is causal by declaration, which all fused kernels (flash, cuDNN,
memory-efficient) take. Several queries on a cache need a mask. A forget gate is a bias of T × (S + T) numbers
per head, in float32 whatever the data, since rounding it to a half type would give other weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, Unsupported, backend

from .._autograd import once_differentiable
from ..scan.common import differentiates
from .common import Operands, as_backend, biases


def launches(shape: Shape) -> float:
    """The attention, the cache, and the bias of a forget gate."""
    return 24


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The cache and the output; with a forget gate also the bias and the two arrays that it is made of."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    keys = T + shape.get("S", 0)
    bias = 0 if gate_kind == "none" else 3 * T * keys
    return B * H * (bias + keys * 2 * (K + V) + T * V) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Operands and output; with a forget gate the bias, and the weights where no fused kernel takes it."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    pairs = 0 if gate_kind == "none" else 2 * T**2
    return B * H * (pairs + T * (2 * K + 2 * V)) * max(4, itemsize)


NO_KERNEL = "no kernel found to launch"  # what torch says under a forget gate in float32 with narrow heads


@backend(
    "softmax_attention",
    name="torch_sdpa",
    deterministic=False,  # fused kernels add up the gradients of q in no fixed order
    launches=launches,
    workspace=workspace,
    saved=saved,
)
@functools.partial(as_backend, wide=False)
def torch_sdpa(x: Operands) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, fused without a forget gate.

    Raises:
        Unsupported: torch finds none of its kernels to be fit.
    """
    q, keys, values = (_rows(each) for each in (x.q, x.keys, x.values))
    bias = None if x.log_f is None else biases(x.log_f, x.log_past)
    if differentiates(q, keys, values, bias):
        q, keys, values, bias = Once.apply(q, keys, values, bias, x.log_f, x.log_past)  # type: ignore[no-untyped-call]

    def attention(**options: Any) -> Tensor:
        try:
            output = functional.scaled_dot_product_attention(q, keys, values, scale=1.0, **options)
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            raise Unsupported(f"torch has no kernel for these operands: {error}") from error
        if output.requires_grad:
            output.register_hook(functools.partial(_with_strides, strides=output.stride()))
        return output

    if bias is not None:
        return attention(attn_mask=bias)
    if x.T == 1:
        return attention()  # the only query sees every key
    if x.S:
        everything = torch.ones(x.T, x.S + x.T, dtype=torch.bool, device=q.device)
        return attention(attn_mask=everything.tril(x.S))  # is_causal would align the first query and key
    return attention(is_causal=True)


class Once(torch.autograd.Function):
    """q, keys, values and bias as they are, with gradients that fused kernels let nobody differentiate.

    log_f and log_past, which determine the bias, are saved in its place.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, *gates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(q, keys, values, *gates)
        return q, keys, values, bias

    @staticmethod
    @once_differentiable("softmax_attention/torch_sdpa")
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return *gradients, None, None


def _with_strides(gradient: Tensor, strides: Sequence[int]) -> Tensor:
    """Copy an incoming gradient (B, H, T, V) whose strides are not the output's.

    A fused kernel of torch 2.11 takes them for the output's in bfloat16 on an H100: gradients of q are off by
    60 times their tolerance, also for a copy whose heads come before its steps.
    """
    if gradient.stride() == strides:
        return gradient
    return gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)


def _rows(x: Tensor) -> Tensor:
    """Copy an operand whose channels are not next to one another, which no fused kernel takes."""
    return x if x.stride(-1) == 1 else x.contiguous()
