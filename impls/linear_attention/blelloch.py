"""Work-efficient parallel prefix over matrix states: an F1 scan of K·V channels a head.

The inclusion F2 ⊂ F1 of RECURRENCES.md §2.1: exact, and hungry for memory.
"""

from __future__ import annotations

import math

from torch import Tensor

from ssmperf import Shape, backend

from ..scan.blelloch import sweep
from .common import attend, by_scanning, matrix_bytes, of_gates


def launches(shape: Shape) -> float:
    """The scan's, and those that form the elements and read the states."""
    return 8 * math.ceil(math.log2(max(2, shape["T"]))) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Copies of all T matrix states."""
    return 7 * matrix_bytes(shape, itemsize)


@backend("linear_attention", name="blelloch", launches=launches, workspace=workspace)
def blelloch(
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
    """Up- and down-sweep over flattened states, T·K·V numbers of memory.

    Shapes, dtypes and results: see the recurrence `linear_attention`.
    """
    return attend(by_scanning(of_gates(sweep)), q, k, v, log_a, log_b, initial_state, phase, bonus, read)
