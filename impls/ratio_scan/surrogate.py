"""All pairs of steps of a tile at once, exponents shifted by the largest of each row; tile after tile.

The stable form of attention with decaying exponential weights; docs/recurrences.md#surrogate and
#stabilised-ratio.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..scan.common import over_time
from .common import Operands, State, as_backend

TILE = 32


def tile_states(decay: Tensor, k: Tensor, v: Tensor, initial: State) -> State:
    """Compute the states after each step of a tile, each (B, L, C), from decays (B|1, L, C|1) and k, v.

    A pair s ≤ t has the exponent Σ_{s<j≤t} λ_j + k_s; each segment has its own sum, so -inf is legal.
    """
    L = k.shape[1]
    causal = torch.ones(L, L, dtype=torch.bool, device=k.device).tril()
    segments = torch.where(causal.tril(-1).unsqueeze(-1), decay.unsqueeze(2), 0).cumsum(1)  # (B|1, t, s, C|1)
    exponents = torch.where(causal.unsqueeze(-1), segments.detach() + k.detach().unsqueeze(1), -math.inf)
    m_0, p_0, q_0 = (part.unsqueeze(1) for part in initial)
    from_start = decay.cumsum(1)
    m = torch.maximum(exponents.amax(2), m_0 + from_start.detach())
    shifted = segments + (k.unsqueeze(1) - m.unsqueeze(2))  # exact differences where keys are near the top
    weights = torch.exp(torch.where(causal.unsqueeze(-1), shifted, -math.inf))  # (B, t, s, C)
    kept = torch.exp((m_0 - m) + from_start)
    p = torch.einsum("btsc,bsc->btc", weights, v) + kept * p_0
    return m, p, weights.sum(2) + kept * q_0


def launches(shape: Shape) -> float:
    """Twenty operators per tile, and the read."""
    return 20 * math.ceil(shape["T"] / TILE) + 20


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Segment sums, exponents and weights of one tile; states, and the exponentials of the read."""
    B, T, C = (shape[letter] for letter in "BTC")
    return B * C * (4 * TILE**2 + 12 * T) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Segment sums, exponents and weights of every tile; states, and the exponentials of the read."""
    B, T, C = (shape[letter] for letter in "BTC")
    return B * T * C * (3 * TILE + 14) * max(4, itemsize)


@backend("ratio_scan", name="surrogate", launches=launches, workspace=workspace, saved=saved)
@as_backend
def surrogate(x: Operands) -> State:
    """Tiles of 32 steps: per channel a TILE × TILE matrix, plus the decayed state before the tile."""
    decays = over_time(x.log_w, x.T).split(TILE, dim=1)
    state, tiles = x.initial, []
    for decay, k, v in zip(decays, x.k.split(TILE, dim=1), x.v.split(TILE, dim=1), strict=True):
        m, p, q = tile_states(decay, k, v, state)
        state = (m[:, -1], p[:, -1], q[:, -1])
        tiles.append((m, p, q))
    m, p, q = (torch.cat(parts, dim=1) for parts in zip(*tiles, strict=True))
    return m, p, q
