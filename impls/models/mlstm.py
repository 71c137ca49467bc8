"""mLSTM: a matrix memory with a sigmoid forget gate, and an exponential or a sigmoid input gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, gate_precision, model

from . import _papers as papers
from ._blocks import XLSTMBlock

FORGET_BIAS = (3.0, 6.0)  # of the first and the last head
INPUT_BIAS_STD = 0.1
LEAST_DENOMINATOR = 1e-30  # e^(−m) of large input gates rounds to 0 in float32, and a zero query gives 0/0


class _MLSTM(Model):
    """Projections of x to queries, keys and values by head, and to the two gates of each head.

    Both gates start independent of x: biases rise from 3 to 6 over the heads for the forget gate and are
    normal with a deviation of 0.1 for the input gate, as published. Projections have no biases. The output
    gate and the norm of each head belong to the block.
    """

    block = XLSTMBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        self.input_gate = nn.Linear(self.width, H)
        self.forget_gate = nn.Linear(self.width, H)
        for gate in (self.input_gate, self.forget_gate):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.input_gate.bias, std=INPUT_BIAS_STD)
        self.forget_gate.bias = nn.Parameter(torch.linspace(*FORGET_BIAS, H))

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the input gate before its activation, and the log of the forget gate, both (B, T, H)."""
        log_f = functional.logsigmoid(gate_precision(self.forget_gate(x)))
        return gate_precision(self.input_gate(x)), log_f

    def weighted(self, x: Tensor, weight: Tensor, *, normaliser: bool) -> dict[str, Any]:
        """Project x to q, k and v by head; `weight` (B, T, H) and K^(−1/2) scale k.

        normaliser: add a column of ones to v.
        """
        H, K = self.shape["H"], self.shape["K"]
        v = self.value(x).unflatten(-1, (H, -1))
        return {
            "q": self.query(x).unflatten(-1, (H, -1)),
            "k": ((weight * K**-0.5).unsqueeze(-1) * self.key(x).unflatten(-1, (H, -1))).to(x.dtype),
            "v": functional.pad(v, (0, 1), value=1.0) if normaliser else v,
        }

    def projected(self, x: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Give the parameters, q, k and v by head, all in float64, as the definitions need them."""
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        q, k, v = (
            (x.double() @ W[f"{name}.weight"].mT).unflatten(-1, (self.shape["H"], -1))
            for name in ("query", "key", "value")
        )
        return W, q, k / self.shape["K"] ** 0.5, v


@model(
    "mlstm",
    recurrence="linear_attention",
    paper=f"{papers.XLSTM}, section 2.3, eqs. 19–27, with the running maximum of eqs. 15–17",
    gate="scalar",
)
class MLSTM(_MLSTM):
    """C_t = f_t C_{t−1} + i_t k_t v_tᵀ, n_t = f_t n_{t−1} + i_t k_t, y_t = C_tᵀq_t / max(|n_t·q_t|, 1).

    i_t = exp(ĩ_t) and f_t = σ(f̃_t) per head, ĩ and f̃ linear in x, and k_t is scaled by K^(−1/2). With
    m_t = max(log f_t + m_{t−1}, ĩ_t), m_0 = 0, the states e^(−m_t) C_t and e^(−m_t) n_t have the gate
    exp(log f_t + m_{t−1} − m_t) ≤ 1 and write with the weight exp(ĩ_t − m_t) ≤ 1, so that input gates of any
    size are exact; the 1 becomes e^(−m_t). y does not depend on m, and gradients take it as a constant. The
    published code adds 1e-6 to the denominator of the scaled states, so that its y depends on m a little.
    Here the denominator is at least 1e-30 instead.

    n is one more value column: operand v is [v, 1] of width V + 1. The state that is passed on is
    (B, H, K, V + 2), with m_t in its last column. x and y are (B, T, H·V).
    """

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        start = None if state is None else state[:, :, 0, -1]
        operands, m = self.lower(x, start)
        output, final = self.compute(operands, backend, None if state is None else state[..., :-1])
        assert final is not None
        last = m[:, -1].to(final.dtype)
        # `last` is m rounded, and the state must be relative to exactly what the next piece starts from
        final = final * torch.exp(m[:, -1] - last).to(final.dtype)[..., None, None]
        column = last[..., None, None].expand(*final.shape[:-1], 1)
        return self.normalised(output, m, x), torch.cat([final, column], dim=-1)

    def lower(self, x: Tensor, start: Tensor | None) -> tuple[dict[str, Any], Tensor]:
        """Form the operands and m (B, T, H) in float64.

        start: m (B, H) before the first step; zeros if None.
        """
        i, log_f = self.gates(x)
        with torch.no_grad():
            first = torch.zeros_like(i[:, 0]) if start is None else start
            m = running_maximum(log_f.double(), i.double(), first.double())
            before = torch.cat([first.double().unsqueeze(1), m[:, :-1]], dim=1)
        log_a = log_f + (before - m)
        log_a = log_a - log_a.detach().clamp(min=0)  # what rounding leaves above 0; keeps the gradient
        weight = torch.exp(i - m).to(i.dtype)
        return {**self.weighted(x, weight, normaliser=True), "log_a": log_a.to(log_f.dtype)}, m

    def normalised(self, output: Tensor, m: Tensor, x: Tensor) -> Tensor:
        """Divide the output by max(|last column|, e^(−m))."""
        wide = gate_precision(output)
        numerator, denominator = wide[..., :-1], wide[..., -1:]
        least = torch.exp(-m).clamp(min=LEAST_DENOMINATOR).to(wide.dtype).unsqueeze(-1)
        y: Tensor = numerator / torch.maximum(denominator.abs(), least)
        return y.to(x.dtype).flatten(-2)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(x, None)[0]

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return self.normalised(output, self.lower(x, None)[1], x)

    def definition(self, x: Tensor) -> Tensor:
        W, q, k, v = self.projected(x)
        i_raw = x.double() @ W["input_gate.weight"].mT + W["input_gate.bias"]
        log_f = functional.logsigmoid(x.double() @ W["forget_gate.weight"].mT + W["forget_gate.bias"])
        B, T, H, V = v.shape
        C, n = x.new_zeros(B, H, k.shape[-1], V).double(), torch.zeros_like(k[:, 0])
        m, y = torch.zeros_like(i_raw[:, 0]), []
        for t in range(T):
            m_next = torch.maximum(log_f[:, t] + m, i_raw[:, t])
            f = torch.exp(log_f[:, t] + m - m_next)
            i = torch.exp(i_raw[:, t] - m_next)
            m = m_next
            C = f[..., None, None] * C + torch.einsum("bh,bhk,bhv->bhkv", i, k[:, t], v[:, t])
            n = f.unsqueeze(-1) * n + i.unsqueeze(-1) * k[:, t]
            total = torch.einsum("bhk,bhk->bh", n, q[:, t])
            norm = torch.maximum(total.abs(), torch.exp(-m))
            y.append(torch.einsum("bhkv,bhk->bhv", C, q[:, t]) / norm.unsqueeze(-1))
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model(
    "mlstm_sigmoid",
    recurrence="linear_attention",
    paper=f"{papers.TFLA}, section 4, the mLSTM with a sigmoid input gate",
    gate="scalar",
)
class MLSTMSigmoid(_MLSTM):
    """C_t = f_t C_{t−1} + i_t k_t v_tᵀ, y_t = C_tᵀ q_t, f_t = σ(f̃_t), i_t = σ(ĩ_t) per head.

    ĩ and f̃ are linear in x, and k_t is scaled by K^(−1/2). Nothing can overflow, so there is no running
    maximum. x and y are (B, T, H·V).

    normalised: divide y by max(|n_t·q_t|, 1), n_t = f_t n_{t−1} + i_t k_t, as the published kernels can. Then
        operand v is [v, 1] of width V + 1, and so is the state.
    """

    def __init__(self, shape: Mapping[str, int], *, normalised: bool = False) -> None:
        super().__init__(shape)
        self.normalised = normalised

    def operands(self, x: Tensor) -> dict[str, Any]:
        i, log_f = self.gates(x)
        return {**self.weighted(x, torch.sigmoid(i), normaliser=self.normalised), "log_a": log_f}

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        if not self.normalised:
            return output.flatten(-2)
        wide = gate_precision(output)
        return (wide[..., :-1] / wide[..., -1:].abs().clamp(min=1)).to(x.dtype).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W, q, k, v = self.projected(x)
        i = torch.sigmoid(x.double() @ W["input_gate.weight"].mT + W["input_gate.bias"])
        f = torch.sigmoid(x.double() @ W["forget_gate.weight"].mT + W["forget_gate.bias"])
        B, T, H, V = v.shape
        C, n = x.new_zeros(B, H, k.shape[-1], V).double(), torch.zeros_like(k[:, 0])
        y = []
        for t in range(T):
            C = f[:, t, :, None, None] * C + torch.einsum("bh,bhk,bhv->bhkv", i[:, t], k[:, t], v[:, t])
            n = f[:, t, :, None] * n + i[:, t, :, None] * k[:, t]
            read = torch.einsum("bhkv,bhk->bhv", C, q[:, t])
            if self.normalised:
                total = torch.einsum("bhk,bhk->bh", n, q[:, t])
                read = read / total.abs().clamp(min=1).unsqueeze(-1)
            y.append(read)
        return torch.stack(y, dim=1).reshape(B, T, H * V)


def running_maximum(log_f: Tensor, i: Tensor, start: Tensor) -> Tensor:
    """Compute m_t = max(log f_t + m_{t−1}, i_t) (B, T, H) in log₂ T steps, from m_0 = `start` (B, H).

    No sum of log f reaches further back than the step at which the maximum was taken, so nothing cancels, and
    log f = −∞ is legal.
    """
    first = torch.maximum(i[:, :1], log_f[:, :1] + start.unsqueeze(1))
    m, reach = torch.cat([first, i[:, 1:]], dim=1), log_f
    distance = 1
    while distance < i.shape[1]:
        earlier = m[:, :-distance] + reach[:, distance:]
        m = torch.cat([m[:, :distance], torch.maximum(m[:, distance:], earlier)], dim=1)
        summed = reach[:, distance:] + reach[:, :-distance]
        reach = torch.cat([reach[:, :distance], summed], dim=1)
        distance *= 2
    return m
