"""The backends of `scan` over matrix states: a scan of D·N channels (docs/recurrences.md#inclusions)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.blelloch import sweep
from ..scan.common import over_time, rounds
from ..scan.hillis_steele import doubling
from ..scan.logspace import error_bound, log_scan, serial_steps
from ..scan.torch_scan import torch_associative_scan
from .common import FORMING, Operands, Result, StateScan, by_scanning, matrix_bytes, of_logs, takes_operands


def of_gates(scan: Callable[[Tensor, Tensor, Tensor], Tensor]) -> StateScan:
    """Let a differentiable scan over gates, writes and S_0 take `Operands` instead."""

    def states(operands: Operands, state: Tensor) -> Tensor:
        gates = over_time(operands.gate(), operands.T).to(state.dtype)
        write = operands.write().to(state.dtype)
        if operands.bounds is not None:
            _, gates, write, state = operands.restart(gates, write, state)
        return scan(gates, write, state)

    return states


def copies(count: int) -> Callable[[Shape, int, str], float]:
    """Describe a workspace of `count` copies of all T matrix states, twice as wide if they are complex."""

    def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
        return count * matrix_bytes(shape, itemsize) * (2 if gate_kind.endswith("complex") else 1)

    return workspace


@backend(
    "selective_scan",
    name="blelloch",
    launches=lambda shape: 8 * rounds(shape) + FORMING,
    workspace=copies(7),
)
@takes_operands
def blelloch(operands: Operands, state: Tensor) -> Result:
    """Up- and down-sweep over flattened states, T·D·N numbers of memory."""
    return by_scanning(of_gates(sweep), operands, state)


@backend(
    "selective_scan",
    name="hillis_steele",
    launches=lambda shape: 5 * rounds(shape) + FORMING,
    workspace=copies(6),
)
@takes_operands
def hillis_steele(operands: Operands, state: Tensor) -> Result:
    """Doubling strides over flattened states, T·D·N numbers of memory."""
    return by_scanning(of_gates(doubling), operands, state)


@backend(
    "selective_scan",
    name="torch_scan",
    compiles_per_shape=True,
    launches=lambda shape: 10 + FORMING,
    workspace=copies(7),
)
@takes_operands
def torch_scan(operands: Operands, state: Tensor) -> Result:
    """torch's associative_scan over flattened states, compiled for CUDA tensors."""
    return by_scanning(of_logs(torch_associative_scan), operands, state)


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

    Packed sequences come one after another: joined, each would add a reset to the span.

    Raises:
        Unsupported: Σ -log of the gates exceeds 10⁴ in an element (10⁶ in float64).
    """
    outputs, ends = [], []
    for sequence, end in operands.sequences(state):
        if sequence.T:
            output, end = by_scanning(of_logs(log_scan), sequence, end)
            outputs.append(output)
        ends.append(end)
    return torch.cat(outputs, 1), torch.cat(ends)
