"""S5: one state space for all channels, with dense maps in and out; and the shared SISO reading of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._ssm_blocks import S5Block
from .diagonal import log_steps
from .s4 import legs

BLOCK = 64  # states, with their conjugates, of one HiPPO-N block


@model(
    "s5",
    recurrence="scan",
    paper=f"{papers.S5}, section 3",
    gate="const_complex",
    dtypes=("float64", "float32"),
)
class S5(Model):
    """x_t = Ā ⊙ x_{t−1} + B̄ u_t, y_t = 2 Re(C x_t) + D ⊙ u_t with B and C dense and complex, ZOH.

    Ā = exp(ΔΛ), B̄ = Λ⁻¹(Ā − 1) B, Λ = −exp(·) + i·(·), a Δ for each state. As many stored states, one of each
    conjugate pair, as channels; Λ starts from blocks of HiPPO-N, the normal part of LegS. x and y are
    (B, T, C).
    """

    block = S5Block

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        P = d = self.shape["C"]
        block, _, _ = legs(min(BLOCK, 2 * P))
        eigenvalues = block.repeat(-(-P // len(block)))[:P].to(torch.complex64)
        self.A_log_real = nn.Parameter(torch.log(-eigenvalues.real))
        self.A_imag = nn.Parameter(eigenvalues.imag.clone())
        self.log_step = nn.Parameter(log_steps(P))
        self.B_real = nn.Parameter(torch.randn(P, d) / math.sqrt(2 * d))
        self.B_imag = nn.Parameter(torch.randn(P, d) / math.sqrt(2 * d))
        self.C_real = nn.Parameter(torch.randn(d, P) / math.sqrt(2 * P))
        self.C_imag = nn.Parameter(torch.randn(d, P) / math.sqrt(2 * P))
        self.D = nn.Parameter(torch.randn(d))

    def operands(self, x: Tensor) -> dict[str, Any]:
        A = torch.complex(-torch.exp(gate_precision(self.A_log_real)), gate_precision(self.A_imag))
        log_gate = torch.exp(gate_precision(self.log_step)) * A
        real, imag = (gate_precision(functional.linear(x, part)) for part in (self.B_real, self.B_imag))
        return {
            "log_a": log_gate.real.view(1, 1, -1),
            "b": torch.expm1(log_gate) / A * torch.complex(real, imag),
            "phase": log_gate.imag.view(1, 1, -1),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        real = functional.linear(output.real.to(x.dtype), self.C_real)
        return 2 * (real - functional.linear(output.imag.to(x.dtype), self.C_imag)) + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        A = -torch.exp(W["A_log_real"]) + 1j * W["A_imag"]
        A_bar = torch.exp(torch.exp(W["log_step"]) * A)
        B_bar = ((A_bar - 1) / A)[:, None] * (W["B_real"] + 1j * W["B_imag"])
        C = W["C_real"] + 1j * W["C_imag"]
        state, y = torch.zeros_like(x[:, 0] + 0j), []
        for t in range(x.shape[1]):
            state = A_bar * state + (x[:, t] + 0j) @ B_bar.mT
            y.append(2 * (state @ C.mT).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)


@model(
    "s5_shared_siso",
    recurrence="linear_attention",
    paper=f"{papers.LCSM}, Table 1",
    gate="const_complex",
    presets={
        "smoke": [{"B": 2, "H": 1, "K": 8, "V": 16}],
        "standard": [{"B": 8, "H": 1, "K": 32, "V": 1024}],
        "long": [{"B": 1, "H": 1, "K": 32, "V": 1024}],
    },
)
class S5SharedSISO(Model):
    """S_t = diag(Ā) S_{t−1} + B̄ u_tᵀ, y_t = 2 Re(S_tᵀ C) + D ⊙ u_t: one system for a head's channels.

    This is not S5: its state has K·V numbers instead of K. B, C and Δ are vectors over the K stored states,
    one of each conjugate pair; ZOH; starts from A_n = −½ + iπn. x and y are (B, T, H·V).
    """

    block = S5Block

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        self.A_log_real = nn.Parameter(torch.full((H, K), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(K).expand(H, K).clone())
        self.log_step = nn.Parameter(log_steps(H, K))
        self.B_real = nn.Parameter(torch.randn(H, K) * math.sqrt(0.5))
        self.B_imag = nn.Parameter(torch.randn(H, K) * math.sqrt(0.5))
        self.C_real = nn.Parameter(torch.randn(H, K) * math.sqrt(0.5))
        self.C_imag = nn.Parameter(torch.randn(H, K) * math.sqrt(0.5))
        self.D = nn.Parameter(torch.randn(self.width))

    def operands(self, x: Tensor) -> dict[str, Any]:
        A = torch.complex(-torch.exp(gate_precision(self.A_log_real)), gate_precision(self.A_imag))
        B = torch.complex(gate_precision(self.B_real), gate_precision(self.B_imag))
        C = torch.complex(gate_precision(self.C_real), gate_precision(self.C_imag))
        log_gate = torch.exp(gate_precision(self.log_step)) * A
        steps = (*x.shape[:2], -1, -1)
        return {
            "q": (2 * C).expand(steps),
            "k": (torch.expm1(log_gate) / A * B).expand(steps),
            "v": x.unflatten(-1, (self.shape["H"], -1)),
            "log_a": log_gate.real,
            "phase": log_gate.imag,
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.real.to(x.dtype).flatten(-2) + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        A = -torch.exp(W["A_log_real"]) + 1j * W["A_imag"]
        A_bar = torch.exp(torch.exp(W["log_step"]) * A)
        B_bar = (A_bar - 1) / A * (W["B_real"] + 1j * W["B_imag"])
        C = W["C_real"] + 1j * W["C_imag"]
        state, y = torch.zeros(B, H, K, V, dtype=A.dtype, device=x.device), []
        for t in range(T):
            u = x[:, t].view(B, H, 1, V)
            state = A_bar[..., None] * state + B_bar[..., None] * u
            read = 2 * (C[..., None] * state).sum(-2).real
            y.append(read.reshape(B, H * V) + W["D"] * x[:, t])
        return torch.stack(y, dim=1)
