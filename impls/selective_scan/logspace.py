"""Log-space scan over matrix states: an F1 scan of D·N channels.

The inclusion F3 ⊂ F1 of RECURRENCES.md §2.1: exact, and hungry for memory.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ssmperf import Shape, backend

from ..scan.logspace import error_bound, log_scan
from .common import by_scanning, matrix_bytes, of_logs


def launches(shape: Shape) -> float:
    """The scan's, and those that form the elements and read the states."""
    return 46


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Copies of all T matrix states, twice as wide where they are complex."""
    return 9 * matrix_bytes(shape, itemsize) * (2 if gate_kind.endswith("complex") else 1)


@backend("selective_scan", name="logspace", error_bound=error_bound, launches=launches, workspace=workspace)
def logspace(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None = None,
    initial_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Heinsen's scan over flattened states; its error grows with the decay span.

    Shapes, dtypes, options and results: see the recurrence `selective_scan`.

    Raises:
        Unsupported: Σ -log of the gates exceeds 10⁴ in an element (10⁶ in float64).
    """
    return by_scanning(of_logs(log_scan), x, delta, k, q, A, initial_state, **options)
