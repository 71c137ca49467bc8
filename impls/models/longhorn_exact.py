"""Longhorn without its diagonal approximation: the exact minimiser, and a backend for its shared keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, Shape, Unsupported, backend, gate_precision, model

from .._autocast import without_autocast
from ..scan.common import one_by_one
from . import _papers as papers
from ._blocks import MambaBlock
from ._parts import checked_rank, low_rank

CHUNK = 16
PRESETS = {
    "smoke": [{"B": 1, "H": 32, "K": 16, "V": 1}],
    "standard": [{"B": 8, "H": 1536, "K": 16, "V": 1}],
    "long": [{"B": 1, "H": 1536, "K": 16, "V": 1}],
}


@model(
    "longhorn_exact",
    recurrence="delta_rule",
    paper=f"{papers.LONGHORN}, theorem 3.1, before the diagonal approximation of eqs. 8–9",
    gate="none",
    presets=PRESETS,
)
class LonghornExact(Model):
    """s_t = (I − Δ_t k_t k_tᵀ) s_{t−1} + Δ_t k_t x_t, y_t = s_tᵀ q_t + D x_t, Δ = β / (1 + β k·k).

    β = σ(W x + b) in (0, 1) with W of low rank. k_t and q_t are linear in x and shared by all channels, so
    that these operands are (B, T, 1, K). A channel of the paper, with s, Δ and x of its own, is a head with
    V = 1; a larger V ties the Δ of V channels. Δ k·k < 1, whatever the keys. Starts with D = 1 and b = 0. The
    input projection, convolution, SiLU and gate belong to the block: x is the activation after them. x and y
    are (B, T, H·V).

    rank: of W; by default ⌈d/16⌉ for the width d = H·V/2 of the block, as published.

    Raises:
        UsageError: a rank below 1.
    """

    block = MambaBlock

    def __init__(self, shape: Mapping[str, int], *, rank: int | None = None) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        rank = low_rank(self.width) if rank is None else checked_rank(rank)
        self.key = nn.Linear(self.width, K, bias=False)
        self.query = nn.Linear(self.width, K, bias=False)
        self.beta_down = nn.Linear(self.width, rank, bias=False)
        self.beta_up = nn.Linear(rank, H)
        nn.init.zeros_(self.beta_up.bias)
        self.D = nn.Parameter(torch.ones(self.width))

    def operands(self, x: Tensor) -> dict[str, Any]:
        k = self.key(x)
        beta = torch.sigmoid(gate_precision(self.beta_up(self.beta_down(x))))
        step = beta / (1 + beta * gate_precision(k).square().sum(-1, keepdim=True))
        return {
            "q": self.query(x).unsqueeze(2),
            "k": k.unsqueeze(2),
            "v": x.unflatten(-1, (self.shape["H"], -1)),
            "beta": step.to(x.dtype),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2) + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        k, q = x @ W["key.weight"].mT, x @ W["query.weight"].mT
        logit = x @ W["beta_down.weight"].mT @ W["beta_up.weight"].mT + W["beta_up.bias"]
        beta = 1 / (1 + torch.exp(-logit))
        delta = beta / (1 + beta * (k * k).sum(-1, keepdim=True))
        s, y = x.new_zeros(B, H, V, K), []
        for t in range(T):
            k_t, x_t = k[:, t], x[:, t].view(B, H, V)
            step = torch.einsum("bh,bk,bl->bhkl", delta[:, t], k_t, k_t)
            kept = s - torch.einsum("bhkl,bhvl->bhvk", step, s)
            s = kept + torch.einsum("bh,bk,bhv->bhvk", delta[:, t], k_t, x_t)
            y.append(torch.einsum("bhvk,bk->bhv", s, q[:, t]).flatten(1) + W["D"] * x[:, t])
        return torch.stack(y, dim=1)


def launches(shape: Shape) -> float:
    """Count a fixed number of launches, and a dozen per chunk."""
    return 30 + 12 * math.ceil(shape["T"] / CHUNK)


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Count corrections and values of all steps, the chunks' first states, and a few triangular systems."""
    B, T, H, K, V = (shape[letter] for letter in "BTHKV")
    return B * H * (6 * T * V + T * K * V / CHUNK + 4 * CHUNK * CHUNK) * max(4, itemsize)


def saved(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """Count the workspace and the triangular systems of all chunks."""
    B, T, H = (shape[letter] for letter in "BTH")
    return workspace(shape, itemsize, gate_kind) + 2 * B * T * H * CHUNK * max(4, itemsize)


@backend("longhorn_exact", name="state_first", launches=launches, workspace=workspace, saved=saved)
@without_autocast
def state_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_a: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    p: Tensor | None = None,
    r: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute in chunks of 16 steps: one product of keys for all channels, then one triangular solve each.

    Shapes, dtypes and results: see the recurrence `delta_rule`, with q and k (B, T, 1, K) and no gate.
    Source: docs/recurrences.md#state_first.

    Raises:
        Unsupported: heads with keys or queries of their own, gates, or a low-rank term.
    """
    if log_a is not None or p is not None or r is not None or beta is None:
        raise Unsupported("state_first computes the plain delta rule: beta, and no log_a, p or r")
    if q.shape[2] != 1 or k.shape[2] != 1:
        raise Unsupported("state_first needs queries and keys that all heads share, (B, T, 1, K)")
    if cu_seqlens is not None:
        packed = {"q": q, "k": k, "v": v, "beta": beta}
        return one_by_one(state_first, cu_seqlens, packed, initial_state)
    return solve_in_chunks(q.squeeze(2), k.squeeze(2), v, beta, initial_state, CHUNK)


def solve_in_chunks(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, initial_state: Tensor | None, C: int
) -> tuple[Tensor, Tensor]:
    """Compute output (B, T, H, V) and final state for shared q and k (B, T, K), in chunks of C steps.

    u = β (v − K s − …) solves (I + diag(β) tril(K Kᵀ, −1)) u = β ⊙ (v − K s); o = Q s + tril(Q Kᵀ) u;
    s ← s + Kᵀ u. Everything but the solve acts on all channels at once; the state is (B, K, H·V).
    """
    B, T, H, V = v.shape
    dtype, wide = v.dtype, torch.float32
    for operand in (q, k, v, beta):
        wide = torch.promote_types(wide, operand.dtype)
    q, k, v, beta = (_chunks(x.to(wide), C) for x in (q, k, v.flatten(2), beta))  # (B, N, C, ·)
    overlap = (k @ k.mT).tril(-1)
    state = v.new_zeros(B, k.shape[-1], H * V)
    if initial_state is not None:
        state = initial_state.to(wide).transpose(1, 2).flatten(2).contiguous()
    starts, corrections = [], []
    for k_n, v_n, beta_n, overlap_n in zip(*(x.unbind(1) for x in (k, v, beta, overlap)), strict=True):
        rate = beta_n.mT.unsqueeze(-1)  # (B, H, C, 1)
        error = (v_n - k_n @ state).unflatten(-1, (H, V)).transpose(1, 2)
        u = torch.linalg.solve_triangular(
            rate * overlap_n.unsqueeze(1), rate * error, upper=False, unitriangular=True
        )
        u = u.transpose(1, 2).flatten(2)
        starts.append(state)
        corrections.append(u)
        state = state + k_n.mT @ u
    output = q @ torch.stack(starts, dim=1) + (q @ k.mT).tril() @ torch.stack(corrections, dim=1)
    output = output.flatten(1, 2)[:, :T].unflatten(-1, (H, V)).to(dtype)
    return output, state.unflatten(-1, (H, V)).transpose(1, 2)


def _chunks(x: Tensor, C: int) -> Tensor:
    """Cut (B, T, F) into (B, N, C, F). Zeros fill the last chunk: they change no state."""
    padded = functional.pad(x, (0, 0, 0, -x.shape[1] % C))
    chunks: Tensor = padded.unflatten(1, (-1, C))
    return chunks
