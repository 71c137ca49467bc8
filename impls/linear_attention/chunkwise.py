"""Chunks of attention around a carried state, all exponents ≤ 0.

A scalar gate takes one level: a decay mask on the scores of a chunk. Key and value gates take two: between
sub-chunks, decays count from the start of the reading sub-chunk; within a sub-chunk they are computed pair by
pair. Hua et al., Transformer quality in linear time (2022); Yang et al., Gated linear attention transformers
(2023), §4; docs/recurrences.md#chunkwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape, backend

from ..scan.common import gate, over_time, segment_sums
from .common import Operands, as_backend, from_start, in_tiles, scaled, sums_after, tile_attention, tile_edges

CHUNK, SUB_CHUNK = 64, 16


def _two_level(x: Operands) -> Tensor:
    """Attention within chunks (..., C, ·) under gates that differ by key or value channel."""
    x = x.map(_sub_chunks)
    keys = _as_seen_from_later(x.k, x.log_a, x.phase)
    values = _as_seen_from_later(x.v, x.log_b, None)
    scores = scaled(x.q, from_start(x.log_a, x.phase)) @ keys.mT  # (..., I, c, C)
    earlier = scaled(scores @ values, from_start(x.log_b))
    return (tile_attention(x) + earlier).flatten(-3, -2)


def _sub_chunks(x: Tensor) -> Tensor:
    """Cut (..., C, F) into (..., C / c, c, F)."""
    cut: Tensor = x.unflatten(-2, (-1, SUB_CHUNK))
    return cut


def _as_seen_from_later(x: Tensor, log_gate: Tensor | None, phase: Tensor | None) -> Tensor:
    """Decay x (..., J, c, F) up to the start of each later sub-chunk I: (..., I, J·c, F), 0 where I ≤ J."""
    count = x.shape[-3]
    earlier = torch.ones(count, count, dtype=torch.bool, device=x.device).tril(-1)[..., None, None]
    if log_gate is None:
        return torch.where(earlier, x.unsqueeze(-4), 0).flatten(-3, -2)
    reach = torch.where(earlier, _sums_up_to_later(log_gate), -math.inf)
    decay = gate(reach, None if phase is None else _sums_up_to_later(phase))
    return (decay * x.unsqueeze(-4)).flatten(-3, -2)


def _sums_up_to_later(x: Tensor) -> Tensor:
    """Sum x (..., J, c, F) from after each step to before sub-chunk I: (..., I, J, c, F)."""
    between = functional.pad(segment_sums(x.sum(-2)), (0, 0, 0, 0, 1, 0))[..., :-1, :, :]
    return sums_after(x).unsqueeze(-4) + between.unsqueeze(-2)


def launches(shape: Shape) -> float:
    """A fixed number, and three per chunk for the carried state."""
    return 70 + 3 * math.ceil(shape["T"] / CHUNK)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Pairwise decays of key gates within sub-chunks, decayed keys, scores, and the states of all chunks."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    pairwise = 2 * SUB_CHUNK * K + CHUNK // SUB_CHUNK * K + 3 * CHUNK + 4 * V
    return B * T * H * (pairwise + 3 * K * V / CHUNK) * max(4, itemsize)


@backend("linear_attention", name="chunkwise", launches=launches, workspace=workspace)
@as_backend
def chunkwise(x: Operands) -> tuple[Tensor, Tensor]:
    """Matrix products within chunks of 64 steps, and a loop over chunks for the carried state."""
    C = min(CHUNK, math.ceil(x.T / SUB_CHUNK) * SUB_CHUNK)
    tiles = x.map(lambda y: in_tiles(over_time(y, x.T), C))
    gates = (tiles.log_a, tiles.phase, tiles.log_b)
    by_channel = x.log_b is not None or any(y is not None and y.shape[-1] > 1 for y in gates)
    within = _two_level(tiles) if by_channel else tile_attention(tiles)
    alpha, beta, decay, write = tile_edges(tiles)
    decays = [None] * write.shape[2] if decay is None else decay.unbind(2)
    state, starts = x.state, []
    for decay_n, write_n in zip(decays, write.unbind(2), strict=True):
        starts.append(state)
        state = scaled(state, decay_n) + write_n
    before = scaled(scaled(tiles.q, alpha) @ torch.stack(starts, dim=2), beta)
    return (within + before).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, : x.T], state
