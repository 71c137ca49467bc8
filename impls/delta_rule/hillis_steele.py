"""Step-efficient parallel prefix over dense affine maps: each absorbs the map 1, 2, 4, ... steps before it.

Hillis and Steele, Data parallel algorithms (1986); docs/recurrences.md#hillis_steele and #triangular-solve. A
combine multiplies K × K matrices: this is for testing other backends, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.common import rounds
from .common import Maps, Operands, applied, as_backend, composed, element_bytes, maps_of, read_out


def _doubling(maps: Maps) -> Tensor:
    """Compute all states (B, T, H, K, V) of some maps, the first of which writes S_1.

    Each round reads one buffer and writes the other. A map that reaches back to the first step is complete.
    """
    stride, T = 1, maps.write.shape[1]
    while stride < T:
        longer = composed(maps.at(slice(-stride)), maps.at(slice(stride, None)))
        maps = Maps(*(torch.cat([x[:, :stride], y], dim=1) for x, y in zip(maps, longer, strict=True)))
        stride *= 2
    return maps.write


def launches(shape: Shape) -> float:
    """Eighteen operators and three copies per round."""
    return 21 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Two buffers for all maps, the products of one round, and the states."""
    return 5 * element_bytes(shape, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of every round."""
    return (rounds(shape) + 3) * element_bytes(shape, itemsize)


@backend("delta_rule", name="hillis_steele", launches=launches, workspace=workspace, saved=saved)
@as_backend
def hillis_steele(x: Operands) -> tuple[Tensor, Tensor]:
    """Doubling strides over affine maps with K × K transitions, log2 T dependent steps."""
    maps = maps_of(x)
    first = applied(maps.at(slice(1)), x.state.unsqueeze(1))
    states = _doubling(maps._replace(write=torch.cat([first, maps.write[:, 1:]], dim=1)))
    return read_out(x.q, states), states[:, -1]
