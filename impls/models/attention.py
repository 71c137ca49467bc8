"""Softmax attention with rotary positions, and with a forget gate in place of positions.

They are the quadratic baselines with which the papers compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import TransformerBlock
from ._parts import above_zero

BASE = 10000.0  # of the wavelengths of rotary positions


class _Attention(Model):
    """Projections of x to queries, keys and values by head; x and y are (B, T, H·V)."""

    block = TransformerBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    def projected(self, x: Tensor) -> dict[str, Any]:
        """Project x to q, k and v by head; K^(−1/2) scales q."""
        H, K = self.shape["H"], self.shape["K"]
        return {
            "q": self.query(x).unflatten(-1, (H, -1)) * K**-0.5,
            "k": self.key(x).unflatten(-1, (H, -1)),
            "v": self.value(x).unflatten(-1, (H, -1)),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)


@model(
    "attention",
    recurrence="softmax_attention",
    paper=f"{papers.ATTENTION}, section 3.2, with the positions of {papers.ROFORMER}, section 3.2",
    gate="none",
)
class Attention(_Attention):
    """o_n = Σ_{m≤n} softmax_m(K^(−1/2) (R_n q_n)·(R_m k_m)) v_m, R_n a rotation of each pair of channels.

    Channels 2j and 2j + 1 turn by the angle n·base^(−2j/K). The sequence that a state continues goes on at
    the position after it. x and y are (B, T, H·V).

    base: of the wavelengths.

    Raises:
        UsageError: K is odd, or the base is not above 0.
    """

    def __init__(self, shape: Mapping[str, int], *, base: float = BASE) -> None:
        super().__init__(shape)
        self.base = above_zero("the base", base)
        if self.shape["K"] % 2:
            raise UsageError(f"attention turns pairs of channels: K must be even, got {self.shape['K']}")

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        operands = self.operands(x, start=0 if state is None else state.shape[1])
        output, final_state = self.compute(operands, backend, state)
        return self.readout(output, x), final_state

    def operands(self, x: Tensor, *, start: int = 0) -> dict[str, Any]:
        """Compute the operands of steps whose first has the position `start`."""
        operands = self.projected(x)
        wide, K = gate_precision(x.new_empty(0)).dtype, self.shape["K"]
        places = torch.arange(start, start + x.shape[1], device=x.device, dtype=torch.float64)
        speeds = self.base ** (-torch.arange(0, K, 2, device=x.device, dtype=torch.float64) / K)
        angles = torch.outer(places, speeds).unsqueeze(1)  # (T, 1, K/2)
        cos, sin = torch.cos(angles).to(wide), torch.sin(angles).to(wide)
        for name in ("q", "k"):
            even, odd = gate_precision(operands[name]).unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
            operands[name] = turned.flatten(-2).to(x.dtype)
        return operands

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        theta = torch.tensor(
            [self.base ** (-2 * j / K) for j in range(K // 2)], dtype=x.dtype, device=x.device
        )

        def rotate(pairs: Tensor, n: int) -> Tensor:
            z = torch.view_as_complex(pairs.reshape(B, H, K // 2, 2).contiguous())
            turned = z * torch.polar(torch.ones_like(theta), n * theta)
            return torch.view_as_real(turned).reshape(B, H, K)

        keys = torch.stack([rotate(k[:, m], m) for m in range(T)], dim=1)
        y = []
        for n in range(T):
            scores = torch.einsum("bhk,bmhk->bhm", rotate(q[:, n], n), keys[:, : n + 1]) / K**0.5
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            total = torch.einsum("bhm,bmhv->bhv", weights, v[:, : n + 1])
            y.append(total / weights.sum(-1, keepdim=True))
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model(
    "forgetting_attention",
    recurrence="softmax_attention",
    paper=f"{papers.FORGETTING}, section 3",
    gate="scalar",
)
class ForgettingAttention(_Attention):
    """o_n = Σ_{m≤n} softmax_m(K^(−1/2) q_n·k_m + Σ_{m<j≤n} log f_j) v_m, f_j = σ(w_h·x_j + b_h) per head.

    There are no positions: the gates tell near from far. x and y are (B, T, H·V).
    """

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        self.forget = nn.Linear(self.width, self.shape["H"])
        nn.init.zeros_(self.forget.bias)

    def operands(self, x: Tensor) -> dict[str, Any]:
        return {**self.projected(x), "log_f": functional.logsigmoid(gate_precision(self.forget(x)))}

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        log_f = -torch.log1p(torch.exp(-(x @ W["forget.weight"].mT + W["forget.bias"])))
        y = []
        for n in range(T):
            decay = [log_f[:, m + 1 : n + 1].sum(1) for m in range(n + 1)]
            scores = torch.einsum("bhk,bmhk->bhm", q[:, n], k[:, : n + 1]) / K**0.5
            scores = scores + torch.stack(decay, dim=-1)
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            total = torch.einsum("bhm,bmhv->bhv", weights, v[:, : n + 1])
            y.append(total / weights.sum(-1, keepdim=True))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
