"""Work-efficient parallel prefix over dense affine maps: an up-sweep of products, a down-sweep of states.

Blelloch, Prefix sums and their applications (1990); docs/recurrences.md#blelloch and #triangular-solve. A
combine multiplies K × K matrices: this is for testing other backends, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from ..scan.common import rounds
from .common import Maps, Operands, applied, as_backend, composed, element_bytes, maps_of, read_out


def _all_states(maps: Maps, initial_state: Tensor) -> Tensor:
    """Compute S_t (B, T, H, K, V) after every map.

    Time is padded at the end, where nothing reads. The down-sweep starts from the state S_0 instead of the
    identity map, so it carries states and no maps.
    """
    T = maps.write.shape[1]
    missing = (1 << (T - 1).bit_length()) - T
    level = Maps(*(functional.pad(x, (0, 0) * 3 + (0, missing)) for x in maps))
    left_maps = []
    while level.write.shape[1] > 1:
        left, right = (level.at(slice(i, None, 2)) for i in (0, 1))
        left_maps.append(left)
        level = composed(left, right)
    before = initial_state.unsqueeze(1)
    for left in reversed(left_maps):
        before = torch.stack([before, applied(left, before)], dim=2).flatten(1, 2)
    return applied(maps, before[:, :T])


def launches(shape: Shape) -> float:
    """Eighteen operators per level upwards and four downwards."""
    return 22 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of all steps padded to a power of two, their products, and the states."""
    padded = shape.with_(T=1 << (shape["T"] - 1).bit_length())
    return 4 * element_bytes(shape, itemsize) + 3 * element_bytes(padded, itemsize)


@backend("delta_rule", name="blelloch", launches=launches, workspace=workspace)
@as_backend
def blelloch(x: Operands) -> tuple[Tensor, Tensor]:
    """Up- and down-sweep over affine maps with K × K transitions, 2 log2 T dependent steps, any length."""
    states = _all_states(maps_of(x), x.state)
    return read_out(x.q, states), states[:, -1]
