"""Step-efficient parallel prefix over dense affine maps: each absorbs the one 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); RECURRENCES.md §4.4 and §4.11. A combine multiplies
K × K matrices, so this is for tests of other backends, not for speed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf import Shape, backend

from .common import Operands, attend, dense_elements, element_bytes, read_out


def _hillis_steele(x: Operands) -> tuple[Tensor, Tensor]:
    transition, write = dense_elements(x)
    first = transition[:, :1] @ x.state.unsqueeze(1) + write[:, :1]
    states = _doubling(transition, torch.cat([first, write[:, 1:]], dim=1))
    return read_out(x.q, states), states[:, -1]


def _doubling(transition: Tensor, write: Tensor) -> Tensor:
    """All states (B, T, H, K, V) of the maps (B, T, H, K, ·), S_0 being part of the first write.

    Each round reads one buffer and writes the other; maps that reach back to the first step are done.
    """
    stride, T = 1, write.shape[1]
    while stride < T:
        later = transition[:, stride:]
        write = torch.cat([write[:, :stride], later @ write[:, :-stride] + write[:, stride:]], dim=1)
        transition = torch.cat([transition[:, :stride], later @ transition[:, :-stride]], dim=1)
        stride *= 2
    return write


def launches(shape: Shape) -> float:
    """Three operators and two copies a round."""
    return 5 * math.ceil(math.log2(max(2, shape["T"]))) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers of all maps, a round's products, and the states."""
    return 5 * element_bytes(shape, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of every round."""
    return (math.ceil(math.log2(max(2, shape["T"]))) + 3) * element_bytes(shape, itemsize)


@backend("delta_rule", name="hillis_steele", launches=launches, workspace=workspace, saved=saved)
def hillis_steele(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    p: Tensor | None = None,
    r: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Doubling strides over pairs (K × K transition, write), log2 T dependent steps.

    Shapes, dtypes and results: see the recurrence `delta_rule`.
    """
    return attend(_hillis_steele, q, k, v, beta, log_a, initial_state, p, r)
