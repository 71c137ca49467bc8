"""TNN: a Toeplitz kernel that a small network gives from the position, and its exact state space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf import Model, gate_precision, model

from .diagonal import Modes, run

HIDDEN = 32  # width of the position encoder


def exact_state_space(coefficients: Tensor, gamma: float) -> Modes:
    """The n modes (C, n) whose kernel is γ^j t_j for the lags j < n of coefficients t (C, n).

    With m = n + 1 and t_n = −Σ t, so that the inverse transform has no entry 0: weights b = ifft(t)_{1..n},
    gates γ exp(−2πi j/m). Lags from n on repeat t_0 .. t_n with period m under the decay: exact for n steps.
    Accelerating Toeplitz Neural Network with Constant-time Inference Complexity (Qin and Zhong, 2023).
    """
    n = coefficients.shape[-1]
    closed = torch.cat([coefficients, -coefficients.sum(-1, keepdim=True)], dim=-1)
    weights = torch.fft.ifft(closed, dim=-1)[:, 1:]
    index = torch.arange(1, n + 1, dtype=torch.float64, device=coefficients.device)
    angle = (-2 * math.pi / (n + 1) * index).expand(weights.shape)
    return Modes(torch.full_like(weights.real, math.log(gamma)), angle, weights)


@model(
    "tnn",
    recurrence="long_conv",
    paper="Toeplitz Neural Network for Sequence Modeling (Qin et al., 2023), section 3",
    gate="none",
)
class TNN(Model):
    """y_t = SiLU(W_u x_t) ⊙ Σ_{j<t} γ^j RPE(j/T) SiLU(W_v x_{t−j}), the gated Toeplitz unit.

    RPE is a network of three layers from the position, as a part of the length, to C coefficients: T enters
    it, so a prefix of the input gives another layer. γ is fixed. The expansion by 3 and the output projection
    belong to the block. x and y are (B, T, C).
    """

    depends_on_length = True

    def __init__(self, shape: Mapping[str, int], *, gamma: float = 0.99) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        self.gamma = gamma
        self.value = nn.Linear(C, C)
        self.gate = nn.Linear(C, C)
        self.position = nn.Linear(1, HIDDEN)
        self.hidden = nn.Linear(HIDDEN, HIDDEN)
        self.coefficient = nn.Linear(HIDDEN, C)

    def coefficients(self, T: int) -> Tensor:
        """RPE(j/T) for j = 0 .. T − 1 as (C, T), float32 or wider."""
        working = gate_precision(self.position.weight)
        h = torch.arange(T, dtype=working.dtype, device=working.device).unsqueeze(-1) / T
        for layer in (self.position, self.hidden, self.coefficient):
            h = functional.relu(h) if layer is not self.position else h
            h = functional.linear(h, gate_precision(layer.weight), gate_precision(layer.bias))
        return h.mT

    def operands(self, x: Tensor) -> dict[str, Any]:
        coefficients = self.coefficients(x.shape[1])
        lags = torch.arange(x.shape[1], device=x.device)
        decay = torch.exp(math.log(self.gamma) * lags.to(coefficients.dtype))
        return {"u": functional.silu(self.value(x)), "kernel": decay * coefficients}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return functional.silu(self.gate(x)) * output

    def recurrent(self, x: Tensor, state: Tensor | None = None, *, length: int) -> tuple[Tensor, Tensor]:
        """The layer for sequences of `length` as a loop over time, which streams: y and the state after x.

        Exact for the first `length` steps. state: (B, C, length) complex; zeros if None.
        """
        modes = exact_state_space(self.coefficients(length), self.gamma)
        output, state = run(modes, functional.silu(self.value(x)), state)
        return self.readout(output, x), state

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        T = x.shape[1]
        kernel = []
        for j in range(T):
            position = torch.full((1,), j / T, dtype=x.dtype, device=x.device)
            h = functional.relu(W["position.weight"] @ position + W["position.bias"])
            h = functional.relu(W["hidden.weight"] @ h + W["hidden.bias"])
            kernel.append(self.gamma**j * (W["coefficient.weight"] @ h + W["coefficient.bias"]))
        v = functional.silu(x @ W["value.weight"].mT + W["value.bias"])
        u = functional.silu(x @ W["gate.weight"].mT + W["gate.bias"])
        y = []
        for t in range(T):
            total = torch.zeros_like(x[:, 0])
            for j in range(t + 1):
                total = total + kernel[j] * v[:, t - j]
            y.append(u[:, t] * total)
        return torch.stack(y, dim=1)
