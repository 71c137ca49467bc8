"""HGRN: elementwise gated recurrence with a lower-bounded forget gate, real and complex."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import HGRNBlock

PAPER = f"{papers.HGRN}, section 3"


def layer_bounds(gamma: Tensor) -> Tensor:
    """Form the lower bounds β of all layers: running sums of softmax(Γ), less its first row (cumax).

    Args:
        gamma: Γ (L, ·), one row per layer; the paper's is (L, C) and starts as ones.

    Returns:
        β like Γ, differentiable: 0 in the first layer, growing to 1 − softmax(Γ)_1 < 1 in the last (5/6 with
        six layers at the start).
    """
    share = torch.softmax(gamma, dim=0)
    return torch.cat([torch.zeros_like(share[:1]), share[1:].cumsum(0)])


class LayerBounds(nn.Module):
    """The parameter Γ (L, C) from which all layers of a network take their lower bounds; starts as ones."""

    def __init__(self, layers: int, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(layers, channels))

    def forward(self, layer: int) -> Tensor:
        """Form β of one layer (C,), in float32 or wider."""
        return layer_bounds(gate_precision(self.gamma))[layer]


class LayerBound(nn.Module):
    """The lower bound of one layer, formed from the network's Γ whenever it is asked for."""

    def __init__(self, bounds: LayerBounds, layer: int) -> None:
        super().__init__()
        self.bounds, self.layer = bounds, layer

    def forward(self) -> Tensor:
        """Form β (C,), in float32 or wider."""
        beta: Tensor = self.bounds(self.layer)
        return beta

    def definition(self) -> Tensor:
        """Form β (C,) in float64, by the paper's equation."""
        share = torch.softmax(self.bounds.gamma.double(), dim=0)
        return share[1 : self.layer + 1].sum(0)


Bound = float | Tensor | LayerBound


class Bounded(Model):
    """A model with a lower bound β of its forget gate: a number, a tensor, or a `LayerBound` of a network.

    A tensor is kept as it is, so that gradients reach whatever it was computed from.

    lower_bound: β, in [0, 1).

    Raises:
        UsageError: a number, or an entry of a tensor, outside [0, 1).
    """

    block = HGRNBlock

    def __init__(self, shape: Mapping[str, int], *, lower_bound: Bound = 0.0) -> None:
        super().__init__(shape)
        self.lower_bound = lower_bound if isinstance(lower_bound, LayerBound) else checked_bound(lower_bound)

    @staticmethod
    def bounded_channels(shape: Mapping[str, int], options: Mapping[str, Any]) -> int:
        """Count the channels of β from the constructor's arguments."""
        return shape["C"]

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        bounds = LayerBounds(layers, cls.bounded_channels(shape, options))
        return [{"lower_bound": LayerBound(bounds, layer)} for layer in range(layers)]

    def bound(self) -> float | Tensor:
        """Give β with the present parameters."""
        return self.lower_bound() if isinstance(self.lower_bound, LayerBound) else self.lower_bound

    def exact_bound(self) -> Tensor:
        """Give β in float64, for the definition."""
        if isinstance(self.lower_bound, LayerBound):
            return self.lower_bound.definition()
        return torch.as_tensor(self.lower_bound, dtype=torch.float64)


def checked_bound(lower_bound: float | Tensor) -> float | Tensor:
    """Give the bound back. Raises UsageError where it, or any entry of a tensor, is outside [0, 1)."""
    bounds = torch.as_tensor(lower_bound, dtype=torch.float64, device="cpu")  # also in a model built on meta
    if not bool(((bounds >= 0) & (bounds < 1)).all()):
        raise UsageError(f"the forget gate's lower bound must be in [0, 1), got {lower_bound}")
    return lower_bound


def forget_gate(z: Tensor, lower_bound: float | Tensor) -> tuple[Tensor, Tensor]:
    """Form log f ≤ 0 and 1 − f of f = β + (1 − β)σ(z), at gate precision, accurate near f = 1 and f = β.

    f = σ(z)(1 + β e^(−z)), so log f is a difference of softplus that is logsigmoid(z) for β = 0. β is a
    number or a tensor that broadcasts to z; where it is exactly 0, as in a first layer, it gets no gradient.
    """
    z = gate_precision(z)
    log_bound: float | Tensor
    if isinstance(lower_bound, Tensor):
        lower_bound = lower_bound.to(z)
        bounded = lower_bound > 0
        log_bound = torch.where(bounded, torch.log(torch.where(bounded, lower_bound, 1)), -math.inf)
    else:
        log_bound = math.log(lower_bound) if lower_bound else -math.inf
    log_f = functional.softplus(log_bound - z) - functional.softplus(-z)
    return log_f, (1 - lower_bound) * torch.sigmoid(-z)


@model("hgrn", recurrence="scan", paper=f"{PAPER}, real form", gate="data")
class HGRN(Bounded):
    """h_t = f_t ⊙ h_{t−1} + (1 − f_t) ⊙ i_t, y_t = o_t ⊙ h_t, f_t = β + (1 − β)σ(·), i = SiLU(·), o = σ(·).

    The lower bound β, a number or a tensor (C,), grows with depth (`layer_bounds`): 0 in the first layer, the
    default here, and 5/6 in the last of six at initialisation. In a network all layers take it from one Γ.
    The norm of y belongs to the block. As in the paper's equation the gate o comes before the norm; the
    published code norms h first, and its gate is a SiLU. x and y are (B, T, C).
    """

    def __init__(self, shape: Mapping[str, int], *, lower_bound: Bound = 0.0) -> None:
        super().__init__(shape, lower_bound=lower_bound)
        C = self.shape["C"]
        self.forget = nn.Linear(C, C)
        self.input = nn.Linear(C, C)
        self.output = nn.Linear(C, C)

    def operands(self, x: Tensor) -> dict[str, Any]:
        log_f, rest = forget_gate(self.forget(x), self.bound())
        candidate = functional.silu(gate_precision(self.input(x)))
        return {"log_a": log_f, "b": (rest * candidate).to(x.dtype)}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return torch.sigmoid(self.output(x)) * output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        beta = self.exact_bound().to(x.device)
        f = beta + (1 - beta) * torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        i = functional.silu(x @ W["input.weight"].mT + W["input.bias"])
        o = torch.sigmoid(x @ W["output.weight"].mT + W["output.bias"])
        h, y = torch.zeros_like(f[:, 0]), []
        for t in range(x.shape[1]):
            h = f[:, t] * h + (1 - f[:, t]) * i[:, t]
            y.append(o[:, t] * h)
        return torch.stack(y, dim=1)


@model(
    "hgrn_complex",
    recurrence="scan",
    paper=f"{PAPER}, complex form",
    gate="data_complex",
    dtypes=("float64", "float32"),
)
class HGRNComplex(Bounded):
    """h_t = f_t e^(iθ) ⊙ h_{t−1} + (1 − f_t) ⊙ c_t, y_t = o_t ⊙ [Re h_t, Im h_t], c_t complex.

    θ_c = 10000^(−2c/C) at initialisation, learnable and not data-dependent. The SiLU acts on the real and
    imaginary parts, which are interleaved. f and β as in HGRN. x is (B, T, C), y (B, T, 2C).
    """

    def __init__(self, shape: Mapping[str, int], *, lower_bound: Bound = 0.0) -> None:
        super().__init__(shape, lower_bound=lower_bound)
        C = self.shape["C"]
        self.forget = nn.Linear(C, C)
        self.input = nn.Linear(C, 2 * C)
        self.output = nn.Linear(C, 2 * C)
        self.theta = nn.Parameter(torch.pow(10000.0, -2 * torch.arange(C) / C))

    def operands(self, x: Tensor) -> dict[str, Any]:
        log_f, rest = forget_gate(self.forget(x), self.bound())
        parts = functional.silu(gate_precision(self.input(x))).unflatten(-1, (-1, 2))
        return {
            "log_a": log_f,
            "b": torch.view_as_complex(rest.unsqueeze(-1) * parts),
            "phase": gate_precision(self.theta).view(1, 1, -1),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        features = torch.cat([output.real, output.imag], dim=-1).to(x.dtype)
        return torch.sigmoid(self.output(x)) * features

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        beta = self.exact_bound().to(x.device)
        f = beta + (1 - beta) * torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        parts = functional.silu(x @ W["input.weight"].mT + W["input.bias"])
        c = parts[..., 0::2] + 1j * parts[..., 1::2]
        o = torch.sigmoid(x @ W["output.weight"].mT + W["output.bias"])
        h, y = torch.zeros_like(c[:, 0]), []
        for t in range(x.shape[1]):
            h = f[:, t] * torch.exp(1j * W["theta"]) * h + (1 - f[:, t]) * c[:, t]
            y.append(o[:, t] * torch.cat([h.real, h.imag], dim=-1))
        return torch.stack(y, dim=1)
