"""LRU: a linear time-invariant recurrence with a stable complex diagonal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._ssm_blocks import S4Block


def ring(
    N: int, *, min_radius: float = 0.9, max_radius: float = 0.999, max_phase: float = math.pi / 10
) -> tuple[Tensor, Tensor]:
    """Draw ν and θ of λ = exp(−exp(ν) + iθ), area-uniform between two radii, with phases up to a maximum."""
    low, high = min_radius**2, max_radius**2
    nu = torch.log(-0.5 * torch.log(low + (high - low) * torch.rand(N)))
    return nu, max_phase * (1 - torch.rand(N))  # rand may be 0, never 1


@model(
    "lru",
    recurrence="scan",
    paper=f"{papers.LRU}, section 3",
    gate="const_complex",
    dtypes=("float64", "float32"),
)
class LRU(Model):
    """h_t = λ ⊙ h_{t−1} + γ ⊙ (B x_t), y_t = Re(C h_t) + D ⊙ x_t, λ = exp(−exp(ν) + i exp(θ)), B, C complex.

    As many states as channels. log γ is trained, from √(1 − |λ|²). λ starts area-uniform on the ring
    [0.9, 0.999] with phases up to π/10, the paper's choice for long ranges. x and y are (B, T, C).

    min_radius: the least |λ| at the start, in [0, 1).
    max_radius: the largest |λ| at the start, in (0, 1].
    max_phase: the largest phase of λ at the start, in (0, 2π].

    Raises:
        UsageError: a radius or phase that is outside, or a min_radius above the max_radius.
    """

    block = S4Block

    def __init__(
        self,
        shape: Mapping[str, int],
        *,
        min_radius: float = 0.9,
        max_radius: float = 0.999,
        max_phase: float = math.pi / 10,
    ) -> None:
        if not (0 <= min_radius < 1 and 0 < max_radius <= 1 and min_radius <= max_radius):
            valid = "min_radius in [0, 1) and max_radius in (0, 1], not below it"
            raise UsageError(f"lru starts with {valid}, got {min_radius} and {max_radius}")
        if not 0 < max_phase <= 2 * math.pi:
            raise UsageError(f"max_phase must be in (0, 2π], got {max_phase}")
        super().__init__(shape)
        N = d = self.shape["C"]
        nu, theta = ring(N, min_radius=min_radius, max_radius=max_radius, max_phase=max_phase)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(torch.log(theta))
        self.log_gamma = nn.Parameter(0.5 * torch.log(-torch.expm1(-2 * torch.exp(nu))))
        self.B_real = nn.Parameter(torch.randn(N, d) / math.sqrt(2 * d))
        self.B_imag = nn.Parameter(torch.randn(N, d) / math.sqrt(2 * d))
        self.C_real = nn.Parameter(torch.randn(d, N) / math.sqrt(N))
        self.C_imag = nn.Parameter(torch.randn(d, N) / math.sqrt(N))
        self.D = nn.Parameter(torch.randn(d))

    def operands(self, x: Tensor) -> dict[str, Any]:
        gamma = torch.exp(gate_precision(self.log_gamma))
        real, imag = (gate_precision(functional.linear(x, part)) for part in (self.B_real, self.B_imag))
        return {
            "log_a": -torch.exp(gate_precision(self.nu)).view(1, 1, -1),
            "b": torch.complex(gamma * real, gamma * imag),
            "phase": torch.exp(gate_precision(self.theta)).view(1, 1, -1),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        real = functional.linear(output.real.to(x.dtype), self.C_real)
        return real - functional.linear(output.imag.to(x.dtype), self.C_imag) + self.D * x

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        eigenvalues = torch.exp(-torch.exp(W["nu"]) + 1j * torch.exp(W["theta"]))
        B = W["B_real"] + 1j * W["B_imag"]
        C = W["C_real"] + 1j * W["C_imag"]
        h, y = torch.zeros_like(x[:, 0] + 0j), []
        for t in range(x.shape[1]):
            h = eigenvalues * h + torch.exp(W["log_gamma"]) * (x[:, t] + 0j).matmul(B.mT)
            y.append(h.matmul(C.mT).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)
