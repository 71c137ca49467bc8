"""DSS: diagonal state spaces whose kernel is written down directly, with an exponential or a softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, model

from . import _papers as papers
from ._ssm_blocks import DSSBlock
from .diagonal import DiagonalSSM, Modes, in_working_precision, log_steps, presets, vandermonde

PRESETS = presets({"smoke": 8, "standard": 64, "long": 64})


@model(
    "dss_exp", recurrence="long_conv", paper=f"{papers.DSS}, proposition 1(a)", gate="none", presets=PRESETS
)
class DSSExp(DiagonalSSM):
    """K_j = Re Σ_n w_n (exp(Λ_n Δ) − 1)/Λ_n · exp(Λ_n Δ j), Λ = −exp(Λ_re) + iΛ_im, y = K * x + D ⊙ x.

    All N complex modes are stored; the channels share Λ and have their own w and Δ. Starts from
    Λ_n = −½ + iπn. x and y are (B, T, C).
    """

    block = DSSBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C, N = self.shape["C"], self.shape["N"]
        self.eigenvalue_log_real = nn.Parameter(torch.full((N,), math.log(0.5)))
        self.eigenvalue_imag = nn.Parameter(math.pi * torch.arange(N))
        self.w_real = nn.Parameter(torch.randn(C, N))
        self.w_imag = nn.Parameter(torch.randn(C, N))
        self.log_step = nn.Parameter(log_steps(C))
        self.D = nn.Parameter(torch.randn(C))

    def modes(self) -> Modes:
        eigenvalues = torch.complex(
            -torch.exp(self.eigenvalue_log_real.double()), self.eigenvalue_imag.double()
        )
        log_gate = torch.exp(self.log_step.double()).unsqueeze(-1) * eigenvalues  # (C, N)
        w = torch.complex(self.w_real.double(), self.w_imag.double())
        weights = w * torch.expm1(log_gate) / eigenvalues
        return in_working_precision(log_gate.real, log_gate.imag, weights, self.log_step)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        eigenvalues = -torch.exp(W["eigenvalue_log_real"]) + 1j * W["eigenvalue_imag"]
        a = torch.exp(torch.exp(W["log_step"])[:, None] * eigenvalues)
        b = (a - 1) / eigenvalues
        w = W["w_real"] + 1j * W["w_imag"]
        state, y = torch.zeros_like(a).expand(len(x), -1, -1), []
        for t in range(x.shape[1]):
            state = a * state + b * x[:, t, :, None]
            y.append((w * state).sum(-1).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)


@model(
    "dss_softmax",
    recurrence="long_conv",
    paper=f"{papers.DSS}, proposition 1(b)",
    gate="none",
    presets=PRESETS,
)
class DSSSoftmax(Model):
    """K = Re Σ_n (w_n/Λ_n) softmax_j(Λ_n Δ j) over the lags j < T, Λ = Λ_re + iΛ_im, y = K * x + D ⊙ x.

    Each row is a diagonal system with a = exp(ΛΔ) and b = (a − 1)/(Λ(a^T − 1)): T enters it, so a prefix of
    the input gives another layer. Re Λ may be positive, which the softmax normalises. All N complex modes
    are stored; the channels share Λ and have their own w and Δ. Starts from Λ_n = −½ + iπn.
    x and y are (B, T, C).
    """

    block = DSSBlock
    depends_on_length = True

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C, N = self.shape["C"], self.shape["N"]
        self.eigenvalue_real = nn.Parameter(torch.full((N,), -0.5))
        self.eigenvalue_imag = nn.Parameter(math.pi * torch.arange(N))
        self.w_real = nn.Parameter(torch.randn(C, N))
        self.w_imag = nn.Parameter(torch.randn(C, N))
        self.log_step = nn.Parameter(log_steps(C))
        self.D = nn.Parameter(torch.randn(C))

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {"u": x, "kernel": self.kernel(x.shape[1])}

    def kernel(self, T: int) -> Tensor:
        """Form K (C, T), with each row's softmax shifted by its largest exponent.

        The largest is at lag 0 for Re Λ ≤ 0, and at lag T − 1 otherwise, where the row is built from its end.
        So no exponential grows: the sum of a row is (1 − z^T)/(1 − z) with z = exp(∓ΛΔ), |z| ≤ 1.
        """
        eigenvalues = torch.complex(self.eigenvalue_real.double(), self.eigenvalue_imag.double())
        grows = self.eigenvalue_real > 0
        log_z = torch.exp(self.log_step.double()).unsqueeze(-1) * torch.where(
            grows, -eigenvalues, eigenvalues
        )
        w = torch.complex(self.w_real.double(), self.w_imag.double())
        weights = w / eigenvalues * torch.expm1(log_z) / torch.expm1(T * log_z)
        forth, back = (
            vandermonde(
                in_working_precision(log_z.real, log_z.imag, torch.where(chosen, weights, 0), self.log_step),
                T,
            )
            for chosen in (~grows, grows)
        )
        return forth + back.flip(1)

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        T = x.shape[1]
        eigenvalues = W["eigenvalue_real"] + 1j * W["eigenvalue_imag"]
        a = torch.exp(torch.exp(W["log_step"])[:, None] * eigenvalues)
        b = (a - 1) / (eigenvalues * (a**T - 1))
        w = W["w_real"] + 1j * W["w_imag"]
        state, y = torch.zeros_like(a).expand(len(x), -1, -1), []
        for t in range(T):
            state = a * state + b * x[:, t, :, None]
            y.append((w * state).sum(-1).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)
