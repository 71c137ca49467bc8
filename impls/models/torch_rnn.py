"""GRU and LSTM as torch.nn has them: nonlinear recurrences, the baselines of linear ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, model

from . import _papers as papers


@model(
    "gru",
    recurrence="rnn",
    paper=f"{papers.GRU}, section 2.3",
    gate="gru",
)
class GRU(Model):
    """h ← (1 − z) ⊙ n + z ⊙ h, n = tanh(W x + b + r ⊙ (U h + b')), C hidden units. x and y are (B, T, C).

    This is torch's form: the paper resets h before its product with U, torch after.
    """

    cell = "gru"
    blocks = 3
    weight_ih: nn.Parameter
    weight_hh: nn.Parameter
    bias_ih: nn.Parameter
    bias_hh: nn.Parameter

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        C = self.shape["C"]
        sizes = {
            "weight_ih": (self.blocks * C, C),
            "weight_hh": (self.blocks * C, C),
            "bias_ih": (self.blocks * C,),
            "bias_hh": (self.blocks * C,),
        }
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(torch.empty(size).uniform_(-(C**-0.5), C**-0.5)))

    def operands(self, x: Tensor) -> dict[str, Any]:
        weights = {name: getattr(self, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        return {"x": x, **weights, "cell": self.cell}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def definition(self, x: Tensor) -> Tensor:
        W_r, W_z, W_n = self.weight_ih.double().chunk(3)
        U_r, U_z, U_n = self.weight_hh.double().chunk(3)
        b_r, b_z, b_n = self.bias_ih.double().chunk(3)
        c_r, c_z, c_n = self.bias_hh.double().chunk(3)
        x, y = x.double(), []
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            r = torch.sigmoid(x[:, t] @ W_r.mT + b_r + h @ U_r.mT + c_r)
            z = torch.sigmoid(x[:, t] @ W_z.mT + b_z + h @ U_z.mT + c_z)
            n = torch.tanh(x[:, t] @ W_n.mT + b_n + r * (h @ U_n.mT + c_n))
            h = (1 - z) * n + z * h
            y.append(h)
        return torch.stack(y, dim=1)


@model(
    "lstm",
    recurrence="rnn",
    paper=f"{papers.LSTM}, section 4; {papers.FORGET_GATE}, section 3, the forget gate",
    gate="lstm",
)
class LSTM(GRU):
    """c ← f ⊙ c + i ⊙ g, h ← o ⊙ tanh(c), C hidden units, torch's order i, f, g, o. x and y are (B, T, C)."""

    cell = "lstm"
    blocks = 4

    def definition(self, x: Tensor) -> Tensor:
        W_i, W_f, W_g, W_o = self.weight_ih.double().chunk(4)
        U_i, U_f, U_g, U_o = self.weight_hh.double().chunk(4)
        b_i, b_f, b_g, b_o = (self.bias_ih.double() + self.bias_hh.double()).chunk(4)
        x, y = x.double(), []
        h = c = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            i = torch.sigmoid(x[:, t] @ W_i.mT + h @ U_i.mT + b_i)
            f = torch.sigmoid(x[:, t] @ W_f.mT + h @ U_f.mT + b_f)
            g = torch.tanh(x[:, t] @ W_g.mT + h @ U_g.mT + b_g)
            o = torch.sigmoid(x[:, t] @ W_o.mT + h @ U_o.mT + b_o)
            c = f * c + i * g
            h = o * torch.tanh(c)
            y.append(h)
        return torch.stack(y, dim=1)
