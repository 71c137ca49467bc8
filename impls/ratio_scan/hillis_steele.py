"""Step-efficient parallel prefix: every element absorbs the one 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); RECURRENCES.md §4.4 and §4.10.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf import Shape, backend

from .common import Element, State, adjoint_scan, combine, operands, result


def doubling(elements: Element) -> State:
    """All states (m, p, q), each (B, T, C), of elements (λ, m, u, z); λ may be (1, T, C).

    Each round reads one buffer and writes the other: T log2 T - T + 1 combines in ceil(log2 T) rounds.
    """
    decay, m, u, z = elements
    stride = 1
    while stride < m.shape[1]:
        earlier = (decay[:, :-stride], m[:, :-stride], u[:, :-stride], z[:, :-stride])
        later = (decay[:, stride:], m[:, stride:], u[:, stride:], z[:, stride:])
        decay, m, u, z = (
            torch.cat([old[:, :stride], new], dim=1)
            for old, new in zip((decay, m, u, z), combine(earlier, later), strict=True)
        )
        stride *= 2
    return m, u, z


def launches(shape: Shape) -> float:
    """Twelve operators and four copies a round."""
    return 16 * math.ceil(math.log2(max(2, shape["T"]))) + 40


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers of elements, and a round's exponentials and products."""
    return 20 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="hillis_steele", launches=launches, workspace=workspace)
def hillis_steele(
    log_w: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, *, bonus: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Doubling strides over elements (λ, m, u, z): log2 T dependent steps, log2 T times the work.

    Shapes, dtypes and results: see the recurrence `ratio_scan`.
    """
    decay, keys, values, initial, bonus = operands(log_w, k, v, initial_state, bonus)
    states = adjoint_scan(doubling, decay, keys, values, initial)
    output, final = result(states, initial, keys, values, bonus)
    return output.to(v.dtype), final
