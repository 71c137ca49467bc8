"""RWKV-4: an average of values with exponentially decaying weights, one decay per channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._rwkv_blocks import RWKV4Block


def decay_speed(channels: int, depth: float) -> Tensor:
    """Give the published start of ω: −5 in the first channel to 3 in the last, so w from 0.0067 to 20."""
    place = torch.arange(channels) / max(channels - 1, 1)
    return -5 + 8 * place ** (0.7 + 1.3 * depth)


def first_bonus(channels: int) -> Tensor:
    """Give the published start of u: log 0.3 and a zigzag of 0, ½, −½."""
    return math.log(0.3) + 0.5 * ((torch.arange(channels) + 1) % 3 - 1)


@model(
    "rwkv4",
    recurrence="ratio_scan",
    paper=f"{papers.RWKV}, section 3.1, eq. 16",
    gate="const",
)
class RWKV4(Model):
    """y_t = σ(r_t) ⊙ wkv_t; wkv_t averages v_s with weights e^{−(t−1−s)w + k_s} for s < t and e^{u+k_t}.

    w = exp(ω). Token shift and output projection belong to the block. x and y are (B, T, C).

    depth: place of the layer from 0, the first, to 1, the last; it enters the start of ω only.

    Raises:
        UsageError: a depth outside [0, 1].
    """

    block = RWKV4Block

    def __init__(self, shape: Mapping[str, int], *, depth: float = 0.0) -> None:
        if not 0 <= depth <= 1:
            raise UsageError(f"the depth must be in [0, 1], got {depth}")
        super().__init__(shape)
        C = self.shape["C"]
        self.receptance = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.omega = nn.Parameter(decay_speed(C, depth))
        self.bonus = nn.Parameter(first_bonus(C))

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        return [{"depth": layer / max(layers - 1, 1)} for layer in range(layers)]

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {
            "log_w": -torch.exp(gate_precision(self.omega)),
            "k": self.key(x),
            "v": self.value(x),
            "bonus": gate_precision(self.bonus),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return torch.sigmoid(self.receptance(x)) * output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        r, k, v = (x @ W[f"{name}.weight"].mT for name in ("receptance", "key", "value"))
        w, y = torch.exp(W["omega"]), []
        for t in range(x.shape[1]):
            age = torch.arange(t - 1, -1, -1, device=x.device, dtype=x.dtype).unsqueeze(-1)
            exponents = torch.cat([k[:, :t] - age * w, W["bonus"] + k[:, t : t + 1]], dim=1)
            wkv = (torch.softmax(exponents, dim=1) * v[:, : t + 1]).sum(1)
            y.append(torch.sigmoid(r[:, t]) * wkv)
        return torch.stack(y, dim=1)


@model(
    "rwkv4_nobonus",
    recurrence="ratio_scan",
    paper=f"{papers.LONGHORN}, example 2.4",
    gate="const",
)
class RWKV4WithoutBonus(RWKV4):
    """RWKV-4 as Longhorn restates it: weights e^{−(t−s)w + k_s} for s ≤ t, no bonus for the present token.

    Another function than RWKV-4 for every u: in RWKV-4 the past does not decay in the step that reads it.
    """

    def __init__(self, shape: Mapping[str, int], *, depth: float = 0.0) -> None:
        super().__init__(shape, depth=depth)
        del self.bonus

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {"log_w": -torch.exp(gate_precision(self.omega)), "k": self.key(x), "v": self.value(x)}

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        r, k, v = (x @ W[f"{name}.weight"].mT for name in ("receptance", "key", "value"))
        w, y = torch.exp(W["omega"]), []
        for t in range(x.shape[1]):
            age = torch.arange(t, -1, -1, device=x.device, dtype=x.dtype).unsqueeze(-1)
            wkv = (torch.softmax(k[:, : t + 1] - age * w, dim=1) * v[:, : t + 1]).sum(1)
            y.append(torch.sigmoid(r[:, t]) * wkv)
        return torch.stack(y, dim=1)
