"""Each tile of time as one lower-triangular matrix of decays per element, all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023) over matrix states;
docs/recurrences.md#surrogate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.common import gate, transfer
from .common import FORMING, Operands, Result, by_scanning, matrix_bytes, of_logs, takes_operands

TILE = 16  # steps; a tile takes TILE numbers per step and element


def pairwise(logs: Tensor, phase: Tensor | None, write: Tensor, state: Tensor) -> Tensor:
    """Compute all states (B, T, D, N), not differentiable, by pairs of steps within a tile, in tile order."""
    states = []
    phases = [None] * math.ceil(logs.shape[1] / TILE) if phase is None else phase.split(TILE, dim=1)
    for log_tile, phase_tile, inputs in zip(
        logs.split(TILE, dim=1), phases, write.split(TILE, dim=1), strict=True
    ):
        flat = None if phase_tile is None else phase_tile.flatten(2)
        decay = transfer(log_tile.flatten(2), flat).to(inputs.dtype)  # (B|1, t, s, D·N)
        within = (decay * inputs.flatten(2).unsqueeze(1)).sum(2).view(inputs.shape)
        from_start = gate(log_tile.cumsum(1), None if phase_tile is None else phase_tile.cumsum(1))
        states.append(within + from_start * state.unsqueeze(1))
        state = states[-1][:, -1]
    return torch.cat(states, dim=1)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Sum copies of all T matrix states, and segment sums, decays and products of a tile."""
    tile = 5 * TILE * min(TILE, shape["T"]) / shape["T"]
    return (5 + tile) * matrix_bytes(shape, itemsize) * (3 if gate_kind.endswith("complex") else 1)


@backend(
    "selective_scan",
    name="surrogate",
    launches=lambda shape: 18 * math.ceil(shape["T"] / TILE) + FORMING,  # a fixed number per tile
    workspace=workspace,
)
@takes_operands
def surrogate(operands: Operands, state: Tensor) -> Result:
    """States weighted by segment sums of the log gates within tiles, T·D·N numbers of memory."""
    return by_scanning(of_logs(pairwise), operands, state)
