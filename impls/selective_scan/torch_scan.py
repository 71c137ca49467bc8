"""PyTorch's associative_scan over matrix states."""

from __future__ import annotations

from torch import Tensor

from ssmperf import backend

from ..scan.torch_scan import torch_associative_scan
from .common import FORMING, Operands, Result, by_scanning, copies, of_logs, takes_operands


@backend(
    "selective_scan",
    name="torch_scan",
    compiles_per_shape=True,
    launches=lambda shape: 10 + FORMING,
    workspace=copies(7),
)
@takes_operands
def torch_scan(operands: Operands, state: Tensor) -> Result:
    """torch's associative_scan over flattened states, compiled for CUDA tensors."""
    return by_scanning(of_logs(torch_associative_scan), operands, state)
