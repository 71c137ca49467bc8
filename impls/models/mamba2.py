"""Mamba-2's state space dual (SSD) layer: one data-dependent decay per head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf import Model, gate_precision, model

from ._blocks import Mamba2Block

STEP_RANGE = (1e-3, 1e-1)
RATE_RANGE = (1.0, 16.0)

PRESETS = {
    "smoke": [
        {"B": 1, "T": 64, "H": 2, "K": 32, "V": 16},
        {"B": 1, "T": 128, "H": 2, "K": 32, "V": 16},
        {"B": 1, "T": 256, "H": 2, "K": 32, "V": 16},
    ],
    "standard": [{"B": 8, "T": 2048, "H": 32, "K": 128, "V": 64}],
    "long": [{"B": 1, "T": 65536, "H": 32, "K": 128, "V": 64}],
}


@model(
    "mamba2",
    recurrence="linear_attention",
    paper="Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space "
    "Duality (Dao and Gu, 2024), section 7",
    gate="scalar",
    presets=PRESETS,
)
class Mamba2(Model):
    """S_t = exp(Δ_t a_h) S_{t−1} + B_t (Δ_t x_t)ᵀ, y_t = S_tᵀ C_t + D_h x_t, Δ = softplus(W x + b) per head.

    a_h = −exp(A_log) < 0; B_t and C_t are shared by all heads (one group). The state is K × V, the paper's
    N × P. The input projection, convolution, gate and norm belong to the block: x is the activation after
    them. Starts with −a_h uniform in [1, 16], softplus(b) log-uniform in [1e-3, 1e-1] and D = 1. x and y
    are (B, T, H·V); q and k are expanded over the heads, not copied.
    """

    block = Mamba2Block

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        self.B = nn.Linear(self.width, K, bias=False)
        self.C = nn.Linear(self.width, K, bias=False)
        self.step = nn.Linear(self.width, H, bias=False)
        low, high = map(math.log, STEP_RANGE)
        step = torch.exp(low + (high - low) * torch.rand(H))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(step_bias) = step
        self.A_log = nn.Parameter(torch.log(torch.empty(H).uniform_(*RATE_RANGE)))
        self.D = nn.Parameter(torch.ones(H))

    def operands(self, x: Tensor) -> dict[str, Any]:
        H, K = self.shape["H"], self.shape["K"]
        step = gate_precision(self.step(x)) + gate_precision(self.step_bias)
        step = functional.softplus(step)  # (B, T, H)
        shared = (*x.shape[:2], H, K)
        return {
            "q": self.C(x).unsqueeze(2).expand(shared),
            "k": self.B(x).unsqueeze(2).expand(shared),
            "v": (step.unsqueeze(-1) * x.unflatten(-1, (H, -1))).to(x.dtype),
            "log_a": -step * torch.exp(gate_precision(self.A_log)),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        skip = self.D.unsqueeze(-1) * x.unflatten(-1, (self.shape["H"], -1))
        return (output + skip).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        delta = torch.log(1 + torch.exp(x @ W["step.weight"].mT + W["step_bias"]))
        a = torch.exp(-delta * torch.exp(W["A_log"]))
        b_t, c_t = x @ W["B.weight"].mT, x @ W["C.weight"].mT
        x = x.view(B, T, H, V)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            write = torch.einsum("bk,bh,bhv->bhkv", b_t[:, t], delta[:, t], x[:, t])
            S = a[:, t].view(B, H, 1, 1) * S + write
            y.append(torch.einsum("bhkv,bk->bhv", S, c_t[:, t]) + W["D"].view(H, 1) * x[:, t])
        return torch.stack(y, dim=1).reshape(B, T, H * V)
