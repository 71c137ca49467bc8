"""Work-efficient parallel prefix over matrix states."""

from __future__ import annotations

import math

from torch import Tensor

from ssmperf import backend

from ..scan.blelloch import sweep
from .common import FORMING, Operands, Result, by_scanning, copies, of_gates, takes_operands


@backend(
    "selective_scan",
    name="blelloch",
    launches=lambda shape: 8 * math.ceil(math.log2(max(2, shape["T"]))) + FORMING,
    workspace=copies(7),
)
@takes_operands
def blelloch(operands: Operands, state: Tensor) -> Result:
    """Up- and down-sweep over flattened states, T·D·N numbers of memory."""
    return by_scanning(of_gates(sweep), operands, state)
