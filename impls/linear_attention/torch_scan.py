"""PyTorch's associative_scan over matrix states: an F1 scan of K·V channels a head.

The inclusion F2 ⊂ F1 of RECURRENCES.md §2.1: exact, and hungry for memory.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf import Shape, backend

from ..scan.torch_scan import torch_associative_scan
from .common import attend, by_scanning, matrix_bytes


def launches(shape: Shape) -> float:
    """The scan's, and those that form the elements and read the states."""
    return 24


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Copies of all T matrix states."""
    return 6 * matrix_bytes(shape, itemsize)


@backend("linear_attention", name="torch_scan", launches=launches, workspace=workspace)
def torch_scan(
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
    """torch's associative_scan over flattened states, compiled for CUDA tensors.

    Shapes, dtypes and results: see the recurrence `linear_attention`.
    """
    return attend(
        by_scanning(torch_associative_scan), q, k, v, log_a, log_b, initial_state, phase, bonus, read
    )
