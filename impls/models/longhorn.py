"""Longhorn: the state of an online learner of associations, with a diagonal update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import MambaBlock
from ._parts import checked_rank, low_rank


@model(
    "longhorn",
    recurrence="selective_scan",
    paper=f"{papers.LONGHORN}, eqs. 8–9 and algorithm 1",
    gate="implicit",
)
class Longhorn(Model):
    """S_t = (1 − Δ_t ⊗ k_t²) ⊙ S_{t−1} + (Δ_t ⊙ x_t) k_tᵀ, y_t = S_t q_t + D ⊙ x_t, Δ = β / (1 + β k·k).

    β = σ(W x + b) in (0, 1) with W of low rank: the weight of a channel's error (sᵀk − x)² in its objective.
    k_t and q_t (N) are linear in x and shared by the channels. Starts with D = 1 and b = 0, as published. The
    input projection, convolution, SiLU and gate belong to the block: x is the activation after them. x and y
    are (B, T, D).

    rank: of W; by default ⌈d/16⌉ for the width d = D/2 of the block, as published.

    Raises:
        UsageError: a rank below 1.
    """

    block = MambaBlock

    def __init__(self, shape: Mapping[str, int], *, rank: int | None = None) -> None:
        super().__init__(shape)
        D, N = self.shape["D"], self.shape["N"]
        rank = low_rank(D) if rank is None else checked_rank(rank)
        self.key = nn.Linear(D, N, bias=False)
        self.query = nn.Linear(D, N, bias=False)
        self.beta_down = nn.Linear(D, rank, bias=False)
        self.beta_up = nn.Linear(rank, D)
        nn.init.zeros_(self.beta_up.bias)
        self.D = nn.Parameter(torch.ones(D))

    def operands(self, x: Tensor) -> dict[str, Any]:
        k = self.key(x)
        beta = torch.sigmoid(gate_precision(self.beta_up(self.beta_down(x))))
        return {
            "x": x,
            "delta": beta / (1 + beta * gate_precision(k).square().sum(-1, keepdim=True)),
            "k": k,
            "q": self.query(x),
            "gate": "implicit",
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        k, q = x @ W["key.weight"].mT, x @ W["query.weight"].mT
        beta = 1 / (
            1 + torch.exp(-(x @ W["beta_down.weight"].mT @ W["beta_up.weight"].mT + W["beta_up.bias"]))
        )
        S, y = x.new_zeros(*x.shape[::2], k.shape[-1]), []
        for t in range(x.shape[1]):
            k_t, x_t = k[:, t].unsqueeze(1), x[:, t].unsqueeze(-1)
            delta = beta[:, t].unsqueeze(-1) / (
                1 + beta[:, t].unsqueeze(-1) * (k_t * k_t).sum(-1, keepdim=True)
            )
            S = (1 - delta * k_t**2) * S + delta * k_t * x_t
            y.append(torch.einsum("bdn,bn->bd", S, q[:, t]) + W["D"] * x[:, t])
        return torch.stack(y, dim=1)
