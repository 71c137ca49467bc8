"""Models with a diagonal complex state space per channel: their kernel, streaming form and skip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, UsageError, gate_precision

from ..scan.common import gate as turn


@dataclass(frozen=True)
class Modes:
    """y_t = Re Σ_n w_n x_{t,n} with x_t = exp(log_a + i·angle) ⊙ x_{t−1} + u_t, all (C, n).

    log_a is ≤ 0. log_a and the complex weights w come in working precision. The angle, in radians, comes in
    float64, so that its multiples keep their phase.
    """

    log_a: Tensor
    angle: Tensor
    weights: Tensor


def vandermonde(modes: Modes, T: int) -> Tensor:
    """Form the kernel Re Σ_n w_n exp(j (log_a_n + i·angle_n)) at the lags j = 0 .. T − 1, as (C, T).

    Lags j = p·S + s with S about √T make it one product of matrices per channel, from O(√T) powers.
    """
    S = math.isqrt(max(1, T - 1)) + 1
    P = -(-T // S)

    def powers(count: int, step: int) -> Tensor:
        lags = step * torch.arange(count, device=modes.log_a.device)
        return turn(modes.log_a.unsqueeze(-1) * lags, modes.angle.unsqueeze(-1) * lags)

    coarse, fine = powers(P, S), powers(S, 1)  # (C, n, P), (C, n, S)
    kernel = (modes.weights.unsqueeze(-1) * coarse).mT @ fine
    return kernel.real.flatten(1)[:, :T]


def run(modes: Modes, u: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the modes' recurrence on u (B, T, C): y (B, T, C) in the dtype of u, and x_T (B, C, n) complex."""
    gate = turn(modes.log_a, modes.angle)
    h = gate.new_zeros(len(u), *gate.shape) if state is None else state
    outputs = []
    for u_t in gate_precision(u).unbind(1):
        h = gate * h + u_t.unsqueeze(-1)
        outputs.append((modes.weights * h).sum(-1).real)
    return torch.stack(outputs, dim=1).to(u.dtype), h


def log_steps(*size: int) -> Tensor:
    """Draw log Δ, with Δ log-uniform in [1e-3, 1e-1]."""
    low, high = math.log(1e-3), math.log(1e-1)
    return low + (high - low) * torch.rand(*size)


def pairs(name: str, N: int) -> int:
    """Count the conjugate pairs that hold N real states. Raises UsageError where N is odd."""
    if N % 2:
        raise UsageError(f"{name} stores one state of each conjugate pair: N must be even, got {N}")
    return N // 2


class DiagonalSSM(Model):
    """The convolution y = K * x + D ⊙ x whose kernel is a sum of `modes`. x and y are (B, T, C)."""

    D: nn.Parameter

    def modes(self) -> Modes:
        """Discretise the system of every channel."""
        raise NotImplementedError

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {"u": x, "kernel": vandermonde(self.modes(), x.shape[1])}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output + self.D * x

    def recurrent(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the layer as a loop over time, which streams: y (B, T, C) and the state after x.

        state: x_0 (B, C, n) complex, n the number of stored modes; zeros if None.
        """
        output, state = run(self.modes(), x, state)
        return self.readout(output, x), state


def in_working_precision(log_a: Tensor, angle: Tensor, weights: Tensor, like: Tensor) -> Modes:
    """Make modes of float64 values, for a layer with a parameter `like`."""
    working = gate_precision(like).dtype
    return Modes(log_a.to(working), angle, weights.to(working.to_complex()))


def presets(states: Mapping[str, int]) -> dict[str, list[dict[str, int]]]:
    """Give the shapes of each preset, from the number N of states per channel in it."""
    lengths = {"smoke": (64, 128, 256), "standard": (2048,), "long": (16384,)}
    sizes = {"smoke": (2, 16), "standard": (8, 1024), "long": (4, 512)}
    return {
        preset: [
            {"B": sizes[preset][0], "T": T, "C": sizes[preset][1], "N": states[preset]}
            for T in lengths[preset]
        ]
        for preset in lengths
    }
