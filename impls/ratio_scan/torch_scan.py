"""PyTorch's own associative_scan operator: eager on the CPU, a generated Triton kernel on CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from ssmperf import Shape, backend

from .common import Element, State, adjoint_scan, combine, operands, result


def inclusive(elements: Element) -> State:
    """All states (m, p, q), each (B, T, C), of elements (λ, m, u, z); λ may be (1, T, C)."""
    decay, m, u, z = elements
    parts = tuple(part.contiguous() for part in (decay.expand(m.shape), m, u, z))
    if m.device.type == "cpu":
        return tuple(associative_scan(combine, parts, dim=1, combine_mode="generic")[1:])
    from torch._dynamo import config

    # every shape compiles anew: with symbolic sizes the operator's combine function would take sizes as
    # inputs, for which older releases of torch generate no code
    with config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        return tuple(_compiled()(*parts)[1:])


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, ...]]:
    def scan(*elements: Tensor) -> tuple[Tensor, ...]:
        return tuple(associative_scan(combine, elements, dim=1, combine_mode="pointwise"))

    return torch.compile(scan, fullgraph=True, dynamic=False)


def launches(shape: Shape) -> float:
    """One generated kernel on CUDA, and those that form its operands and read its states."""
    return 36


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Elements with decays expanded, the scanned elements, and the readout's exponentials."""
    return 14 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="torch_scan", launches=launches, workspace=workspace)
def torch_scan(
    log_w: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, *, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """torch's associative_scan over elements (λ, m, u, z), compiled for CUDA tensors; backward alike.

    Shapes, dtypes and results: see the recurrence `ratio_scan`. The first call of a shape on CUDA compiles.
    """
    decay, keys, values, initial, bonus = operands(log_w, k, v, initial_state, bonus)
    states = adjoint_scan(inclusive, decay, keys, values, initial)
    output, final = result(states, initial, keys, values, bonus)
    return output.to(v.dtype), final
