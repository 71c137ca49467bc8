"""LRN: the gated impulse linear recurrence (GILR), whose gate has no lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import NormedBlock


@model(
    "lrn",
    recurrence="scan",
    paper=f"{papers.LINEAR_RNN}, section 3.1; {papers.HGRN}, section 3, activation and output gate",
    gate="data",
)
class LRN(Model):
    """h_t = g_t ⊙ h_{t−1} + (1 − g_t) ⊙ i_t, y_t = o_t ⊙ h_t, g = σ(·), i = SiLU(·), o = σ(·).

    HGRN with β = 0. The paper leaves the activation of i open and has no output gate; both are taken from
    HGRN, so that the lower bound is the only difference. The norm of y belongs to the block. x and y are
    (B, T, C).
    """

    block = NormedBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        self.forget = nn.Linear(C, C)
        self.input = nn.Linear(C, C)
        self.output = nn.Linear(C, C)

    def operands(self, x: Tensor) -> dict[str, Any]:
        gate = gate_precision(self.forget(x))
        candidate = functional.silu(gate_precision(self.input(x)))
        return {"log_a": functional.logsigmoid(gate), "b": (torch.sigmoid(-gate) * candidate).to(x.dtype)}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return torch.sigmoid(self.output(x)) * output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        g, i, o = (x @ W[f"{name}.weight"].mT + W[f"{name}.bias"] for name in ("forget", "input", "output"))
        g, i, o = torch.sigmoid(g), i * torch.sigmoid(i), torch.sigmoid(o)
        h, y = torch.zeros_like(g[:, 0]), []
        for t in range(x.shape[1]):
            h = g[:, t] * h + (1 - g[:, t]) * i[:, t]
            y.append(o[:, t] * h)
        return torch.stack(y, dim=1)
