"""Work-efficient parallel prefix: an up-sweep of block sums, a down-sweep of block prefixes.

Blelloch, Prefix sums and their applications (1990); docs/recurrences.md#blelloch and #stabilised-ratio.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from ..scan.common import rounds
from .common import EMPTY, Element, Operands, State, adjoint_scan, as_backend, combine, follow


def sweep(elements: Element) -> State:
    """Compute all states (m, p, q), each (B, T, C), from elements (λ, m, u, z); λ may be (1, T, C).

    2(N-1) + T combines for N, the next power of two of T. Prefixes need no decay: they start from nothing.
    """
    T = elements[1].shape[1]
    sums = _padded(elements, (1 << (T - 1).bit_length()) - T)
    left_sums = []
    while sums[1].shape[1] > 1:
        left, right = _halves(sums)
        left_sums.append(left)
        sums = combine(left, right)
    _, m, u, z = sums
    prefix: State = (torch.full_like(m, EMPTY), torch.zeros_like(u), torch.zeros_like(z))
    for left in reversed(left_sums):
        prefix = _interleave(prefix, follow(prefix, left))
    m, p, q = prefix
    return follow((m[:, :T], p[:, :T], q[:, :T]), elements)


def _padded(elements: Element, missing: int) -> Element:
    """Append steps, whose values reach no state that is read."""
    decay, m, u, z = (functional.pad(part, (0, 0, 0, missing)) for part in elements)
    return decay, m, u, z


def _halves(elements: Element) -> tuple[Element, Element]:
    decay, m, u, z = elements
    left = (decay[:, 0::2], m[:, 0::2], u[:, 0::2], z[:, 0::2])
    return left, (decay[:, 1::2], m[:, 1::2], u[:, 1::2], z[:, 1::2])


def _interleave(even: State, odd: State) -> State:
    m, p, q = (torch.stack(parts, dim=2).flatten(1, 2) for parts in zip(even, odd, strict=True))
    return m, p, q


def launches(shape: Shape) -> float:
    """Twelve operators per level upwards and fourteen downwards."""
    return 26 * rounds(shape) + 40


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Elements, block sums and prefixes at a length padded to a power of two; the exponentials of a level."""
    N = 1 << (shape["T"] - 1).bit_length()
    return 22 * shape["B"] * N * shape["C"] * max(4, itemsize)


@backend("ratio_scan", name="blelloch", launches=launches, workspace=workspace)
@as_backend
def blelloch(x: Operands) -> State:
    """Up- and down-sweep over elements (λ, m, u, z), 2 log2 T dependent steps, any length."""
    return adjoint_scan(sweep, x)
