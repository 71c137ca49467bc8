"""Mamba's selective state space layer (S6), discretised by Euler's rule and by a zero-order hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import MambaBlock
from ._parts import checked_rank, low_rank

STEP_RANGE = (1e-3, 1e-1)


@model(
    "mamba",
    recurrence="selective_scan",
    paper=f"{papers.MAMBA}, algorithm 2 and section 3.6, with B̄ = ΔB as in the authors' code",
    gate="exp",
)
class Mamba(Model):
    """S_t = exp(Δ_t ⊗ A) ⊙ S_{t−1} + (Δ_t ⊙ x_t) B_tᵀ, y_t = S_t C_t + D ⊙ x_t.

    Δ = softplus(W x + b) with W of low rank, A = −exp(A_log); B_t and C_t (N) are linear in x and shared by
    the channels. Starts with A = −(1 .. N) in every channel, softplus(b) log-uniform in [1e-3, 1e-1] and
    D = 1. The input projection, convolution, SiLU and gate belong to the block: x is the activation after
    them. x and y are (B, T, D).

    rank: of W; by default ⌈d/16⌉ for the width d = D/2 of the block, as published.

    Raises:
        UsageError: a rank below 1.
    """

    block = MambaBlock

    def __init__(self, shape: Mapping[str, int], *, rank: int | None = None) -> None:
        super().__init__(shape)
        D, N = self.shape["D"], self.shape["N"]
        rank = low_rank(D) if rank is None else checked_rank(rank)
        self.B = nn.Linear(D, N, bias=False)
        self.C = nn.Linear(D, N, bias=False)
        self.step_down = nn.Linear(D, rank, bias=False)
        self.step_up = nn.Linear(rank, D, bias=False)
        nn.init.uniform_(self.step_up.weight, -(rank**-0.5), rank**-0.5)
        low, high = map(math.log, STEP_RANGE)
        step = torch.exp(low + (high - low) * torch.rand(D))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(step_bias) = step
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, N + 1)).expand(D, N).clone())
        self.D = nn.Parameter(torch.ones(D))

    def operands(self, x: Tensor) -> dict[str, Any]:
        step = gate_precision(self.step_up(self.step_down(x))) + gate_precision(self.step_bias)
        return {
            "x": x,
            "delta": functional.softplus(step),
            "k": self.B(x),
            "q": self.C(x),
            "A": -torch.exp(gate_precision(self.A_log)),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x, A = x.double(), -torch.exp(W["A_log"])
        b, c = x @ W["B.weight"].mT, x @ W["C.weight"].mT
        step = x @ W["step_down.weight"].mT @ W["step_up.weight"].mT + W["step_bias"]
        delta = torch.logaddexp(step, torch.zeros_like(step)).unsqueeze(-1)  # log(1 + exp(step))
        S, y = x.new_zeros(x.shape[0], *A.shape), []
        for t in range(x.shape[1]):
            B_bar = self.discretized(delta[:, t], A) * b[:, t].unsqueeze(1)
            S = torch.exp(delta[:, t] * A) * S + B_bar * x[:, t].unsqueeze(-1)
            y.append(torch.einsum("bdn,bn->bd", S, c[:, t]) + W["D"] * x[:, t])
        return torch.stack(y, dim=1)

    def discretized(self, delta: Tensor, A: Tensor) -> Tensor:
        """Give B̄ / B of the definition, from Δ (B, D, 1) and A (D, N)."""
        return delta


@model(
    "mamba_zoh",
    recurrence="selective_scan",
    paper=f"{papers.MAMBA}, eq. 4 and algorithm 2: B̄ = (ΔA)⁻¹(exp(ΔA) − I)·ΔB; {papers.LINEARIZATION}, S6",
    gate="exp_zoh",
)
class MambaZOH(Mamba):
    """Mamba with B̄ = (exp(ΔA) − 1)/A ⊙ B, the zero-order hold that its paper derives.

    A different function from `mamba`. Parameters, their start, x and y are those of `mamba`.
    """

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {**super().operands(x), "discretization": "zoh"}

    def discretized(self, delta: Tensor, A: Tensor) -> Tensor:
        return (torch.exp(delta * A) - 1) / A
