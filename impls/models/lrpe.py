"""LRPE: linear attention with a relative position as a rotation of every key channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import NormedBlock


@model(
    "lrpe",
    recurrence="linear_attention",
    paper=f"{papers.LRPE}, the unitary form; {papers.LCSM}, Table 3, oscillation 11",
    gate="const_complex",
)
class LRPE(Model):
    """S_t = diag(e^(iθ)) S_{t−1} + k_t v_tᵀ, o_t = Re(S_t)ᵀ q_t = Σ_{s≤t} (Σ_c q_tc k_sc cos((t−s)θ_c)) v_s.

    θ_c = 10000^(−2c/d) for c = 0..K−1, with d the width of the model and not of the head, as in the authors'
    code, and the same for all heads. q, k and v are real and linear in x; the state is complex. The norm of o
    belongs to the block. x and y are (B, T, H·V).

    learnable: make θ a parameter (H, K) that starts there.
    """

    block = NormedBlock

    def __init__(self, shape: Mapping[str, int], *, learnable: bool = False) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        start = self._start(torch.float32) if learnable else None
        self.theta: Tensor | None = None if start is None else nn.Parameter(start)

    def _start(self, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        channel = torch.arange(self.shape["K"], dtype=dtype, device=device)
        return torch.pow(10000.0, -2 * channel / self.width).repeat(self.shape["H"], 1)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        theta = self.theta
        if theta is None:
            theta = self._start(gate_precision(x.new_empty(0)).dtype, x.device)
        return {
            "q": self.query(x).unflatten(-1, heads),
            "k": self.key(x).unflatten(-1, heads),
            "v": self.value(x).unflatten(-1, heads),
            "phase": gate_precision(theta),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, d = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        theta = W.get("theta", x.new_tensor([[10000 ** (-2 * c / d) for c in range(K)]] * H))
        y = []
        for t in range(T):
            distance = torch.arange(t, -1, -1, device=x.device).view(-1, 1, 1)
            weights = torch.einsum("bhk,bshk,shk->bhs", q[:, t], k[:, : t + 1], torch.cos(distance * theta))
            y.append(torch.einsum("bhs,bshv->bhv", weights, v[:, : t + 1]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
