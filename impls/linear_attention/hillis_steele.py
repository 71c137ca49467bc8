"""Step-efficient parallel prefix over matrix states: a scan of K·V channels per head.

The inclusion F2 ⊂ F1 of docs/recurrences.md#inclusions: exact, and expensive in memory.
"""

from __future__ import annotations

from torch import Tensor

from ssmperf import backend

from ..scan.common import rounds
from ..scan.hillis_steele import doubling
from .common import Operands, as_backend, by_scanning, copies_of_all_states, of_gates


@backend(
    "linear_attention",
    name="hillis_steele",
    launches=lambda shape: 5 * rounds(shape) + 16,
    workspace=copies_of_all_states(5),
)
@as_backend
def hillis_steele(x: Operands) -> tuple[Tensor, Tensor]:
    """Doubling strides over flattened states, T·K·V numbers of memory."""
    return by_scanning(of_gates(doubling), x)
