"""Chunks of 64 steps: a triangular solve turns the corrections of a chunk into matrix products.

In a chunk that starts from S, the rank-one terms add Σ_s (decayed left_s) y_sᵀ to the decayed S. Each y
depends on those before it: y = fixed + per_state S, both from one unit lower triangular solve (the WY form,
or UT transform). Yang et al., Parallelizing linear transformers with the delta rule over sequence length
(2024); Yang, Kautz and Hatamizadeh, Gated delta networks (2024); docs/recurrences.md#triangular-solve.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ssmperf.authoring import Shape, backend

from ..linear_attention.common import in_tiles, scaled
from ..scan.common import over_time
from ._decay import Decay
from .common import Operands, as_backend

CHUNK, SUB_CHUNK = 64, 16


class Tiles(NamedTuple):
    """The effect of each chunk (B, H, N, C, ·), given the state S (K, V) before it.

    The corrections are y = fixed + per_state @ S, (C, V). The outputs add seen @ y to `output`, (C, V), and
    the state after the chunk adds ends.T @ y to `write`, (K, V).
    """

    fixed: Tensor
    per_state: Tensor
    seen: Tensor
    ends: Tensor
    output: Tensor | float
    write: Tensor | float


def in_chunks(x: Operands, C: int, sub_chunk: int) -> tuple[Tensor, Tensor]:
    """Compute output (B, T, H, V) and final state by chunks of C steps.

    sub_chunk: tile size of the pairwise decays of key gates; it divides C.
    """
    q, k, v, beta = (in_tiles(y, C) for y in (x.q, x.k, x.v, x.beta))
    decay = Decay(None if x.log_a is None else in_tiles(over_time(x.log_a, x.T), C), sub_chunk)
    if x.p is None or x.r is None:
        tiles = _delta(q, k, v, beta, decay)
    else:
        tiles = _dplr(q, beta * k, v, in_tiles(x.p, C), in_tiles(x.r, C), decay)
    from_start = decay.from_start()
    kept = q.new_ones(1, 1, 1, 1) if from_start is None else from_start[..., -1, :]
    transition = torch.diag_embed(kept.expand(*k.shape[:3], k.shape[-1])) + tiles.ends.mT @ tiles.per_state
    write = tiles.write + tiles.ends.mT @ tiles.fixed
    state, starts = x.state, []
    for transition_n, write_n in zip(transition.unbind(2), write.unbind(2), strict=True):
        starts.append(state)
        state = transition_n @ state + write_n
    before = torch.stack(starts, dim=2)
    within = tiles.seen @ (tiles.fixed + tiles.per_state @ before) + tiles.output
    output = scaled(q, from_start) @ before + within
    return output.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, : x.T], state


def _delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Decay) -> Tiles:
    """Correct by y_t = β_t (v_t − S̄_tᵀ k_t), written along k."""
    kk, qk = decay.products((k, q), k)
    rows = torch.cat([beta * v, -beta * scaled(k, decay.from_start())], dim=-1)
    fixed, per_state = _solve(beta * kk.tril(-1), rows, v.shape[-1])
    return Tiles(fixed, per_state, qk, scaled(k, decay.to_end()), 0.0, 0.0)


def _dplr(q: Tensor, k: Tensor, v: Tensor, p: Tensor, r: Tensor, decay: Decay) -> Tiles:
    """Correct by y_t = S_{t−1}ᵀ r_t, written along p, in addition to the values along k.

    r_t reads the state before the gate of its step. That is the state after the previous step, so r is moved
    one step early and read like a query.
    """
    early = torch.cat([r[..., 1:, :], torch.zeros_like(r[..., :1, :])], dim=-2)
    rp, qp = decay.products((early, q), p)
    rk, qk = decay.products((early, q), k)
    read_start = _one_later(scaled(early, decay.from_start()), r[..., :1, :])
    rows = torch.cat([_one_later(rk) @ v, read_start], dim=-1)
    fixed, per_state = _solve(-_one_later(rp), rows, v.shape[-1])
    to_end = decay.to_end()
    return Tiles(fixed, per_state, qp, scaled(p, to_end), qk @ v, scaled(k, to_end).mT @ v)


def _one_later(x: Tensor, first: Tensor | None = None) -> Tensor:
    """Move rows (..., C, ·) down by one; the first becomes zeros, or `first`."""
    first = torch.zeros_like(x[..., :1, :]) if first is None else first
    return torch.cat([first, x[..., :-1, :]], dim=-2)


def _solve(strictly_lower: Tensor, rows: Tensor, V: int) -> tuple[Tensor, Tensor]:
    """Compute (I + strictly_lower)⁻¹ rows, split after V columns."""
    solved: Tensor = torch.linalg.solve_triangular(strictly_lower, rows, upper=False, unitriangular=True)
    return solved[..., :V], solved[..., V:]


def launches(shape: Shape) -> float:
    """A fixed number, and two per chunk for the carried state."""
    return 90 + 2 * math.ceil(shape["T"] / CHUNK)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Tiles of the operands, pairwise products, corrections; transitions, writes and states per chunk.

    Key gates add pairwise decays within sub-chunks, and keys decayed up to each later sub-chunk.
    """
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    pairwise = (3 * SUB_CHUNK + 2 * CHUNK // SUB_CHUNK) * K if gate_kind.endswith("key") else 0
    products = (10 if gate_kind.startswith("dplr") else 5) * CHUNK
    by_chunk = 3 * K * (K + V) / CHUNK
    return B * T * H * (products + 6 * K + 6 * V + pairwise + by_chunk) * max(4, itemsize)


@backend("delta_rule", name="chunkwise", launches=launches, workspace=workspace)
@as_backend
def chunkwise(x: Operands) -> tuple[Tensor, Tensor]:
    """Matrix products and a triangular solve within chunks of 64 steps, a loop over chunks for the state."""
    C = min(CHUNK, math.ceil(x.T / SUB_CHUNK) * SUB_CHUNK)
    return in_chunks(x, C, SUB_CHUNK)
