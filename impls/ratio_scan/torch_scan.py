"""PyTorch's own associative_scan operator: eager on the CPU, a generated Triton kernel on CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from ssmperf.authoring import Shape, backend

from .common import Element, Operands, State, adjoint_scan, as_backend, combine


def inclusive(elements: Element) -> State:
    """Compute all states (m, p, q), each (B, T, C), from elements (λ, m, u, z); λ may be (1, T, C)."""
    decay, m, u, z = elements
    parts = tuple(part.contiguous() for part in (decay.expand(m.shape), m, u, z))
    if m.device.type == "cpu":
        _, m, u, z = associative_scan(combine, parts, dim=1, combine_mode="generic")
        return m, u, z
    from torch._dynamo import config

    # Every shape is compiled by itself: with symbolic sizes, the combine function would take sizes as inputs,
    # for which older releases of torch generate no code.
    with config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        _, m, u, z = _compiled()(*parts)
    return m, u, z


@functools.cache
def _compiled() -> Callable[..., tuple[Tensor, ...]]:
    def scan(*elements: Tensor) -> tuple[Tensor, ...]:
        return tuple(associative_scan(combine, elements, dim=1, combine_mode="pointwise"))

    return torch.compile(scan, fullgraph=True, dynamic=False)


def launches(shape: Shape) -> float:
    """One generated kernel on CUDA, and the kernels that form its operands and read its states."""
    return 36


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Elements with the decays of all steps, the scanned elements, and the exponentials of the read."""
    return 14 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="torch_scan", compiles_per_shape=True, launches=launches, workspace=workspace)
@as_backend
def torch_scan(x: Operands) -> State:
    """torch's associative_scan over elements (λ, m, u, z), compiled for CUDA tensors.

    The backward pass is another such scan. The first call with a shape on CUDA compiles.
    """
    return adjoint_scan(inclusive, x)
