"""Gated linear attention: a data-dependent gate per key channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import GatedBlock
from ._parts import above_zero, checked_rank


@model(
    "gla",
    recurrence="linear_attention",
    paper=f"{papers.GLA}, sections 4.1 and 4.4",
    gate="key",
)
class GLA(Model):
    """S_t = diag(α_t) S_{t−1} + k_t v_tᵀ, o_t = K^(−1/2) S_tᵀ q_t, α_t = σ(x_t W₁W₂ + b)^(1/τ).

    The head norm and the swish gate on o belong to the block. x and y are (B, T, H·V).

    rank: of W₁W₂.
    tau: τ.

    Raises:
        UsageError: a rank below 1, or a tau that is not above 0.
    """

    block = GatedBlock

    def __init__(self, shape: Mapping[str, int], *, rank: int = 16, tau: float = 16.0) -> None:
        super().__init__(shape)
        self.tau = above_zero("tau", tau)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        self.gate_down = nn.Linear(self.width, checked_rank(rank), bias=False)
        self.gate_up = nn.Linear(rank, H * K)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        gate = gate_precision(self.gate_up(self.gate_down(x)))
        return {
            "q": self.query(x).unflatten(-1, heads) * self.shape["K"] ** -0.5,
            "k": self.key(x).unflatten(-1, heads),
            "v": self.value(x).unflatten(-1, heads),
            "log_a": (functional.logsigmoid(gate) / self.tau).unflatten(-1, heads),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        gate = x @ W["gate_down.weight"].mT @ W["gate_up.weight"].mT + W["gate_up.bias"]
        alpha = torch.sigmoid(gate).pow(1 / self.tau).view(B, T, H, K)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = alpha[:, t].unsqueeze(-1) * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) / K**0.5)
        return torch.stack(y, dim=1).reshape(B, T, H * V)
