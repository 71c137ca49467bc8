"""Attention with keys divided by cumulative gate products, which overflow: kept to show where.

GateLoop's eqs. 14-21 (Katsch, 2023) as printed; docs/recurrences.md#surrogate_raw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, UnsupportedValues, backend

from ..scan.common import gate
from ..scan.surrogate_raw import SPAN_LIMIT, check_size, error_bound
from .common import Operands, as_backend, further_pieces, over_steps, scaled, tile_edges


def _inverse(log_a: Tensor | None, phase: Tensor | None) -> Tensor | None:
    """Compute Π⁻¹ of gates (..., T, F); None stands for 1."""
    if log_a is None:
        return None
    return gate(-log_a.cumsum(-2), None if phase is None else -phase.cumsum(-2))


def _check_span(log_gate: Tensor | None, dtype: torch.dtype) -> None:
    """Raise UnsupportedValues if log gates (..., T, F) add up to more than a dtype's factors can hold."""
    if log_gate is None:
        return
    limit = SPAN_LIMIT[dtype.to_real()]
    span = -log_gate.detach().double().sum(-2).min().item()
    if span > limit:
        raise UnsupportedValues(
            f"decay span {span:.1f} is beyond {limit}: the inverse gate product overflows"
        )


def serial_steps(shape: Shape, gate_kind: str) -> float:
    """Sums over time, a strided axis, for the product of the gates and for its inverse."""
    return (4 if gate_kind.endswith("_complex") else 2) * shape["T"]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The scores, and the scaled queries, keys and values."""
    tokens = shape["B"] * shape["H"] * shape["T"]
    return tokens * (2 * shape["T"] + 4 * (shape["K"] + shape["V"])) * max(4, itemsize)


@backend(
    "linear_attention",
    name="surrogate_raw",
    error_bound=error_bound,
    launches=lambda shape: 35 + 4 * further_pieces(shape),
    serial_steps=serial_steps,
    workspace=workspace,
)
@as_backend
def surrogate_raw(x: Operands) -> tuple[Tensor, Tensor]:
    """((Q⊙Π)(K⊙Π⁻¹)ᵀ ⊙ M) V with Π the products of the gates and M the causal mask.

    Raises:
        UnsupportedValues: Σ -log of a gate exceeds 88.7 (float32, bfloat16), 11.1 (float16) or 709.7
            (float64), or a scaled key or value overflows, or would beside gradients.
    """
    tile = x.by_head()
    _check_span(tile.log_a, x.dtype)
    _check_span(tile.log_b, x.dtype)
    alpha, beta, decay, write = tile_edges(tile)
    keys = scaled(tile.k, _inverse(tile.log_a, tile.phase))
    values = scaled(tile.v, _inverse(tile.log_b, None))
    scores = (scaled(tile.q, alpha) @ keys.mT).tril()
    output = over_steps(scores, values) + scaled(tile.q, alpha) @ x.state
    for each in (keys, values, output) if output.requires_grad else (output,):
        check_size(each, "keys or values divided by the gate product overflow")
    return scaled(output, beta).transpose(1, 2), scaled(x.state, decay) + write
