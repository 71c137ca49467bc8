"""PyTorch's own associative_scan operator over dense affine maps, without code generation.

A combine multiplies K × K matrices, which the operator's generated kernels cannot: this is for testing other
backends, not for speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from ssmperf.authoring import Shape, backend

from ..scan.common import rounds
from .common import Maps, Operands, applied, as_backend, composed, element_bytes, maps_of, read_out


class Scan(torch.autograd.Function):
    """S_t = M_t S_{t-1} + W_t, whose backward is the same scan from the end, with transposed transitions.

    M_t = diag(a_t) + C_t; Λ_t = G_t + M_{t+1}ᵀ Λ_{t+1}; dW = Λ; dC_t = Λ_t S_{t-1}ᵀ, whose diagonal is da_t;
    dS_0 = M_1ᵀ Λ_1. The operator's own autograd does not cover every device.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, correction: Tensor, write: Tensor, initial_state: Tensor) -> Tensor:
        states = _inclusive(Maps(decay, correction, write), initial_state)
        ctx.save_for_backward(decay, correction, initial_state, states)
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        decay, correction, initial_state, states = ctx.saved_tensors
        later_decay, later_correction = (
            torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:].flip(1)], dim=1) for x in (decay, correction.mT)
        )
        later = Maps(later_decay, later_correction, grad.flip(1))
        adjoint = _all_states(later, torch.zeros_like(initial_state)).flip(1)
        before = torch.cat([initial_state.unsqueeze(1), states[:, :-1]], dim=1)
        grad_state = decay[:, 0] * adjoint[:, 0] + correction[:, 0].mT @ adjoint[:, 0]
        return (adjoint * before).sum(-1, keepdim=True), adjoint @ before.mT, adjoint, grad_state


def _all_states(maps: Maps, initial_state: Tensor) -> Tensor:
    states: Tensor = Scan.apply(*maps, initial_state)  # type: ignore[no-untyped-call]
    return states


def _inclusive(maps: Maps, initial_state: Tensor) -> Tensor:
    first = applied(maps.at(slice(1)), initial_state.unsqueeze(1))
    write = torch.cat([first, maps.write[:, 1:]], dim=1)
    elements = Maps(maps.decay.contiguous(), maps.correction.contiguous(), write)
    states: Tensor = associative_scan(composed, elements, dim=1, combine_mode="generic")[2]
    return states


def launches(shape: Shape) -> float:
    """About forty operators per level of the recursion."""
    return 44 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of all steps and of every level of the recursion, and the states."""
    return 9 * element_bytes(shape, itemsize)


@backend("delta_rule", name="torch_scan", compiles_per_shape=True, launches=launches, workspace=workspace)
@as_backend
def torch_scan(x: Operands) -> tuple[Tensor, Tensor]:
    """torch's associative_scan over affine maps with K × K transitions."""
    states = _all_states(maps_of(x), x.state)
    return read_out(x.q, states), states[:, -1]
