"""Log-space scan over matrix states."""

from __future__ import annotations

from torch import Tensor

from ssmperf import backend

from ..scan.logspace import error_bound, log_scan, serial_steps
from .common import FORMING, Operands, Result, by_scanning, copies, of_logs, takes_operands


@backend(
    "selective_scan",
    name="logspace",
    error_bound=error_bound,
    launches=lambda shape: 22 + FORMING,
    serial_steps=serial_steps,
    workspace=copies(9),
)
@takes_operands
def logspace(operands: Operands, state: Tensor) -> Result:
    """Heinsen's scan over flattened states; its error grows with the decay span.

    Raises:
        Unsupported: Σ -log of the gates exceeds 10⁴ in an element (10⁶ in float64).
    """
    return by_scanning(of_logs(log_scan), operands, state)
