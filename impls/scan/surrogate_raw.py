"""The scan by cumulative gate products and their inverse, which overflow: kept to show where.

GateLoop's eqs. 14-21 (Katsch, 2023) as printed; docs/recurrences.md#surrogate_raw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, UnsupportedValues, backend

from .common import Operands, as_backend, gate, over_time

# log of the largest number of each dtype, in which the published form holds its factors
SPAN_LIMIT = {torch.float16: 11.1, torch.bfloat16: 88.7, torch.float32: 88.7, torch.float64: 709.7}

ROOM = 2.0**10  # how much larger than inputs over gate products their products with gradients may be


def error_bound(span: float, dtype: str) -> float:
    """Bound the relative error of a gate product: the absolute rounding error of its log."""
    floor = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
    return max(floor, (1e-15 if dtype == "float64" else 4e-7) * span)


def serial_steps(shape: Shape, gate_kind: str) -> float:
    """Sums over time, a strided axis: of the gates, the phases and the scaled inputs."""
    return (3 if gate_kind.endswith("_complex") else 2) * shape["T"]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The product, its inverse, the scaled inputs and their sum."""
    return 5 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend(
    "scan",
    name="surrogate_raw",
    error_bound=error_bound,
    launches=lambda shape: 18,
    serial_steps=serial_steps,
    workspace=workspace,
)
@as_backend
def surrogate_raw(x: Operands) -> Tensor:
    """h_t = Π_t (h_0 + Σ_{s≤t} Π_s⁻¹ b_s) with Π_t the product of the gates up to t.

    Raises:
        UnsupportedValues: Σ -log_a of a channel exceeds 88.7 (float32, bfloat16), 11.1 (float16) or 709.7
            (float64), so that Π⁻¹ is not finite, or a scaled input overflows, or would beside gradients.
    """
    limit = SPAN_LIMIT[x.dtype.to_real()]
    L = over_time(x.log_a, x.T).cumsum(1)
    angle = None if x.phase is None else over_time(x.phase, x.T).cumsum(1)
    span = -L[:, -1].detach().min().item()
    if span > limit:
        raise UnsupportedValues(
            f"decay span {span:.1f} is beyond {limit}: the inverse gate product overflows"
        )
    undone = gate(-L, None if angle is None else -angle) * x.b
    total = undone.cumsum(1) + x.state.unsqueeze(1)
    check_size(total, f"inputs divided by the gate product overflow (decay span {span:.1f})")
    return gate(L, angle) * total


def check_size(x: Tensor, message: str) -> None:
    """Refuse numbers that are not finite, or whose products with gradients might not be.

    Raises:
        UnsupportedValues: there is one.
    """
    limit = torch.finfo(x.dtype.to_real()).max / (ROOM if x.requires_grad else 1.0)
    largest = torch.linalg.vector_norm(x.detach(), ord=float("inf"))
    if not bool(largest <= limit):  # NaN is not
        raise UnsupportedValues(message + (" in the backward pass" if x.requires_grad else ""))
