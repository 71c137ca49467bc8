"""GateLoop: complex gates, data-controlled or fixed, max-headed (elementwise) or with a matrix state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import GateLoopBlock
from .lru import ring


@model(
    "gateloop",
    recurrence="scan",
    paper=f"{papers.GATELOOP}, max-headed form (d_h = 1)",
    gate="data_complex",
)
class GateLoop(Model):
    """h_t = a_t ⊙ h_{t−1} + k_t ⊙ v_t, y_t = q_t ⊙ Re h_t, a_t = σ(W_γ x_t) exp(i W_θ x_t).

    The variant that the paper trained: one head per channel. Phases are unbounded. x and y are (B, T, C).
    """

    block = GateLoopBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        self.query = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.magnitude = nn.Linear(C, C, bias=False)
        self.phase = nn.Linear(C, C, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {
            "log_a": functional.logsigmoid(gate_precision(self.magnitude(x))),
            "b": self.key(x) * self.value(x),
            "phase": gate_precision(self.phase(x)),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.query(x) * output.real.to(x.dtype)
        return y

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        q, k, v = (x @ W[f"{name}.weight"].mT for name in ("query", "key", "value"))
        a = torch.sigmoid(x @ W["magnitude.weight"].mT) * torch.exp(1j * (x @ W["phase.weight"].mT))
        h, y = torch.zeros_like(a[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + k[:, t] * v[:, t]
            y.append(q[:, t] * h.real)
        return torch.stack(y, dim=1)


@model(
    "gateloop_fixed",
    recurrence="scan",
    paper=f"{papers.GATELOOP}, Fig. 6, the fixed state transition",
    gate="const_complex",
)
class GateLoopFixed(Model):
    """h_t = a ⊙ h_{t−1} + k_t ⊙ v_t, y_t = q_t ⊙ Re h_t with one a = exp(−exp(ν) + iθ) per channel, learned.

    The baseline that the paper compares its data-controlled transitions with. How a starts is not printed;
    here it is LRU's start: magnitudes area-uniform on the ring [0.9, 0.999] and phases up to π/10.
    x and y are (B, T, C).
    """

    block = GateLoopBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        self.query = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        nu, theta = ring(C)
        self.nu, self.theta = nn.Parameter(nu), nn.Parameter(theta)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {
            "log_a": -torch.exp(gate_precision(self.nu)).view(1, 1, -1),
            "b": self.key(x) * self.value(x),
            "phase": gate_precision(self.theta).view(1, 1, -1),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.query(x) * output.real.to(x.dtype)
        return y

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        q, k, v = (x @ W[f"{name}.weight"].mT for name in ("query", "key", "value"))
        a = torch.exp(-torch.exp(W["nu"]) + 1j * W["theta"])
        h, y = torch.zeros_like(q[:, 0] + 0j), []
        for t in range(x.shape[1]):
            h = a * h + k[:, t] * v[:, t]
            y.append(q[:, t] * h.real)
        return torch.stack(y, dim=1)


@model(
    "gateloop_full", recurrence="linear_attention", paper=f"{papers.GATELOOP}, eqs. 14–21", gate="key_complex"
)
class GateLoopFull(Model):
    """S_t = diag(a_t) S_{t−1} + k_t v_tᵀ, y_t = Re(q_tᵀ S_t), a_t = σ(W_γ x_t) exp(i W_θ x_t), q, k, v real.

    The gate is on the key axis, as in the paper's eqs. 14–21 (its eq. 7 as printed gates the value axis).
    x and y are (B, T, H·V).
    """

    block = GateLoopBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        self.magnitude = nn.Linear(self.width, H * K, bias=False)
        self.phase = nn.Linear(self.width, H * K, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        return {
            "q": self.query(x).unflatten(-1, heads),
            "k": self.key(x).unflatten(-1, heads),
            "v": self.value(x).unflatten(-1, heads),
            "log_a": functional.logsigmoid(gate_precision(self.magnitude(x))).unflatten(-1, heads),
            "phase": gate_precision(self.phase(x)).unflatten(-1, heads),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k = ((x @ W[f"{name}.weight"].mT).view(B, T, H, K) for name in ("query", "key"))
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        a = torch.sigmoid(x @ W["magnitude.weight"].mT) * torch.exp(1j * (x @ W["phase.weight"].mT))
        a = a.view(B, T, H, K)
        S, y = a.new_zeros(B, H, K, V), []
        for t in range(T):
            S = a[:, t].unsqueeze(-1) * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S.real))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
