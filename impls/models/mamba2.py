"""Mamba-2's state space dual (SSD) layer: one data-dependent decay per head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import Mamba2Block

STEP_RANGE = (1e-3, 1e-1)
RATE_RANGE = (1.0, 16.0)

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 32, "V": 16}],
    "standard": [{"B": 8, "H": 32, "K": 128, "V": 64}],
    "long": [{"B": 1, "H": 32, "K": 128, "V": 64}],
}


@model(
    "mamba2",
    recurrence="linear_attention",
    paper=f"{papers.MAMBA2}, section 7",
    gate="scalar",
    presets=PRESETS,
)
class Mamba2(Model):
    """S_t = exp(Δ_t a_h) S_{t−1} + B_t (Δ_t x_t)ᵀ, y_t = S_tᵀ C_t + D_h x_t, Δ = softplus(W u + b) per head.

    x_t, B_t, C_t and Δ_t are parallel projections of the block's input u. a_h = −exp(A_log) < 0; B_t and C_t
    are shared by all heads (one group). The state is K × V, the paper's N × P. The convolution of x, B and C
    and its SiLU, the gate and the norm belong to the block. Starts with −a_h uniform in [1, 16], softplus(b)
    log-uniform in [1e-3, 1e-1] and D = 1. u is (B, T, H·V/expand), y (B, T, H·V); q and k are expanded over
    the heads, not copied.

    expand: how much wider x is than u.

    Raises:
        UsageError: H·V is not divisible by `expand`.
    """

    block = Mamba2Block

    def __init__(self, shape: Mapping[str, int], *, expand: int = 2) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        inner = H * self.shape["V"]
        if expand < 1 or inner % expand:
            raise UsageError(f"mamba2 projects H·V = {inner} channels from one in {expand}: it must divide")
        self.expand = expand
        self.input = nn.Linear(self.width, inner, bias=False)
        self.B = nn.Linear(self.width, K, bias=False)
        self.C = nn.Linear(self.width, K, bias=False)
        self.step = nn.Linear(self.width, H, bias=False)
        low, high = map(math.log, STEP_RANGE)
        step = torch.exp(low + (high - low) * torch.rand(H))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(step_bias) = step
        self.A_log = nn.Parameter(torch.log(torch.empty(H).uniform_(*RATE_RANGE)))
        self.D = nn.Parameter(torch.ones(H))

    @property
    def width(self) -> int:
        return self.shape["H"] * self.shape["V"] // self.expand

    def project(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Project u to x, B and C side by side (B, T, H·V + 2K), and to Δ before its softplus (B, T, H)."""
        return torch.cat([self.input(u), self.B(u), self.C(u)], dim=-1), self.step(u)

    def lower(self, inputs: Tensor, step: Tensor) -> dict[str, Any]:
        """Form the operands from the results of `project`; a block may convolve x, B and C in between."""
        H, K = self.shape["H"], self.shape["K"]
        x, b, c = inputs.split([H * self.shape["V"], K, K], dim=-1)
        step = functional.softplus(gate_precision(step) + gate_precision(self.step_bias))
        shared = (*x.shape[:2], H, K)
        return {
            "q": c.unsqueeze(2).expand(shared),
            "k": b.unsqueeze(2).expand(shared),
            "v": (step.unsqueeze(-1) * x.unflatten(-1, (H, -1))).to(x.dtype),
            "log_a": -step * torch.exp(gate_precision(self.A_log)),
        }

    def skip(self, output: Tensor, inputs: Tensor) -> Tensor:
        """Form y from the recurrence's output and from x, the first channels of `inputs`."""
        H, V = self.shape["H"], self.shape["V"]
        x = inputs[..., : H * V].unflatten(-1, (H, V))
        y: Tensor = output + self.D.unsqueeze(-1) * x
        return y.flatten(-2)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(*self.project(x))

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return self.skip(output, self.input(x))

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        u = x.double()
        delta = torch.log(1 + torch.exp(u @ W["step.weight"].mT + W["step_bias"]))
        a = torch.exp(-delta * torch.exp(W["A_log"]))
        b_t, c_t = u @ W["B.weight"].mT, u @ W["C.weight"].mT
        x = (u @ W["input.weight"].mT).view(B, T, H, V)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            write = torch.einsum("bk,bh,bhv->bhkv", b_t[:, t], delta[:, t], x[:, t])
            S = a[:, t].view(B, H, 1, 1) * S + write
            y.append(torch.einsum("bhkv,bk->bhv", S, c_t[:, t]) + W["D"].view(H, 1) * x[:, t])
        return torch.stack(y, dim=1).reshape(B, T, H * V)
