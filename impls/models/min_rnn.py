"""minGRU and minLSTM, with plain and with positive (log-space) candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, State, carry, gate_precision, model

from . import _papers as papers
from ._blocks import ChannelBlock, Channels, Norm
from ._parts import BiasedPerceptron, RMSNorm, ShortConvolution, checked_width


def log_positive(x: Tensor) -> Tensor:
    """Form log g(x) of the positive map g(x) = x + ½ for x ≥ 0, σ(x) below."""
    return torch.where(x >= 0, torch.log(functional.relu(x) + 0.5), -functional.softplus(-x))


class MinRNNBlock(ChannelBlock):
    """u = x + W₁ conv(x) + b₁, then u + W₂ mixer(norm(u)) + b₂, then a perceptron; RMS norms, and biases.

    The convolution is over four steps and has no norm before it.
    """

    norm_type: ClassVar[Norm] = RMSNorm
    channels_type: ClassVar[Channels] = BiasedPerceptron

    def __init__(self, model: Model, *, hidden: int | None = None) -> None:
        super().__init__(model, hidden=hidden)
        self.convolution = ShortConvolution(self.width)
        self.mixed = nn.Linear(self.width, self.width)
        self.output = nn.Linear(self.output.in_features, self.width)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: State | None = None
    ) -> tuple[Tensor, State | None]:
        before, tail = self.carried(state, 2)
        convolved, tail = self.convolution(x, tail)
        x = x + self.mixed(convolved)
        y, after = self.mixer(self.norm(x), backend=backend, state=before)
        x = x + self.output(y)
        return x + self.channels(self.channel_norm(x)), carry(after, tail)


@model(
    "mingru",
    recurrence="scan",
    paper=f"{papers.MIN_RNN}, section 3.1; {papers.LINEARIZATION}, algorithm 8",
    gate="data",
)
class MinGRU(Model):
    """h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ ñ_t, z = σ(W_z x + b), ñ = W_n x + b.

    x is (B, T, width), y (B, T, C); the paper calls C/width the expansion.

    width: of x; C if None.

    Raises:
        UsageError: a width below 1.
    """

    block = MinRNNBlock

    def __init__(self, shape: Mapping[str, int], *, width: int | None = None) -> None:
        super().__init__(shape)
        self.input_width = checked_width(width)
        C = self.shape["C"]
        self.update = nn.Linear(self.width, C)
        self.candidate = nn.Linear(self.width, C)

    def operands(self, x: Tensor) -> dict[str, Any]:
        update = gate_precision(self.update(x))
        return {
            "log_a": functional.logsigmoid(-update),
            "b": (torch.sigmoid(update) * self.candidate(x)).to(x.dtype),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        z = torch.sigmoid(x @ W["update.weight"].mT + W["update.bias"])
        n = x @ W["candidate.weight"].mT + W["candidate.bias"]
        h, y = torch.zeros_like(z[:, 0]), []
        for t in range(x.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * n[:, t]
            y.append(h)
        return torch.stack(y, dim=1)


@model(
    "mingru_pos", recurrence="scan", paper=f"{papers.MIN_RNN}, appendix B, the log-space form", gate="data"
)
class MinGRUPositive(MinGRU):
    """minGRU with the candidate g(ñ) > 0: another function than minGRU, fit for a scan in log space.

    Its state starts at 0, not at g(0) = ½ as in the published log-space code.
    """

    def operands(self, x: Tensor) -> dict[str, Any]:
        update, candidate = gate_precision(self.update(x)), gate_precision(self.candidate(x))
        return {
            "log_a": functional.logsigmoid(-update),
            "b": torch.exp(functional.logsigmoid(update) + log_positive(candidate)).to(x.dtype),
        }

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        z = torch.sigmoid(x @ W["update.weight"].mT + W["update.bias"])
        n = x @ W["candidate.weight"].mT + W["candidate.bias"]
        g = torch.where(n >= 0, n + 0.5, torch.sigmoid(n))
        h, y = torch.zeros_like(z[:, 0]), []
        for t in range(x.shape[1]):
            h = (1 - z[:, t]) * h + z[:, t] * g[:, t]
            y.append(h)
        return torch.stack(y, dim=1)


@model(
    "minlstm",
    recurrence="scan",
    paper=f"{papers.MIN_RNN}, section 3.2; {papers.LINEARIZATION}, algorithm 10",
    gate="data",
)
class MinLSTM(Model):
    """h_t = f' ⊙ h_{t−1} + i' ⊙ c̃_t, f' = f/(f + i), i' = i/(f + i), f and i sigmoids.

    x is (B, T, width), y (B, T, C); the paper calls C/width the expansion.

    width: of x; C if None.

    Raises:
        UsageError: a width below 1.
    """

    block = MinRNNBlock

    def __init__(self, shape: Mapping[str, int], *, width: int | None = None) -> None:
        super().__init__(shape)
        self.input_width = checked_width(width)
        C = self.shape["C"]
        self.forget = nn.Linear(self.width, C)
        self.input = nn.Linear(self.width, C)
        self.candidate = nn.Linear(self.width, C)

    def log_odds(self, x: Tensor) -> Tensor:
        """Form δ = log(i/f): f' = σ(−δ), i' = σ(δ)."""
        forget, input_ = gate_precision(self.forget(x)), gate_precision(self.input(x))
        return functional.logsigmoid(input_) - functional.logsigmoid(forget)

    def operands(self, x: Tensor) -> dict[str, Any]:
        delta = self.log_odds(x)
        return {
            "log_a": functional.logsigmoid(-delta),
            "b": (torch.sigmoid(delta) * self.candidate(x)).to(x.dtype),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        f = torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        i = torch.sigmoid(x @ W["input.weight"].mT + W["input.bias"])
        c = x @ W["candidate.weight"].mT + W["candidate.bias"]
        h, y = torch.zeros_like(f[:, 0]), []
        for t in range(x.shape[1]):
            h = (f[:, t] * h + i[:, t] * c[:, t]) / (f[:, t] + i[:, t])
            y.append(h)
        return torch.stack(y, dim=1)


@model(
    "minlstm_pos", recurrence="scan", paper=f"{papers.MIN_RNN}, appendix B, the log-space form", gate="data"
)
class MinLSTMPositive(MinLSTM):
    """minLSTM with the candidate g(c̃) > 0, g as in minGRU's positive form; the state starts at 0."""

    def operands(self, x: Tensor) -> dict[str, Any]:
        delta, candidate = self.log_odds(x), gate_precision(self.candidate(x))
        return {
            "log_a": functional.logsigmoid(-delta),
            "b": torch.exp(functional.logsigmoid(delta) + log_positive(candidate)).to(x.dtype),
        }

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        x = x.double()
        f = torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        i = torch.sigmoid(x @ W["input.weight"].mT + W["input.bias"])
        c = x @ W["candidate.weight"].mT + W["candidate.bias"]
        g = torch.where(c >= 0, c + 0.5, torch.sigmoid(c))
        h, y = torch.zeros_like(f[:, 0]), []
        for t in range(x.shape[1]):
            h = (f[:, t] * h + i[:, t] * g[:, t]) / (f[:, t] + i[:, t])
            y.append(h)
        return torch.stack(y, dim=1)
