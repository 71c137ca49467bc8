"""Chunks of attention around a carried state, all exponents ≤ 0.

A scalar gate takes one level: a decay mask on the scores of a chunk. Key and value gates take two: between
sub-chunks, decays are counted from the start of the reading sub-chunk; inside one they are formed pair by
pair. Hua et al., Transformer quality in linear time (2022); Yang et al., Gated linear attention transformers
(2023), §4; RECURRENCES.md §4.9.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf import Shape, backend

from ..scan.common import gate, over_time, segment_sums
from .common import attend, from_start, scaled, sums_after, tile_attention, tile_edges

CHUNK, SUB_CHUNK = 64, 16


def _chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    phase: Tensor | None,
    log_b: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    T = q.shape[1]
    C = min(CHUNK, math.ceil(T / SUB_CHUNK) * SUB_CHUNK)
    q, k, v = (_tiles(x, C) for x in (q, k, v))
    log_a, phase, log_b = (None if x is None else _tiles(over_time(x, T), C) for x in (log_a, phase, log_b))
    vector = log_b is not None or any(x is not None and x.shape[-1] > 1 for x in (log_a, phase))
    within = (
        _two_level(q, k, v, log_a, phase, log_b) if vector else tile_attention(q, k, v, log_a, phase, None)
    )
    alpha, beta, decay, write = tile_edges(k, v, log_a, phase, log_b)
    starts = []
    decays = [None] * write.shape[2] if decay is None else decay.unbind(2)
    for decay_n, write_n in zip(decays, write.unbind(2), strict=True):
        starts.append(state)
        state = scaled(state, decay_n) + write_n
    before = scaled(scaled(q, alpha) @ torch.stack(starts, dim=2), beta)
    return (within + before).permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :T], state


def _tiles(x: Tensor, C: int) -> Tensor:
    """(B|1, T, H, F) as (B|1, H, N, C, F); the last chunk is filled with zeros, whose gates are 1."""
    padded = functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % C))
    return padded.reshape(x.shape[0], -1, C, *x.shape[2:]).permute(0, 3, 1, 2, 4)


def _two_level(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, log_b: Tensor | None
) -> Tensor:
    """Attention within chunks (..., C, ·) for gates that differ by key or by value."""
    q, k, v = (_sub_chunks(x) for x in (q, k, v))
    log_a, phase, log_b = (None if x is None else _sub_chunks(x) for x in (log_a, phase, log_b))
    diagonal = tile_attention(q, k, v, log_a, phase, log_b)
    keys = _as_seen_from_later(k, log_a, phase)
    values = _as_seen_from_later(v, log_b, None)
    scores = scaled(q, from_start(log_a, phase)) @ keys.mT  # (..., I, c, C)
    earlier = scaled(scores @ values, from_start(log_b))
    return (diagonal + earlier).flatten(-3, -2)


def _sub_chunks(x: Tensor) -> Tensor:
    """(..., C, F) as (..., C / c, c, F)."""
    return x.reshape(*x.shape[:-2], -1, SUB_CHUNK, x.shape[-1])


def _as_seen_from_later(x: Tensor, log_gate: Tensor | None, phase: Tensor | None) -> Tensor:
    """x (..., J, c, F), decayed up to the start of each later sub-chunk I, as (..., I, J·c, F); else 0."""
    count = x.shape[-3]
    earlier = torch.ones(count, count, dtype=torch.bool, device=x.device).tril(-1)[..., None, None]
    if log_gate is None:
        return torch.where(earlier, x.unsqueeze(-4), 0).flatten(-3, -2)
    reach = torch.where(earlier, _sums_up_to_later(log_gate), -math.inf)
    decay = gate(reach, None if phase is None else _sums_up_to_later(phase))
    return (decay * x.unsqueeze(-4)).flatten(-3, -2)


def _sums_up_to_later(x: Tensor) -> Tensor:
    """Sums of x (..., J, c, F) from after each step to before sub-chunk I, as (..., I, J, c, F)."""
    between = functional.pad(segment_sums(x.sum(-2)), (0, 0, 0, 0, 1, 0))[..., :-1, :, :]
    return sums_after(x).unsqueeze(-4) + between.unsqueeze(-2)


def launches(shape: Shape) -> float:
    """A fixed number, and three a chunk for the carried state."""
    return 70 + 3 * math.ceil(shape["T"] / CHUNK)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Pairwise decays of key gates within sub-chunks, decayed keys, scores, and the states of all chunks."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    pairwise = 2 * SUB_CHUNK * K + CHUNK // SUB_CHUNK * K + 3 * CHUNK + 4 * V
    return B * T * H * (pairwise + 3 * K * V / CHUNK) * max(4, itemsize)


@backend("linear_attention", name="chunkwise", launches=launches, workspace=workspace)
def chunkwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
) -> tuple[Tensor, Tensor]:
    """Matrix products within chunks of 64 steps and a loop over chunks for the carried state.

    Shapes, dtypes and results: see the recurrence `linear_attention`.
    """
    return attend(_chunkwise, q, k, v, log_a, log_b, initial_state, phase, bonus, read)
