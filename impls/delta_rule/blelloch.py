"""Work-efficient parallel prefix over dense affine maps: an up-sweep of products, a down-sweep of states.

Blelloch, Prefix sums and their applications (1990); docs/recurrences.md#blelloch and #triangular-solve. A
combine multiplies K × K matrices: this is for testing other backends, not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Shape, backend

from ..scan.common import rounds
from .common import Operands, as_backend, dense_elements, element_bytes, read_out

Map = tuple[Tensor, Tensor]  # (M, W): the map S -> M S + W


def _all_states(maps: Map, initial_state: Tensor) -> Tensor:
    """Compute S_t (B, T, H, K, V) after every map (B, T, H, K, ·).

    Time is padded at the end, where nothing reads. The down-sweep starts from the state S_0 instead of the
    identity map, so it carries states and no maps.
    """
    T = maps[1].shape[1]
    missing = (1 << (T - 1).bit_length()) - T
    transition, write = (functional.pad(x, (0, 0) * 3 + (0, missing)) for x in maps)
    left_products = []
    while write.shape[1] > 1:
        left, right = ((transition[:, i::2], write[:, i::2]) for i in (0, 1))
        left_products.append(left)
        transition, write = right[0] @ left[0], right[0] @ left[1] + right[1]
    before = initial_state.unsqueeze(1)
    for transition, write in reversed(left_products):
        before = torch.stack([before, transition @ before + write], dim=2).flatten(1, 2)
    return maps[0] @ before[:, :T] + maps[1]


def launches(shape: Shape) -> float:
    """Five operators per level upwards and three downwards."""
    return 8 * rounds(shape) + 16


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """The maps of all steps padded to a power of two, their products, and the states."""
    padded = shape.with_(T=1 << (shape["T"] - 1).bit_length())
    return 4 * element_bytes(shape, itemsize) + 3 * element_bytes(padded, itemsize)


@backend("delta_rule", name="blelloch", launches=launches, workspace=workspace)
@as_backend
def blelloch(x: Operands) -> tuple[Tensor, Tensor]:
    """Up- and down-sweep over pairs (K × K transition, write), 2 log2 T dependent steps, any length."""
    states = _all_states(dense_elements(x), x.state)
    return read_out(x.q, states), states[:, -1]
