"""A model: its paper's equation as a loop, and its lowering to the scan, for all backends of the scan.

    ssmperf run --suite correctness,throughput --plugin examples/model.py --models t_rnn

All backends of the scan are judged by `definition` and timed on the operands of this model.
"""

import torch
from torch import nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model


@model("t_rnn", recurrence="scan", paper="Strongly-Typed Recurrent Neural Networks (2016)", gate="data")
class TRNN(Model):
    """h_t = f_t ⊙ h_{t−1} + (1 − f_t) ⊙ W x_t, f_t = σ(V x_t + b). x and h: (B, T, C)."""

    def __init__(self, shape):
        super().__init__(shape)
        C = self.shape["C"]
        self.candidate = nn.Linear(C, C, bias=False)
        self.forget = nn.Linear(C, C)

    def operands(self, x):
        forget = gate_precision(self.forget(x))  # gates travel as logs, in float32 or wider
        rest = torch.sigmoid(-forget)  # 1 − f, which 1 - sigmoid(forget) would round to 0
        return {"log_a": functional.logsigmoid(forget), "b": (rest * self.candidate(x)).to(x.dtype)}

    def readout(self, output, x):
        return output

    def definition(self, x):
        W, V, b = (w.double() for w in (self.candidate.weight, self.forget.weight, self.forget.bias))
        h, states = x.new_zeros(x[:, 0].shape, dtype=torch.float64), []
        for x_t in x.double().unbind(1):
            f_t = torch.sigmoid(x_t @ V.mT + b)
            h = f_t * h + (1 - f_t) * (x_t @ W.mT)
            states.append(h)
        return torch.stack(states, dim=1)
