"""S4D: S4 with a diagonal state matrix, in its two closed-form initialisations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ssmperf.authoring import model

from . import _papers as papers
from ._ssm_blocks import S4Block
from .diagonal import DiagonalSSM, Modes, in_working_precision, log_steps, pairs, presets

PRESETS = presets({"smoke": 16, "standard": 64, "long": 64})


class S4D(DiagonalSSM):
    """x_t = Ā x_{t−1} + B̄ u_t, y_t = 2 Re(C x_t) + D u_t per channel, Ā = exp(ΔA), B̄ = A⁻¹(Ā − 1) (ZOH).

    A = −exp(·) + i·(·) diagonal, B = 1; N/2 states of N are stored, one of each conjugate pair. Each channel
    trains its own A, C, Δ and D. x and y are (B, T, C).

    Raises:
        UsageError: N is odd.
    """

    block = S4Block

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C, N = self.shape["C"], self.shape["N"]
        n = pairs(self.name, N)
        self.A_log_real = nn.Parameter(torch.full((C, n), math.log(0.5)))
        self.A_imag = nn.Parameter(self.frequencies(n).expand(C, n).clone())
        self.C_real = nn.Parameter(torch.randn(C, n) * math.sqrt(0.5))
        self.C_imag = nn.Parameter(torch.randn(C, n) * math.sqrt(0.5))
        self.log_step = nn.Parameter(log_steps(C))
        self.D = nn.Parameter(torch.randn(C))

    def frequencies(self, n: int) -> Tensor:
        """Give the start of Im A for n pairs, (n,)."""
        raise NotImplementedError

    def modes(self) -> Modes:
        A = torch.complex(-torch.exp(self.A_log_real.double()), self.A_imag.double())
        log_gate = torch.exp(self.log_step.double()).unsqueeze(-1) * A
        weights = 2 * torch.complex(self.C_real.double(), self.C_imag.double()) * torch.expm1(log_gate) / A
        return in_working_precision(log_gate.real, log_gate.imag, weights, self.log_step)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        A = -torch.exp(W["A_log_real"]) + 1j * W["A_imag"]
        C = W["C_real"] + 1j * W["C_imag"]
        A_bar = torch.exp(torch.exp(W["log_step"])[:, None] * A)
        B_bar = (A_bar - 1) / A
        state, y = torch.zeros_like(A).expand(len(x), -1, -1), []
        for t in range(x.shape[1]):
            state = A_bar * state + B_bar * x[:, t, :, None]
            y.append(2 * (C * state).sum(-1).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)


@model("s4d_lin", recurrence="long_conv", paper=f"{papers.S4D}, S4D-Lin", gate="none", presets=PRESETS)
class S4DLin(S4D):
    """S4D that starts from A_n = −½ + iπn, n = 0 .. N/2 − 1.

    Discretisation, states and parameters: see `S4D`. x and y are (B, T, C).
    """

    def frequencies(self, n: int) -> Tensor:
        return math.pi * torch.arange(n)


@model("s4d_inv", recurrence="long_conv", paper=f"{papers.S4D}, S4D-Inv", gate="none", presets=PRESETS)
class S4DInv(S4D):
    """S4D that starts from A_n = −½ + i (N/π)(N/(2n + 1) − 1), n = 0 .. N/2 − 1, near S4's spectrum.

    Discretisation, states and parameters: see `S4D`. x and y are (B, T, C).
    """

    def frequencies(self, n: int) -> Tensor:
        N = 2 * n
        return N / math.pi * (N / (2 * torch.arange(n) + 1) - 1)
