"""PyTorch's own associative_scan operator: eager on the CPU, a generated Triton kernel on CUDA."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from ssmperf.authoring import Shape, backend

from .common import Operands, adjoint_scan, as_backend, gate


def real_combine(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compose two maps h -> a h + b, `left` first; elements (a, b)."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def complex_combine(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compose two maps with elements (Re a, Im a, Re b, Im b): generated kernels know no complex numbers."""
    ar, ai, br, bi = left
    cr, ci, dr, di = right
    return ar * cr - ai * ci, ar * ci + ai * cr, cr * br - ci * bi + dr, cr * bi + ci * br + di


def torch_associative_scan(log_a: Tensor, phase: Tensor | None, b: Tensor, initial_state: Tensor) -> Tensor:
    """Compute all states h_t (B, T, ...), differentiably.

    The operator has no autograd of its own on CUDA, so the backward is a second scan from the end.
    """
    return adjoint_scan(_inclusive, log_a, phase, b, initial_state)


def _inclusive(log_a: Tensor, phase: Tensor | None, b: Tensor, initial_state: Tensor) -> Tensor:
    a = gate(log_a, phase)
    first = a[:, :1] * initial_state.unsqueeze(1) + b[:, :1]
    b = torch.cat([first, b[:, 1:]], dim=1)
    if not b.is_complex():
        return _scan((a.expand(b.shape).contiguous(), b), b.device.type)[-1]
    a = a.to(b.dtype).expand(b.shape)
    parts = (a.real, a.imag, b.real, b.imag)
    *_, real, imag = _scan(tuple(part.contiguous() for part in parts), b.device.type)
    return torch.complex(real, imag)


def _scan(elements: tuple[Tensor, ...], device_type: str) -> tuple[Tensor, ...]:
    combine = real_combine if len(elements) == 2 else complex_combine
    if device_type == "cpu":
        return tuple(associative_scan(combine, elements, dim=1, combine_mode="generic"))
    from torch._dynamo import config

    flat = tuple(part.flatten(2) for part in elements)
    # Every shape is compiled by itself: with symbolic sizes, the combine function would take sizes as inputs,
    # for which older releases of torch generate no code.
    with config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        return tuple(part.view(elements[0].shape) for part in _compiled(combine)(*flat))


@functools.cache
def _compiled(combine: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    def scan(*elements: Tensor) -> tuple[Tensor, ...]:
        return tuple(associative_scan(combine, elements, dim=1, combine_mode="pointwise"))

    return torch.compile(scan, fullgraph=True, dynamic=False)


def launches(shape: Shape) -> float:
    """One generated kernel on CUDA, and the kernels that form its operands."""
    return 14


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The gates of all elements, the inputs with h_0 folded in, and the scanned gates."""
    return 5 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("scan", name="torch_scan", compiles_per_shape=True, launches=launches, workspace=workspace)
@as_backend
def torch_scan(x: Operands) -> Tensor:
    """torch's associative_scan over pairs (gate, input), compiled for CUDA tensors.

    The first call with a shape on CUDA compiles.
    """
    return torch_associative_scan(x.log_a, x.phase, x.b, x.state)
