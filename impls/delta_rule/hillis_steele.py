"""Step-efficient parallel prefix over dense affine maps: each absorbs the map 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); docs/recurrences.md#hillis_steele and #triangular-solve. A
combine multiplies K × K matrices: this is for testing other backends, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf import Shape, backend

from ..scan.common import rounds
from .common import Operands, as_backend, dense_elements, element_bytes, read_out


def _doubling(transition: Tensor, write: Tensor) -> Tensor:
    """Compute all states (B, T, H, K, V) of the maps (B, T, H, K, ·); the first write contains S_0.

    Each round reads one buffer and writes the other. A map that reaches back to the first step is complete.
    """
    stride, T = 1, write.shape[1]
    while stride < T:
        later = transition[:, stride:]
        write = torch.cat([write[:, :stride], later @ write[:, :-stride] + write[:, stride:]], dim=1)
        transition = torch.cat([transition[:, :stride], later @ transition[:, :-stride]], dim=1)
        stride *= 2
    return write


def launches(shape: Shape) -> float:
    """Three operators and two copies per round."""
    return 5 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers for all maps, the products of one round, and the states."""
    return 5 * element_bytes(shape, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of every round."""
    return (rounds(shape) + 3) * element_bytes(shape, itemsize)


@backend("delta_rule", name="hillis_steele", launches=launches, workspace=workspace, saved=saved)
@as_backend
def hillis_steele(x: Operands) -> tuple[Tensor, Tensor]:
    """Doubling strides over pairs (K × K transition, write), log2 T dependent steps."""
    transition, write = dense_elements(x)
    first = transition[:, :1] @ x.state.unsqueeze(1) + write[:, :1]
    states = _doubling(transition, torch.cat([first, write[:, 1:]], dim=1))
    return read_out(x.q, states), states[:, -1]
