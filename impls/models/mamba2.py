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
    are shared by all heads (one group), or where the shape has G by each of G groups of H/G heads. The state
    is K × V, the paper's N × P. The convolution of x, B and C and its SiLU, the gate and the norm belong to
    the block. Starts with −a_h uniform in [1, 16], softplus(b) log-uniform in [1e-3, 1e-1] and D = 1. u is
    (B, T, H·V/expand), y (B, T, H·V). q and k have G heads; without a G they are expanded over the H heads,
    not copied.

    expand: how much wider x is than u.

    Raises:
        UsageError: H·V is not divisible by `expand`.
    """

    block = Mamba2Block
    projects_key_heads = True

    def __init__(self, shape: Mapping[str, int], *, expand: int = 2) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        inner = H * self.shape["V"]
        if expand < 1 or inner % expand:
            raise UsageError(f"mamba2 projects H·V = {inner} channels from one in {expand}: it must divide")
        self.expand = expand
        self.groups = self.shape.get("G", 1)
        self.input = nn.Linear(self.width, inner, bias=False)
        self.B = nn.Linear(self.width, self.groups * K, bias=False)
        self.C = nn.Linear(self.width, self.groups * K, bias=False)
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
        """Project u to x, B and C side by side (B, T, H·V + 2G·K), and to Δ before its softplus (B, T, H)."""
        return torch.cat([self.input(u), self.B(u), self.C(u)], dim=-1), self.step(u)

    def lower(self, inputs: Tensor, step: Tensor) -> dict[str, Any]:
        """Form the operands from the results of `project`; a block may convolve x, B and C in between."""
        H, K = self.shape["H"], self.shape["K"]
        x, b, c = inputs.split([H * self.shape["V"], self.groups * K, self.groups * K], dim=-1)
        step = functional.softplus(gate_precision(step) + gate_precision(self.step_bias))
        b, c = (z.unflatten(-1, (self.groups, K)) for z in (b, c))
        if "G" not in self.shape:
            b, c = (z.expand(-1, -1, H, -1) for z in (b, c))
        return {
            "q": c,
            "k": b,
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
        b_t, c_t = ((u @ W[name].mT).view(B, T, -1, K) for name in ("B.weight", "C.weight"))
        b_t, c_t = (z.repeat_interleave(H // z.shape[2], dim=2) for z in (b_t, c_t))
        x = (u @ W["input.weight"].mT).view(B, T, H, V)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            write = torch.einsum("bhk,bh,bhv->bhkv", b_t[:, t], delta[:, t], x[:, t])
            S = a[:, t].view(B, H, 1, 1) * S + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, c_t[:, t]) + W["D"].view(H, 1) * x[:, t])
        return torch.stack(y, dim=1).reshape(B, T, H * V)
