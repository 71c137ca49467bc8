"""The scan by cumulative gate products and their inverse, which overflow: kept to show where.

GateLoop's eqs. 14-21 (Katsch, 2023) as printed; RECURRENCES.md §4.6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, Unsupported, backend

from .common import gate, operands, result

# log of the largest number of the dtype in which the published form holds its factors
SPAN_LIMIT = {torch.float16: 11.1, torch.bfloat16: 88.7, torch.float32: 88.7, torch.float64: 709.7}


def error_bound(span: float, dtype: str) -> float:
    """Relative error: the rounding of the log product becomes relative."""
    floor = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
    return max(floor, (1e-15 if dtype == "float64" else 4e-7) * span)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The product, its inverse, the scaled inputs and their sum."""
    return 5 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend(
    "scan",
    name="surrogate_raw",
    error_bound=error_bound,
    launches=lambda shape: 18,
    workspace=workspace,
)
def surrogate_raw(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = Π_t (h_0 + Σ_{s≤t} Π_s⁻¹ b_s) with Π_t the product of the gates up to t.

    Shapes, dtypes and results: see the recurrence `scan`.

    Raises:
        Unsupported: Σ -log_a passes 88.7 (float32, bfloat16), 11.1 (float16) or 709.7 (float64) in a channel,
            or a scaled input overflows, so Π⁻¹ is not finite.
    """
    limit = SPAN_LIMIT[b.dtype.to_real()]
    log_a, phase, inputs, state = operands(log_a, b, initial_state, phase)
    T = inputs.shape[1]
    L = log_a.expand(-1, T, -1).cumsum(1)
    angle = None if phase is None else phase.expand(-1, T, -1).cumsum(1)
    span = -L[:, -1].detach().min().item()
    if span > limit:
        raise Unsupported(f"decay span {span:.1f} is beyond {limit}: the inverse gate product overflows")
    undone = gate(-L, None if angle is None else -angle) * inputs
    total = undone.cumsum(1) + state.unsqueeze(1)
    if not bool(torch.isfinite(total.detach()).all()):
        raise Unsupported(f"inputs divided by the gate product overflow (decay span {span:.1f})")
    return result(gate(L, angle) * total, b)
