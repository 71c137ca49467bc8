"""One step after another: T dependent steps, one state in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.common import over_time
from .common import Operands, Result, takes_operands

BLOCK = 16  # steps whose gates and writes are formed at once


def launches(shape: Shape) -> float:
    """Count one gated sum per step, and the gates, writes and reads of every block."""
    return shape["T"] * (1 + 24 / BLOCK) + 24


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Sum gates, writes and states of a block, operands in working precision, and the output once more."""
    wide = max(4, itemsize) * (2 if gate_kind.endswith("complex") else 1)
    block = 6 * BLOCK * shape["B"] * shape["D"] * shape["N"]
    return (block + shape["B"] * shape["T"] * (4 * shape["D"] + 2 * shape["N"])) * wide


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Sum exponents, gates, writes and states of every step."""
    wide = max(4, itemsize) * (2 if gate_kind.endswith("complex") else 1)
    return 5 * shape["T"] * shape["B"] * shape["D"] * shape["N"] * wide


@backend("selective_scan", name="sequential", launches=launches, workspace=workspace, saved=saved)
@takes_operands
def sequential(operands: Operands, start: Tensor) -> Result:
    """A loop over time on whole (B, D, N) states."""
    outputs, ends = [], []
    for sequence, state in operands.sequences(start):
        for block in sequence.blocks(BLOCK):
            gates = over_time(block.gate(), block.T).to(state.dtype)
            states = []
            for gate_t, write_t in zip(gates.unbind(1), block.write().to(state.dtype).unbind(1), strict=True):
                state = torch.addcmul(write_t, gate_t, state)
                states.append(state)
            outputs.append(block.read(torch.stack(states, dim=1)))
        ends.append(state)
    return torch.cat(outputs, dim=1), torch.cat(ends)
