"""PyTorch's associative_scan over matrix states: a scan of K·V channels per head.

The inclusion F2 ⊂ F1 of docs/recurrences.md#inclusions: exact, and expensive in memory.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf import backend

from ..scan.torch_scan import torch_associative_scan
from .common import Operands, as_backend, by_scanning, copies_of_all_states


@backend(
    "linear_attention",
    name="torch_scan",
    compiles_per_shape=True,
    launches=lambda shape: 24,
    workspace=copies_of_all_states(6),
)
@as_backend
def torch_scan(x: Operands) -> tuple[Tensor, Tensor]:
    """torch's associative_scan over flattened states, compiled for CUDA tensors."""
    return by_scanning(torch_associative_scan, x)
