"""Gated slot attention: softmax attention over slots, which two gated recurrences fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, gate_precision, model

from . import _papers as papers
from ._blocks import SlotBlock
from ._parts import above_zero

OUTSIDE = "chunkwise"  # the backend of the first pass where the second is called as an operation

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 4, "K": 64, "V": 256}],
    "long": [{"B": 1, "H": 4, "K": 64, "V": 256}],
}


@model("gsa", recurrence="linear_attention", paper=f"{papers.GSA}, section 3", gate="key", presets=PRESETS)
class GSA(Model):
    """K̃_t = diag(α_t) K̃_{t−1} + (1 − α_t) k_tᵀ, Ṽ_t likewise with v_t, y_t = Ṽ_tᵀ softmax(K̃_t q_t).

    K is the number of slots, the paper's m. Queries, keys and values have V channels, and K̃ and Ṽ are K × V.
    α_t = σ(W x_t)^(1/τ) per slot; q, k and v go through SiLU. The SiLU and the norm of y belong to the block.

    There are two passes of linear_attention. The first one computes the scores K̃_t q_t: the slots are the
    value axis and are gated there, so that it has V keys and K values. The second one reads Ṽ_t: the slots
    are the key axis. A layer runs both on its backend, which must take value gates and key gates. Where an
    operation is measured instead of a layer, it is the second pass, on the scores of a first one. The state
    that is passed on is [K̃, Ṽ] (B, H, K, 2V). x and y are (B, T, H·V).

    tau: τ.

    Raises:
        UsageError: a tau that is not above 0.
    """

    block = SlotBlock

    def __init__(self, shape: Mapping[str, int], *, tau: float = 8.0) -> None:
        super().__init__(shape)
        self.tau = above_zero("tau", tau)
        H, K = self.shape["H"], self.shape["K"]
        self.query = nn.Linear(self.width, self.width, bias=False)
        self.key = nn.Linear(self.width, self.width, bias=False)
        self.value = nn.Linear(self.width, self.width, bias=False)
        self.forget = nn.Linear(self.width, H * K, bias=False)

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        keys, values = (None, None) if state is None else state.chunk(2, dim=-1)
        log_a, rest = self.gate(x)
        scores, keys = self.scores(x, log_a, rest, backend, None if keys is None else keys.mT)
        output, values = self.compute(self.values(x, log_a, rest, scores), backend, values)
        assert keys is not None and values is not None
        return self.readout(output, x), torch.cat([keys.mT, values], dim=-1)

    def gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log α and 1 − α (B, T, H, K)."""
        logits = gate_precision(self.forget(x)).unflatten(-1, (self.shape["H"], -1))
        log_a = functional.logsigmoid(logits) / self.tau
        return log_a, -torch.expm1(log_a).to(x.dtype)

    def scores(
        self, x: Tensor, log_a: Tensor, rest: Tensor, backend: BackendLike, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute K̃_t q_t (B, T, H, K) and the final K̃ᵀ (B, H, V, K) from an initial one."""
        heads = (self.shape["H"], -1)
        operands = {
            "q": functional.silu(self.query(x)).unflatten(-1, heads),
            "k": functional.silu(self.key(x)).unflatten(-1, heads),
            "v": rest,
            "log_b": log_a,
        }
        return self.compute(operands, backend, state)

    def values(self, x: Tensor, log_a: Tensor, rest: Tensor, scores: Tensor) -> dict[str, Any]:
        """Form the operands of the second pass."""
        return {
            "q": torch.softmax(gate_precision(scores), dim=-1).to(x.dtype),
            "k": rest,
            "v": functional.silu(self.value(x)).unflatten(-1, (self.shape["H"], -1)),
            "log_a": log_a,
        }

    def operands(self, x: Tensor) -> dict[str, Any]:
        log_a, rest = self.gate(x)
        scores, _ = self.scores(x, log_a, rest, OUTSIDE, None)
        return self.values(x, log_a, rest, scores)

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k, v = (
            functional.silu(x @ W[f"{name}.weight"].mT).view(B, T, H, V) for name in ("query", "key", "value")
        )
        alpha = torch.sigmoid(x @ W["forget.weight"].mT).pow(1 / self.tau).view(B, T, H, K)
        keys, values, y = x.new_zeros(B, H, K, V), x.new_zeros(B, H, K, V), []
        for t in range(T):
            a = alpha[:, t].unsqueeze(-1)
            keys = a * keys + (1 - a) * k[:, t].unsqueeze(-2)
            values = a * values + (1 - a) * v[:, t].unsqueeze(-2)
            weights = torch.softmax(torch.einsum("bhmd,bhd->bhm", keys, q[:, t]), dim=-1)
            y.append(torch.einsum("bhm,bhmd->bhd", weights, values))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
