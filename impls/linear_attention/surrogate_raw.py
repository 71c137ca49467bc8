"""Attention with keys divided by cumulative gate products, which overflow: kept to show where.

GateLoop's eqs. 14-21 (Katsch, 2023) as printed; RECURRENCES.md §4.6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, Unsupported, backend

from ..scan.common import gate
from ..scan.surrogate_raw import SPAN_LIMIT, error_bound
from .common import attend, by_head, scaled, tile_edges


def _surrogate_raw(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    phase: Tensor | None,
    log_b: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    T = q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    log_a, phase, log_b = by_head(log_a, T), by_head(phase, T), by_head(log_b, T)
    alpha, beta, decay, write = tile_edges(k, v, log_a, phase, log_b)
    scores = (scaled(q, alpha) @ scaled(k, _inverse(log_a, phase)).mT).tril()
    output = scores @ scaled(v, _inverse(log_b, None)) + scaled(q, alpha) @ state
    if not bool(torch.isfinite(output.detach()).all()):
        raise Unsupported("keys or values divided by the gate product overflow")
    return scaled(output, beta).transpose(1, 2), scaled(state, decay) + write


def _inverse(log_a: Tensor | None, phase: Tensor | None) -> Tensor | None:
    if log_a is None:
        return None
    return gate(-log_a.cumsum(-2), None if phase is None else -phase.cumsum(-2))


def _check_span(dtype: torch.dtype, T: int, *log_gates: Tensor | None) -> None:
    limit = SPAN_LIMIT[dtype.to_real()]
    for log_gate in log_gates:
        if log_gate is None:
            continue
        constant = log_gate.dim() <= 2
        total = log_gate.detach().double() * T if constant else log_gate.detach().double().sum(1)
        span = -total.min().item()
        if span > limit:
            raise Unsupported(f"decay span {span:.1f} is beyond {limit}: the inverse gate product overflows")


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Scores, and the scaled queries, keys and values."""
    tokens = shape["B"] * shape["H"] * shape["T"]
    return tokens * (2 * shape["T"] + 4 * (shape["K"] + shape["V"])) * max(4, itemsize)


@backend(
    "linear_attention",
    name="surrogate_raw",
    error_bound=error_bound,
    launches=lambda shape: 35,
    workspace=workspace,
)
def surrogate_raw(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
) -> tuple[Tensor, Tensor]:
    """((Q⊙Π)(K⊙Π⁻¹)ᵀ ⊙ M) V with Π the products of the gates and M the causal mask.

    Shapes, dtypes and results: see the recurrence `linear_attention`.

    Raises:
        Unsupported: Σ -log of a gate passes 88.7 (float32, bfloat16), 11.1 (float16) or 709.7 (float64), or a
            scaled key or value overflows.
    """
    _check_span(v.dtype, v.shape[1], log_a, log_b)
    return attend(_surrogate_raw, q, k, v, log_a, log_b, initial_state, phase, bonus, read)
