"""Work-efficient parallel prefix: an up-sweep of block sums, a down-sweep of block prefixes.

Blelloch, Prefix sums and their applications (1990); docs/recurrences.md#blelloch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend, rounds

Element = tuple[Tensor, Tensor]  # (a, b): the map h -> a⊙h + b


def combine(left: Element, right: Element) -> Element:
    """Compose two maps, `left` first. Associative, not commutative."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def sweep(a: Tensor, b: Tensor, initial_state: Tensor) -> Tensor:
    """Compute all states h_t (B, T, ...) from gates a (B|1, T, ...) and inputs b (B, T, ...).

    2(N-1) + T combines for N, the next power of two of T. Starting the down-sweep from the constant map h_0
    instead of the identity makes every prefix start from h_0.
    """
    T = b.shape[1]
    missing = (1 << (T - 1).bit_length()) - T
    tail = (0, 0) * (b.dim() - 2) + (0, missing)
    sums = (functional.pad(a, tail, value=1.0), functional.pad(b, tail))
    left_sums = []
    while sums[0].shape[1] > 1:
        left, right = _halves(sums)
        left_sums.append(left)
        sums = combine(left, right)
    prefix = (torch.ones_like(a[:, :1]), initial_state.unsqueeze(1))
    for left in reversed(left_sums):
        through_left = combine(prefix, left)
        prefix = (_interleave(prefix[0], through_left[0]), _interleave(prefix[1], through_left[1]))
    return combine((prefix[0][:, :T], prefix[1][:, :T]), (a, b))[1]


def _halves(element: Element) -> tuple[Element, Element]:
    a, b = element
    return (a[:, 0::2], b[:, 0::2]), (a[:, 1::2], b[:, 1::2])


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    return torch.stack([even, odd], dim=2).flatten(1, 2)


def launches(shape: Shape) -> float:
    """Three operators per level upwards and five downwards."""
    return 8 * rounds(shape) + 8


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Block sums and prefixes of a and b, at a length padded to a power of two."""
    N = 1 << (shape["T"] - 1).bit_length()
    return 11 * shape["B"] * N * shape["C"] * max(4, itemsize)


@backend("scan", name="blelloch", launches=launches, workspace=workspace)
@as_backend
def blelloch(x: Operands) -> Tensor:
    """Up- and down-sweep over pairs (gate, input), 2 log2 T dependent steps, any length."""
    return sweep(x.gates, x.b, x.state)
