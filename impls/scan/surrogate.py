"""The whole scan as one lower-triangular T × T matrix a channel, all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023); RECURRENCES.md §4.7.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, backend

from .common import gate, operands, over_time, result, transfer


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Segment sums and their masked exponentials."""
    return 2 * shape["B"] * shape["T"] ** 2 * shape["C"] * max(4, itemsize)


@backend("scan", name="surrogate", launches=lambda shape: 20, workspace=workspace)
def surrogate(
    log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = Σ_{s≤t} exp(Σ_{s<j≤t} log a_j) b_s by segment sums, O(T²) work and memory.

    Shapes, dtypes and results: see the recurrence `scan`.
    """
    log_a, phase, inputs, state = operands(log_a, b, initial_state, phase)
    T = inputs.shape[1]
    log_a = over_time(log_a, T)
    phase = None if phase is None else over_time(phase, T)
    weights = transfer(log_a, phase).to(inputs.dtype)  # (B|1, t, s, C|1)
    from_start = gate(log_a.cumsum(1), None if phase is None else phase.cumsum(1))
    h = torch.einsum("btsc,bsc->btc", weights.expand(len(b), -1, -1, b.shape[2]), inputs)
    return result(h + from_start * state.unsqueeze(1), b)
