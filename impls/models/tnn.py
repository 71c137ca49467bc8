"""TNN: a Toeplitz kernel that a small network gives from the lag, and its exact state space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import ChannelBlock, Channels, Norm
from ._parts import EqualGLU, SimpleRMSNorm, checked_width
from .diagonal import Modes, run

HIDDEN = 32  # width of the position encoder
NORM_EPSILON = 1e-8


def exact_state_space(coefficients: Tensor, gamma: float) -> Modes:
    """Find the n modes (C, n) whose kernel is γ^j t_j for the lags j < n of coefficients t (C, n).

    With m = n + 1 and t_n = −Σ t, so that the inverse transform has no entry 0: weights b = ifft(t)_{1..n},
    gates γ exp(−2πi j/m). Lags from n on repeat t_0 .. t_n with period m under the decay, so that the modes
    are exact for n steps. Source: ETSC (arXiv:2311.08756).
    """
    n = coefficients.shape[-1]
    closed = torch.cat([coefficients, -coefficients.sum(-1, keepdim=True)], dim=-1)
    weights = torch.fft.ifft(closed, dim=-1)[:, 1:]
    index = torch.arange(1, n + 1, dtype=torch.float64, device=coefficients.device)
    angle = (-2 * math.pi / (n + 1) * index).expand(weights.shape)
    return Modes(torch.full_like(weights.real, math.log(gamma)), angle, weights)


class TNNBlock(ChannelBlock):
    """x + W mixer(norm(x)) + b, then a GLU as wide inside as outside; biases, norms without weights."""

    norm_type: ClassVar[Norm] = SimpleRMSNorm
    channels_type: ClassVar[Channels] = EqualGLU

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.output = nn.Linear(self.output.in_features, self.width)


@model(
    "tnn",
    recurrence="long_conv",
    paper=f"{papers.TNN}, section 3; {papers.ETSC}, section 3",
    gate="none",
)
class TNN(Model):
    """y_t = SiLU(W_u x_t) ⊙ Σ_{j<t} γ^j RPE(j) SiLU(W_v x_{t−j}), the gated Toeplitz unit.

    RPE maps the integer lag j to C coefficients by three layers, with ReLU and a norm without parameters
    before the second and the third, as published. So the kernel of a prefix is that of the whole. γ is fixed.
    The output projection belongs to the block. x is (B, T, width), y (B, T, C); the paper has three times as
    many channels as its layer is wide, which `width` gives: C/3.

    gamma: γ, in (0, 1].
    by_length: divide the lag by the length T, a variant in the published code: T then enters the kernel, and
        a prefix of the input gives another layer.
    width: of x; C if None.

    Raises:
        UsageError: a gamma outside (0, 1], or a width below 1.
    """

    block = TNNBlock

    def __init__(
        self,
        shape: Mapping[str, int],
        *,
        gamma: float = 0.99,
        by_length: bool = False,
        width: int | None = None,
    ) -> None:
        if not 0 < gamma <= 1:
            raise UsageError(f"gamma must be in (0, 1], got {gamma}")
        super().__init__(shape)
        C = self.shape["C"]
        self.gamma, self.by_length = gamma, by_length
        self.depends_on_length = by_length  # type: ignore[misc]  # of this layer, not of its class
        self.input_width = checked_width(width)
        self.value = nn.Linear(self.width, C)
        self.gate = nn.Linear(self.width, C)
        self.position = nn.Linear(1, HIDDEN)
        self.hidden = nn.Linear(HIDDEN, HIDDEN)
        self.coefficient = nn.Linear(HIDDEN, C)

    def coefficients(self, T: int) -> Tensor:
        """Compute RPE at the lags 0 .. T − 1 of sequences of length T, as (C, T), float32 or wider."""
        working = gate_precision(self.position.weight)
        h = torch.arange(T, dtype=working.dtype, device=working.device).unsqueeze(-1)
        h = h / T if self.by_length else h
        for layer in (self.position, self.hidden, self.coefficient):
            if layer is not self.position:
                h = functional.relu(functional.rms_norm(h, (HIDDEN,), eps=NORM_EPSILON))
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
        """Compute the layer as a loop over time, which streams: y and the state after x.

        length: number of steps, all pieces together, for which the loop is exact; with `by_length`, the
            length of the whole sequence. The state is (B, C, length) complex; zeros if None.
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
            lag = torch.full((1,), j / T if self.by_length else j, dtype=x.dtype, device=x.device)
            h = W["position.weight"] @ lag + W["position.bias"]
            for layer in ("hidden", "coefficient"):
                h = h / torch.sqrt((h * h).mean() + 1e-8)
                h = W[f"{layer}.weight"] @ functional.relu(h) + W[f"{layer}.bias"]
            kernel.append(self.gamma**j * h)
        v = functional.silu(x @ W["value.weight"].mT + W["value.bias"])
        u = functional.silu(x @ W["gate.weight"].mT + W["gate.bias"])
        y = []
        for t in range(T):
            total = torch.zeros_like(v[:, 0])
            for j in range(t + 1):
                total = total + kernel[j] * v[:, t - j]
            y.append(u[:, t] * total)
        return torch.stack(y, dim=1)
