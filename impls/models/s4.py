"""S4: a dense state matrix, diagonal plus low rank in a unitary basis, from HiPPO-LegS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._ssm_blocks import S4Block
from .diagonal import log_steps, pairs, presets


def legs(N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Form HiPPO-LegS as conjugate pairs: Λ, P and B of A = Λ − P P*, (N/2,) complex128 each.

    A + P Pᵀ with P_n = √(n + ½) is −½ I plus a skew-symmetric matrix, so its eigenvectors are unitary;
    those of LegS itself are exponentially ill-conditioned. N is even.
    """
    n = torch.arange(N, dtype=torch.float64)
    P = torch.sqrt(n + 0.5)
    skew = torch.outer(P, P) * torch.sign(n - n.unsqueeze(-1))  # A + P Pᵀ + ½ I
    theta, V = torch.linalg.eigh(-1j * skew)
    theta, V = theta[N // 2 :], V[:, N // 2 :]  # ascending, in pairs ±θ
    eigenvalues = torch.complex(torch.full_like(theta, -0.5), theta)
    return eigenvalues, V.mH @ (P + 0j), V.mH @ (torch.sqrt(2 * n + 1) + 0j)


@model(
    "s4",
    recurrence="long_conv",
    paper=f"{papers.S4}, algorithm 1; {papers.SASHIMI}, the Hurwitz form Λ − P P*",
    gate="none",
    presets=presets({"smoke": 16, "standard": 64, "long": 64}),
)
class S4(Model):
    """x_t = Ā x_{t−1} + B̄ u_t, y_t = 2 Re(C x_t) + D u_t per channel, A = Λ − P P*, bilinear rule.

    Ā = (I − ΔA/2)⁻¹(I + ΔA/2), B̄ = (I − ΔA/2)⁻¹ΔB. Λ = −exp(·) + i·(·), P and B start from HiPPO-LegS;
    each channel trains its own Λ, P, B, C, Δ and D, one of each conjugate pair, N/2 of N states.
    The kernel is formed in float64: float32 loses three digits near the fastest modes. x and y are (B, T, C).

    Raises:
        UsageError: N is odd.
    """

    block = S4Block

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C, N = self.shape["C"], self.shape["N"]
        n = pairs(self.name, N)
        eigenvalues, P, B = (start.to(torch.complex64).expand(C, n).clone() for start in legs(N))
        self.A_log_real = nn.Parameter(torch.log(-eigenvalues.real))
        self.A_imag = nn.Parameter(eigenvalues.imag.clone())
        self.P_real = nn.Parameter(P.real.clone())
        self.P_imag = nn.Parameter(P.imag.clone())
        self.B_real = nn.Parameter(B.real.clone())
        self.B_imag = nn.Parameter(B.imag.clone())
        self.C_real = nn.Parameter(torch.randn(C, n) * math.sqrt(0.5))
        self.C_imag = nn.Parameter(torch.randn(C, n) * math.sqrt(0.5))
        self.log_step = nn.Parameter(log_steps(C))
        self.D = nn.Parameter(torch.randn(C))

    def system(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Form Λ, P, B, C (C, N/2) complex128 and Δ (C, 1) float64."""

        def parts(name: str) -> Tensor:
            return torch.complex(
                getattr(self, f"{name}_real").double(), getattr(self, f"{name}_imag").double()
            )

        eigenvalues = torch.complex(-torch.exp(self.A_log_real.double()), self.A_imag.double())
        step = torch.exp(self.log_step.double()).unsqueeze(-1)
        return eigenvalues, parts("P"), parts("B"), parts("C"), step

    def discrete(self) -> tuple[Tensor, Tensor]:
        """Form dense Ā (C, N, N) and B̄ (C, N) over all states: the stored ones, then their conjugates."""
        eigenvalues, P, B, _, step = self.system()
        eigenvalues, P, B = (torch.cat([half, half.conj()], dim=-1) for half in (eigenvalues, P, B))
        A = torch.diag_embed(eigenvalues) - P.unsqueeze(-1) * P.conj().unsqueeze(-2)
        half_step = step.unsqueeze(-1) / 2 * A
        identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        forcing = (step * B).unsqueeze(-1)
        solved = torch.linalg.solve(identity - half_step, torch.cat([identity + half_step, forcing], dim=-1))
        return solved[..., :-1], solved[..., -1]

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {"u": x, "kernel": self.kernel(x.shape[1]).to(gate_precision(self.log_step).dtype)}

    def kernel(self, T: int) -> Tensor:
        """Form K_j = 2 Re(C Ā^j B̄), j < T, (C, T) float64, from its generating function at the roots of 1.

        Σ_j K_j z^j = C(1 − Ā^T) [(1 − z) − (1 + z)ΔA/2]⁻¹ ΔB, and the inverse by Woodbury from sums
        Σ_n X_n/((1 − z) − (1 + z)ΔΛ_n/2) over all states, which are Cauchy-like products.
        """
        eigenvalues, P, B, C, step = self.system()
        A_bar, _ = self.discrete()
        n = C.shape[-1]
        whole = torch.cat([C, C.conj()], dim=-1).unsqueeze(-2)
        truncated = (whole - whole @ torch.linalg.matrix_power(A_bar, T)).squeeze(-2)[:, :n]
        angle = 2 * math.pi / T * torch.arange(T // 2 + 1, dtype=torch.float64, device=C.device)
        z = torch.polar(torch.ones_like(angle), -angle)
        minus, plus = 1 - z, step / 2 * (1 + z)  # (F,), (C, F)
        products = torch.stack([truncated * B, truncated * P, P.conj() * B, P.conj() * P], dim=1)
        CB, CP, PB, PP = cauchy(products, eigenvalues, minus, plus).unbind(1)
        spectrum = step * (CB - plus * CP * PB / (1 + plus * PP))
        kernel: Tensor = torch.fft.irfft(spectrum, T, dim=-1)
        return kernel

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output + self.D * x

    def recurrent(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the layer as a loop over time with dense Ā, which streams: y (B, T, C) and the last state.

        state: x_0 (B, C, N/2) complex; zeros if None.
        """
        u = gate_precision(x)
        working = u.dtype.to_complex()
        A_bar, B_bar = (part[:, : part.shape[1] // 2].to(working) for part in self.discrete())
        C = self.system()[3].to(working)
        h = C.new_zeros(len(x), *C.shape) if state is None else state
        outputs = []
        for u_t in u.unbind(1):
            whole = torch.cat([h, h.conj()], dim=-1)
            h = torch.einsum("cnm,bcm->bcn", A_bar, whole) + B_bar * u_t.unsqueeze(-1)
            outputs.append(2 * (C * h).sum(-1).real)
        return self.readout(torch.stack(outputs, dim=1).to(x.dtype), x), h

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x, N = x.double(), self.shape["N"]
        stored = {
            "A": -torch.exp(W["A_log_real"]) + 1j * W["A_imag"],
            **{name: W[f"{name}_real"] + 1j * W[f"{name}_imag"] for name in "PBC"},
        }
        full = {name: torch.cat([value, value.conj()], dim=1) for name, value in stored.items()}
        A = torch.diag_embed(full["A"]) - torch.einsum("cn,cm->cnm", full["P"], full["P"].conj())
        step = torch.exp(W["log_step"])[:, None, None]
        inverse = torch.linalg.inv(torch.eye(N, device=x.device) - step / 2 * A)
        A_bar = inverse @ (torch.eye(N, device=x.device) + step / 2 * A)
        B_bar = torch.einsum("cnm,cm->cn", inverse, step[..., 0] * full["B"])
        state, y = torch.zeros_like(B_bar).expand(len(x), -1, -1), []
        for t in range(x.shape[1]):
            state = torch.einsum("cnm,bcm->bcn", A_bar, state) + B_bar * x[:, t, :, None]
            y.append((full["C"] * state).sum(-1).real + W["D"] * x[:, t])
        return torch.stack(y, dim=1)


def cauchy(X: Tensor, eigenvalues: Tensor, minus: Tensor, plus: Tensor) -> Tensor:
    """Sum X_n/(minus − plus Λ_n) + conj(X_n)/(minus − plus conj(Λ_n)) over n, as (C, k, F).

    X: (C, k, n) complex. eigenvalues: (C, n). minus: (F,). plus: (C, F). The two conjugate terms share the
    real-coefficient denominator minus² − 2 Re(Λ) minus plus + |Λ|² plus².
    """
    minus = minus.unsqueeze(0)
    denominator = (
        minus.square().unsqueeze(1)
        - 2 * eigenvalues.real.unsqueeze(-1) * (minus * plus).unsqueeze(1)
        + (eigenvalues * eigenvalues.conj()).real.unsqueeze(-1) * plus.square().unsqueeze(1)
    ).reciprocal()  # (C, n, F)
    constant = 2 * X.real
    linear = 2 * (X * eigenvalues.conj().unsqueeze(1)).real
    sums = torch.cat([constant, linear], dim=1).to(denominator.dtype) @ denominator
    over_minus, over_plus = sums.chunk(2, dim=1)
    return minus.unsqueeze(1) * over_minus - plus.unsqueeze(1) * over_plus
