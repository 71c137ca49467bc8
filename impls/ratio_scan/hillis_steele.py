"""Step-efficient parallel prefix: each element absorbs the element 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); docs/recurrences.md#hillis_steele and #stabilised-ratio.
"""

from __future__ import annotations

import torch

from ssmperf.authoring import Shape, backend

from ..scan.common import rounds
from .common import Element, Operands, State, adjoint_scan, as_backend, combine


def doubling(elements: Element) -> State:
    """Compute all states (m, p, q), each (B, T, C), from elements (λ, m, u, z); λ may be (1, T, C).

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
    """Twelve operators and four copies per round."""
    return 16 * rounds(shape) + 40


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers of elements, and the exponentials and products of one round."""
    return 20 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="hillis_steele", launches=launches, workspace=workspace)
@as_backend
def hillis_steele(x: Operands) -> State:
    """Doubling strides over elements (λ, m, u, z): log2 T dependent steps, log2 T times the work."""
    return adjoint_scan(doubling, x)
