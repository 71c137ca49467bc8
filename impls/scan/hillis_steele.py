"""Step-efficient parallel prefix: each element absorbs the element 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); docs/recurrences.md#hillis_steele.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend, rounds

Element = tuple[Tensor, Tensor]  # (a, b): the map h -> a⊙h + b


def combine(left: Element, right: Element) -> Element:
    """Compose two maps, `left` first."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def doubling(a: Tensor, b: Tensor, initial_state: Tensor) -> Tensor:
    """Compute all states h_t (B, T, ...) from gates a (B|1, T, ...) and inputs b (B, T, ...).

    Each round reads one buffer and writes the other: T log2 T - T + 1 combines in ceil(log2 T) rounds.
    """
    first = a[:, :1] * initial_state.unsqueeze(1) + b[:, :1]
    b = torch.cat([first, b[:, 1:]], dim=1)
    stride = 1
    while stride < b.shape[1]:
        combined = combine((a[:, :-stride], b[:, :-stride]), (a[:, stride:], b[:, stride:]))
        a = torch.cat([a[:, :stride], combined[0]], dim=1)
        b = torch.cat([b[:, :stride], combined[1]], dim=1)
        stride *= 2
    return b


def launches(shape: Shape) -> float:
    """Three operators and two copies per round."""
    return 5 * rounds(shape) + 8


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers for a and b, and the products of one round."""
    return 9 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend("scan", name="hillis_steele", launches=launches, workspace=workspace)
@as_backend
def hillis_steele(x: Operands) -> Tensor:
    """Doubling strides over pairs (gate, input), log2 T dependent steps, log2 T times the work."""
    return doubling(x.gates, x.b, x.state)
