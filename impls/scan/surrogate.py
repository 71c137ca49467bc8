"""The whole scan as one lower-triangular T × T matrix per channel, all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023); docs/recurrences.md#surrogate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from .common import Operands, as_backend, gate, over_time, transfer


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Segment sums and their masked exponentials."""
    return 2 * shape["B"] * shape["T"] ** 2 * shape["C"] * max(4, itemsize)


@backend("scan", name="surrogate", launches=lambda shape: 20, workspace=workspace)
@as_backend
def surrogate(x: Operands) -> Tensor:
    """h_t = Σ_{s≤t} exp(Σ_{s<j≤t} log a_j) b_s by segment sums, O(T²) work and memory."""
    log_a = over_time(x.log_a, x.T)
    phase = None if x.phase is None else over_time(x.phase, x.T)
    B, _, C = x.b.shape
    weights = transfer(log_a, phase).to(x.b.dtype)  # (B|1, t, s, C|1)
    from_start = gate(log_a.cumsum(1), None if phase is None else phase.cumsum(1))
    h = torch.einsum("btsc,bsc->btc", weights.expand(B, -1, -1, C), x.b)
    return h + from_start * x.state.unsqueeze(1)
