"""TransNormerLLM's linear attention: a fixed decay per head, from slopes like ALiBi's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import TNLBlock


@model(
    "tnl",
    recurrence="linear_attention",
    paper=f"{papers.TNL}, section 3.1; {papers.ALIBI}, section 3",
    gate="const",
)
class TNL(Model):
    """S_t = λ_h S_{t−1} + k_t v_tᵀ, o_t = q_tᵀ S_t, λ_h = exp(−2^(−8h/H) (1 − l/L)), h = 1..H, q, k SiLU.

    The slopes of the heads are a geometric sequence for every H. They shrink with the depth l/L of layer l of
    L: 0 in the first, the default; 1 would be no decay at all. The rotation (LRPE) that the paper adds in its
    first layer is the model `lrpe`. The norm of o and its output gate belong to the block. x and y are
    (B, T, H·V).

    depth: l/L.

    Raises:
        UsageError: a depth outside [0, 1].
    """

    block = TNLBlock

    def __init__(self, shape: Mapping[str, int], *, depth: float = 0.0) -> None:
        if not 0 <= depth <= 1:
            raise UsageError(f"the depth l/L must be in [0, 1], got {depth}")
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.depth = depth
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        return [{"depth": layer / layers} for layer in range(layers)]

    def operands(self, x: Tensor) -> dict[str, Any]:
        H = self.shape["H"]
        head = torch.arange(1, H + 1, device=x.device, dtype=gate_precision(x.new_empty(0)).dtype)
        return {
            "q": functional.silu(self.query(x)).unflatten(-1, (H, -1)),
            "k": functional.silu(self.key(x)).unflatten(-1, (H, -1)),
            "v": self.value(x).unflatten(-1, (H, -1)),
            "log_a": -torch.exp2(-8 * head / H) * (1 - self.depth),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k = x @ W["query.weight"].mT, x @ W["key.weight"].mT
        q = (q * torch.sigmoid(q)).view(B, T, H, K)
        k = (k * torch.sigmoid(k)).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        slopes = x.new_tensor([(1 - self.depth) * (2 ** (-8 / H)) ** h for h in range(1, H + 1)])
        decay = torch.exp(-slopes).view(H, 1, 1)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = decay * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
