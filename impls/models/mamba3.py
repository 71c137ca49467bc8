"""Mamba-3 with one input and output: trapezoidal writes, and rotations that depend on the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import Mamba3Block
from ._parts import EPSILON, RMSNorm
from .mamba2 import PRESETS, STEP_RANGE

LEAST_RATE = 1e-4  # of −A


@dataclass(frozen=True)
class Parts:
    """Inputs of the recurrence and of its diagonal, for all steps of a piece of a sequence.

    q, k: (B, T, H, K), before their rotation. v: (B, T, H, V). log_a, now, late: (B, T, H), the log gate, λΔ
    and (1 − λ)Δ. angle: (B, T, H, J) in float64, the sum of the rotations since the piece's start.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_a: Tensor
    now: Tensor
    late: Tensor
    angle: Tensor


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turn the channels 2j and 2j + 1 of x (..., K) by angle (..., J), j < J; later channels stay."""
    wide = gate_precision(x)
    cos, sin = torch.cos(angle).to(wide.dtype), torch.sin(angle).to(wide.dtype)
    pairs = 2 * angle.shape[-1]
    even, odd = wide[..., 0:pairs:2], wide[..., 1:pairs:2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([turned, wide[..., pairs:]], dim=-1).to(x.dtype)


@model(
    "mamba3",
    recurrence="linear_attention",
    paper=f"{papers.MAMBA3}, section 3, with one input and one output",
    gate="scalar",
    presets=PRESETS,
)
class Mamba3(Model):
    """S_t = α_t S_{t−1} + (1 − λ_t) Δ_t α_t k_{t−1} x_{t−1}ᵀ + λ_t Δ_t k_t x_tᵀ, y_t = S_tᵀ q_t + D_h x_t.

    Per head, α = exp(ΔA), Δ = softplus(W u + b), A = −softplus(W u) ≤ −1e-4 and λ = σ(W u). This A is that of
    the first release. Later code of the authors has A = −f(W u), f(z) = 1 + z for z ≥ 0 and 1/(1 − z) below.
    q_t and k_t are RMS-normed projections that the heads share, plus a bias per head. Then channels 2j and 2j
    + 1 turn by Σ_{s≤t} Δ_s π tanh(W u_s)_j. All are parallel projections of the block's input u, without a
    convolution. The gate belongs to the block. Starts with softplus(b) log-uniform in [1e-3, 1e-1], and with
    D and the biases of q and k at 1. u is (B, T, H·V/expand), y (B, T, H·V).

    A token is written once, with the weight λ_t Δ_t + (1 − λ_{t+1}) Δ_{t+1} of both writes together, into a
    state W. Hence the operation reads before the write, o_t = α_t W_{t−1}ᵀ q_t, and λ_t Δ_t (k_t·q_t) x_t is
    added. The last token of a piece of a sequence waits for its second write: the state that is passed on is
    [[S, k], [xᵀ, 0]] (B, H, K + 1, V + 1). It is turned back by the angle so far, so that the next piece
    counts angles from 0.

    expand: how much wider x is than u.
    rope_fraction: the share of the K channels that turn.

    Raises:
        UsageError: H·V is not divisible by `expand`, or no pair of channels turns.
    """

    block = Mamba3Block

    def __init__(self, shape: Mapping[str, int], *, expand: int = 2, rope_fraction: float = 0.5) -> None:
        super().__init__(shape)
        H, K = self.shape["H"], self.shape["K"]
        inner = H * self.shape["V"]
        if expand < 1 or inner % expand:
            raise UsageError(f"mamba3 projects H·V = {inner} channels from one in {expand}: it must divide")
        angles = int(K * rope_fraction) // 2 if 0 < rope_fraction <= 1 else 0
        if not angles:
            raise UsageError(f"mamba3 turns pairs of channels: {rope_fraction} of K = {K} is no pair")
        self.expand = expand
        self.input = nn.Linear(self.width, inner, bias=False)
        self.B = nn.Linear(self.width, K, bias=False)
        self.C = nn.Linear(self.width, K, bias=False)
        self.step = nn.Linear(self.width, H, bias=False)
        self.rate = nn.Linear(self.width, H, bias=False)
        self.balance = nn.Linear(self.width, H, bias=False)
        self.angle = nn.Linear(self.width, angles, bias=False)
        low, high = map(math.log, STEP_RANGE)
        step = torch.exp(low + (high - low) * torch.rand(H))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(step_bias) = step
        self.B_norm, self.C_norm = RMSNorm(K), RMSNorm(K)
        self.B_bias, self.C_bias = nn.Parameter(torch.ones(H, K)), nn.Parameter(torch.ones(H, K))
        self.D = nn.Parameter(torch.ones(H))

    @property
    def width(self) -> int:
        return self.shape["H"] * self.shape["V"] // self.expand

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        parts = self.parts(x)
        before = None
        if state is not None:
            written = parts.late[:, 0, :, None, None] * state[..., :-1, -1:] * state[..., -1:, :-1]
            before = state[..., :-1, :-1] + written.to(state.dtype)
        output, final = self.compute(self.lower(parts), backend, before)
        assert final is not None
        final = rotate(final.mT, -parts.angle[:, -1].unsqueeze(-2)).mT
        k, v = (each[:, -1].to(final.dtype) for each in (parts.k, parts.v))
        row = functional.pad(v, (0, 1)).unsqueeze(-2)
        after = torch.cat([torch.cat([final, k.unsqueeze(-1)], dim=-1), row], dim=-2)
        return self.finish(output, parts), after

    def parts(self, u: Tensor) -> Parts:
        """Project u to all that the recurrence needs."""
        step = functional.softplus(gate_precision(self.step(u)) + gate_precision(self.step_bias))
        rate = functional.softplus(gate_precision(self.rate(u))).clamp(min=LEAST_RATE)
        balance = gate_precision(self.balance(u))
        turn = step.unsqueeze(-1) * (math.pi * torch.tanh(gate_precision(self.angle(u)))).unsqueeze(-2)
        return Parts(
            q=self.C_norm(self.C(u)).unsqueeze(-2) + self.C_bias,
            k=self.B_norm(self.B(u)).unsqueeze(-2) + self.B_bias,
            v=self.input(u).unflatten(-1, (self.shape["H"], -1)),
            log_a=-step * rate,
            now=step * torch.sigmoid(balance),
            late=step * torch.sigmoid(-balance),
            angle=turn.double().cumsum(1),
        )

    def lower(self, parts: Parts) -> dict[str, Any]:
        """Form the operands."""
        dtype = parts.v.dtype
        weight = parts.now + functional.pad(parts.late[:, 1:], (0, 0, 0, 1))
        decayed = torch.exp(parts.log_a).unsqueeze(-1) * rotate(parts.q, parts.angle)
        return {
            "q": decayed.to(dtype),
            "k": rotate(parts.k, parts.angle),
            "v": (weight.unsqueeze(-1) * parts.v).to(dtype),
            "log_a": parts.log_a,
            "read": "pre",
        }

    def finish(self, output: Tensor, parts: Parts) -> Tensor:
        """Form y from the recurrence's output: add this step's write and the skip."""
        own = parts.now * gate_precision(parts.q * parts.k).sum(-1) + gate_precision(self.D)
        return (output + own.unsqueeze(-1) * parts.v).to(parts.v.dtype).flatten(-2)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(self.parts(x))

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return self.finish(output, self.parts(x))

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        u = x.double()

        def normed(name: str) -> Tensor:
            z = u @ W[f"{name}.weight"].mT
            z = z / torch.sqrt(z.square().mean(-1, keepdim=True) + EPSILON) * W[f"{name}_norm.weight"]
            return z.unsqueeze(-2) + W[f"{name}_bias"]

        def softplus(z: Tensor) -> Tensor:
            return torch.logaddexp(z, torch.zeros_like(z))

        q, k, v = normed("C"), normed("B"), (u @ W["input.weight"].mT).view(B, T, H, V)
        delta = softplus(u @ W["step.weight"].mT + W["step_bias"])
        a = torch.exp(-delta * softplus(u @ W["rate.weight"].mT).clamp(min=1e-4))
        lam = torch.sigmoid(u @ W["balance.weight"].mT)
        turn = delta.unsqueeze(-1) * math.pi * torch.tanh(u @ W["angle.weight"].mT).unsqueeze(-2)
        J = turn.shape[-1]

        def turned(z: Tensor, angle: Tensor) -> Tensor:
            pairs = torch.view_as_complex(z[..., : 2 * J].reshape(B, H, J, 2).contiguous())
            pairs = pairs * torch.polar(torch.ones_like(angle), angle)
            return torch.cat([torch.view_as_real(pairs).reshape(B, H, 2 * J), z[..., 2 * J :]], dim=-1)

        S, write, y = u.new_zeros(B, H, K, V), u.new_zeros(B, H, K, V), []
        angle = torch.zeros_like(turn[:, 0])
        for t in range(T):
            angle = angle + turn[:, t]
            alpha, lam_t, delta_t = (z[:, t, :, None, None] for z in (a, lam, delta))
            S = alpha * S + (1 - lam_t) * delta_t * alpha * write
            write = torch.einsum("bhk,bhv->bhkv", turned(k[:, t], angle), v[:, t])
            S = S + lam_t * delta_t * write
            read = torch.einsum("bhkv,bhk->bhv", S, turned(q[:, t], angle))
            y.append(read + W["D"].view(H, 1) * v[:, t])
        return torch.stack(y, dim=1).reshape(B, T, H * V)
