"""PyTorch's own associative_scan operator over dense affine maps, without code generation.

A combine multiplies K × K matrices, which the operator's generated kernels cannot: this is for testing other
backends, not for speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch.autograd.function import once_differentiable

from ssmperf import Shape, backend

from ..scan.common import rounds
from .common import Operands, as_backend, dense_elements, element_bytes, read_out


def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Compose two maps S -> M S + W, `left` first."""
    return right[0] @ left[0], right[0] @ left[1] + right[1]


class Scan(torch.autograd.Function):
    """S_t = M_t S_{t-1} + W_t, whose backward is the same scan from the end, with transposed transitions.

    Λ_t = G_t + M_{t+1}ᵀ Λ_{t+1}; dW = Λ; dM_t = Λ_t S_{t-1}ᵀ; dS_0 = M_1ᵀ Λ_1. The operator's own autograd
    does not cover every device.
    """

    @staticmethod
    def forward(ctx: Any, transition: Tensor, write: Tensor, initial_state: Tensor) -> Tensor:
        states = _inclusive(transition, write, initial_state)
        ctx.save_for_backward(transition, initial_state, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        transition, initial_state, states = ctx.saved_tensors
        later = torch.cat([torch.zeros_like(transition[:, :1]), transition[:, 1:].flip(1)], dim=1).mT
        adjoint = _inclusive(later, grad.flip(1), torch.zeros_like(initial_state)).flip(1)
        before = torch.cat([initial_state.unsqueeze(1), states[:, :-1]], dim=1)
        return adjoint @ before.mT, adjoint, transition[:, 0].mT @ adjoint[:, 0]


def _inclusive(transition: Tensor, write: Tensor, initial_state: Tensor) -> Tensor:
    first = transition[:, :1] @ initial_state.unsqueeze(1) + write[:, :1]
    write = torch.cat([first, write[:, 1:]], dim=1)
    elements = (transition.contiguous(), write)
    states: Tensor = associative_scan(combine, elements, dim=1, combine_mode="generic")[1]
    return states


def launches(shape: Shape) -> float:
    """About a dozen operators per level of the recursion."""
    return 14 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of all steps and of every level of the recursion, and the states."""
    return 8 * element_bytes(shape, itemsize)


@backend("delta_rule", name="torch_scan", compiles_per_shape=True, launches=launches, workspace=workspace)
@as_backend
def torch_scan(x: Operands) -> tuple[Tensor, Tensor]:
    """torch's associative_scan over pairs (K × K transition, write)."""
    transition, write = dense_elements(x)
    states: Tensor = Scan.apply(transition, write, x.state)  # type: ignore[no-untyped-call]
    return read_out(x.q, states), states[:, -1]
