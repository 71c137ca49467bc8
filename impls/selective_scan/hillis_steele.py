"""Step-efficient parallel prefix over matrix states."""

from __future__ import annotations

import math

from torch import Tensor

from ssmperf import backend

from ..scan.hillis_steele import doubling
from .common import FORMING, Operands, Result, by_scanning, copies, of_gates, takes_operands


@backend(
    "selective_scan",
    name="hillis_steele",
    launches=lambda shape: 5 * math.ceil(math.log2(max(2, shape["T"]))) + FORMING,
    workspace=copies(6),
)
@takes_operands
def hillis_steele(operands: Operands, state: Tensor) -> Result:
    """Doubling strides over flattened states, T·D·N numbers of memory."""
    return by_scanning(of_gates(doubling), operands, state)
