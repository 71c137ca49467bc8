"""Griffin's real-gated linear recurrent unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import GriffinBlock

SHARPNESS = 8.0  # the paper's c
MAX_SLOPE = 1000.0  # the published code's bound on d√x/dx, which is infinite at a = 1
RING = (0.9, 0.999)


class _ClippedRoot(torch.autograd.Function):
    """√x, with its derivative 1/(2√x) clipped at MAX_SLOPE."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = torch.sqrt(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        root: Tensor = ctx.saved_tensors[0]
        return grad / (2 * root).clamp(min=1 / MAX_SLOPE)


@model(
    "rg_lru",
    recurrence="scan",
    paper=f"{papers.GRIFFIN}, eqs. 1–4",
    gate="data",
)
class RGLRU(Model):
    """h_t = a_t ⊙ h_{t−1} + √(1 − a_t²) ⊙ (i_t ⊙ x_t), log a_t = −8 r_t ⊙ softplus(Λ), r and i sigmoids.

    Λ starts with the radius exp(−softplus(Λ)) area-uniform on the ring [0.9, 0.999]. As in the published
    code the root's slope is clipped at 1000. That code's input multiplier of 1 at a sequence's first step is
    left out: a resumed sequence could not tell its first step. r and i are dense, block-diagonal in the
    published code. x and y are (B, T, C).
    """

    block = GriffinBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        self.recurrence_gate = nn.Linear(C, C)
        self.input_gate = nn.Linear(C, C)
        low, high = (radius**2 for radius in RING)
        rate = -0.5 * torch.log(low + (high - low) * torch.rand(C))
        self.decay = nn.Parameter(torch.log(torch.expm1(rate)))  # Λ, softplus(Λ) = rate

    def operands(self, x: Tensor) -> dict[str, Any]:
        r = torch.sigmoid(gate_precision(self.recurrence_gate(x)))
        i = torch.sigmoid(gate_precision(self.input_gate(x)))
        log_a = -SHARPNESS * r * functional.softplus(gate_precision(self.decay))
        root: Tensor = _ClippedRoot.apply(-torch.expm1(2 * log_a))  # type: ignore[no-untyped-call]
        return {"log_a": log_a, "b": (root * i * x).to(x.dtype)}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        r = torch.sigmoid(x @ W["recurrence_gate.weight"].mT + W["recurrence_gate.bias"])
        i = torch.sigmoid(x @ W["input_gate.weight"].mT + W["input_gate.bias"])
        a = torch.sigmoid(-W["decay"]) ** (8 * r)
        h, y = torch.zeros_like(a[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + torch.sqrt(1 - a[:, t] ** 2) * (i[:, t] * x[:, t])
            y.append(h)
        return torch.stack(y, dim=1)
