"""Log-space scan over matrix states: a scan of K·V channels per head.

The inclusion F2 ⊂ F1 of docs/recurrences.md#inclusions: exact, and expensive in memory.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf import backend

from ..scan.logspace import error_bound, log_scan, serial_steps
from .common import Operands, as_backend, by_scanning, copies_of_all_states


@backend(
    "linear_attention",
    name="logspace",
    error_bound=error_bound,
    launches=lambda shape: 36,
    serial_steps=serial_steps,
    workspace=copies_of_all_states(8),
)
@as_backend
def logspace(x: Operands) -> tuple[Tensor, Tensor]:
    """Heinsen's scan over flattened states; its error grows with the decay span.

    Raises:
        Unsupported: Σ -log of the gates of a channel exceeds 10⁴ (10⁶ in float64).
    """
    return by_scanning(log_scan, x)
