"""Each tile of time as one lower-triangular matrix of decays an element, all exponents ≤ 0.

The stable form of GateLoop's surrogate attention (Katsch, 2023) over matrix states; RECURRENCES.md §4.7.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ssmperf import Shape, backend

from ..scan.common import gate, transfer
from .common import by_scanning, matrix_bytes, of_logs

TILE = 16  # steps; a tile takes TILE numbers a step and element


def pairwise(logs: Tensor, phase: Tensor | None, write: Tensor, state: Tensor) -> Tensor:
    """All states (B, T, D, N), not differentiable: pairs of steps within a tile, tile after tile."""
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


def launches(shape: Shape) -> float:
    """A fixed number a tile, and those that form the elements and read the states."""
    return 18 * math.ceil(shape["T"] / TILE) + 24


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Copies of all T matrix states, and segment sums, decays and products of a tile."""
    tile = 5 * TILE * min(TILE, shape["T"]) / shape["T"]
    return (5 + tile) * matrix_bytes(shape, itemsize) * (3 if gate_kind.endswith("complex") else 1)


@backend("selective_scan", name="surrogate", launches=launches, workspace=workspace)
def surrogate(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None = None,
    initial_state: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """States weighted by segment sums of the log gates within tiles, T·D·N numbers of memory.

    Shapes, dtypes, options and results: see the recurrence `selective_scan`.
    """
    return by_scanning(of_logs(pairwise), x, delta, k, q, A, initial_state, **options)
