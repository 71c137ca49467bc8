"""Step-efficient parallel prefix over matrix states: an F1 scan of D·N channels.

The inclusion F3 ⊂ F1 of RECURRENCES.md §2.1: exact, and hungry for memory.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ssmperf import Shape, backend

from ..scan.hillis_steele import doubling
from .common import by_scanning, matrix_bytes, of_gates


def launches(shape: Shape) -> float:
    """The scan's, and those that form the elements and read the states."""
    return 5 * math.ceil(math.log2(max(2, shape["T"]))) + 24


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Copies of all T matrix states, twice as wide where they are complex."""
    return 6 * matrix_bytes(shape, itemsize) * (2 if gate_kind.endswith("complex") else 1)


@backend("selective_scan", name="hillis_steele", launches=launches, workspace=workspace)
def hillis_steele(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None = None,
    initial_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Doubling strides over flattened states, T·D·N numbers of memory.

    Shapes, dtypes, options and results: see the recurrence `selective_scan`.
    """
    return by_scanning(of_gates(doubling), x, delta, k, q, A, initial_state, **options)
