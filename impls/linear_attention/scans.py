"""The backends of `scan` over matrix states: a scan of K·V channels per head.

The inclusion F2 ⊂ F1 of docs/recurrences.md#inclusions: exact, and expensive in memory.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.blelloch import sweep
from ..scan.common import gate, over_time, rounds
from ..scan.hillis_steele import doubling
from ..scan.logspace import error_bound, log_scan, serial_steps
from ..scan.torch_scan import torch_associative_scan
from .common import Operands, as_backend, read_out

# log gate and phase (B|1, T|1, H, K|1, V|1), write (B, T, H, K, V), S_0 -> all states (B, T, H, K, V)
StateScan = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


def by_scanning(scan: StateScan, x: Operands) -> tuple[Tensor, Tensor]:
    """Compute all T matrix states by a scan over K·V channels per head, and read each."""
    write = x.k.unsqueeze(-1) * x.v.unsqueeze(-2)
    log_gate = None if x.log_a is None else x.log_a.unsqueeze(-1)
    if x.log_b is not None:
        log_gate = x.log_b.unsqueeze(-2) if log_gate is None else log_gate + x.log_b.unsqueeze(-2)
    if log_gate is None:
        log_gate = x.k.new_zeros(1, 1, 1, 1, 1, dtype=x.k.dtype.to_real())
    states = scan(log_gate, None if x.phase is None else x.phase.unsqueeze(-1), write, x.state)
    return read_out(x.q, states), states[:, -1]


def of_gates(scan: Callable[[Tensor, Tensor, Tensor], Tensor]) -> StateScan:
    """Make a scan of gates take log gates and phases."""

    def state_scan(log_gate: Tensor, phase: Tensor | None, write: Tensor, state: Tensor) -> Tensor:
        return scan(over_time(gate(log_gate, phase), write.shape[1]).to(write.dtype), write, state)

    return state_scan


def copies(count: int) -> Callable[[Shape, int, str], float]:
    """Declare as workspace a number of copies of all T matrix states in working precision."""

    def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
        return count * shape["B"] * shape["T"] * shape["H"] * shape["K"] * shape["V"] * max(4, itemsize)

    return workspace


@backend(
    "linear_attention",
    name="blelloch",
    launches=lambda shape: 8 * rounds(shape) + 16,
    workspace=copies(7),
)
@as_backend
def blelloch(x: Operands) -> tuple[Tensor, Tensor]:
    """Up- and down-sweep over flattened states, T·K·V numbers of memory."""
    return by_scanning(of_gates(sweep), x)


@backend(
    "linear_attention",
    name="hillis_steele",
    launches=lambda shape: 5 * rounds(shape) + 16,
    workspace=copies(5),
)
@as_backend
def hillis_steele(x: Operands) -> tuple[Tensor, Tensor]:
    """Doubling strides over flattened states, T·K·V numbers of memory."""
    return by_scanning(of_gates(doubling), x)


@backend(
    "linear_attention",
    name="torch_scan",
    compiles_per_shape=True,
    launches=lambda shape: 24,
    workspace=copies(6),
)
@as_backend
def torch_scan(x: Operands) -> tuple[Tensor, Tensor]:
    """torch's associative_scan over flattened states, compiled for CUDA tensors."""
    return by_scanning(torch_associative_scan, x)


@backend(
    "linear_attention",
    name="logspace",
    error_bound=error_bound,
    launches=lambda shape: 36,
    serial_steps=serial_steps,
    workspace=copies(8),
)
@as_backend
def logspace(x: Operands) -> tuple[Tensor, Tensor]:
    """Heinsen's scan over flattened states; its error grows with the decay span.

    Raises:
        Unsupported: Σ -log of the gates of a channel exceeds 10⁴ (10⁶ in float64).
    """
    return by_scanning(log_scan, x)
