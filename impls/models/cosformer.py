"""cosFormer: linear attention re-weighted by the cosine of the distance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import PreNormBlock

LEAST_DENOMINATOR = 1e-6  # the published code's clamp; the paper's equation has none


@model(
    "cosformer",
    recurrence="linear_attention",
    paper=f"{papers.COSFORMER}, eqs. 10–12",
    gate="const_complex",
)
class CosFormer(Model):
    """o_t = Σ_{s≤t} cos(θ(t−s)) (q_t·k_s) v_s / max(Σ_{s≤t} cos(θ(t−s)) (q_t·k_s), 1e-6), q, k through ReLU.

    As a state: S_t = e^(iθ) S_{t−1} + k_t [v_t, 1]ᵀ, and [numerator, denominator] = Re(S_t)ᵀ q_t. The
    normaliser is one more value column, as in `linear_transformer`: operand v is V + 1 wide, and so is the
    state. θ = π/(2M) with M the length T of x, as published, so that the layer is another function on a part
    of a sequence than on the whole; `max_length` fixes M. Weights are ≥ 0 as long as t − s ≤ M. The
    published code has biases in the maps to q, k and v. x and y are (B, T, H·V).

    max_length: M; the length of x if None.

    Raises:
        UsageError: a max_length below 1.
    """

    block = PreNormBlock
    depends_on_length = True

    def __init__(self, shape: Mapping[str, int], *, max_length: int | None = None) -> None:
        if max_length is not None and max_length < 1:
            raise UsageError(f"max_length must be at least 1, got {max_length}")
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.max_length = max_length
        self.depends_on_length = max_length is None  # type: ignore[misc]  # of this layer, not of its class
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        H = self.shape["H"]
        theta = math.pi / (2 * (self.max_length or x.shape[1]))
        return {
            "q": functional.relu(self.query(x)).unflatten(-1, (H, -1)),
            "k": functional.relu(self.key(x)).unflatten(-1, (H, -1)),
            "v": functional.pad(self.value(x).unflatten(-1, (H, -1)), (0, 1), value=1.0),
            "phase": gate_precision(x.new_empty(0)).new_full((H,), theta),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        wide = gate_precision(output)
        numerator, denominator = wide[..., :-1], wide[..., -1:]
        return (numerator / denominator.clamp(min=LEAST_DENOMINATOR)).to(x.dtype).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).clamp(min=0).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).clamp(min=0).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        M = T if self.max_length is None else self.max_length
        y = []
        for t in range(T):
            distance = torch.arange(t, -1, -1, dtype=x.dtype, device=x.device)
            cosine = torch.cos(math.pi / 2 * distance / M)
            weights = torch.einsum("bhk,bshk,s->bhs", q[:, t], k[:, : t + 1], cosine)
            total = torch.einsum("bhs->bh", weights).clamp(min=1e-6)
            y.append(torch.einsum("bhs,bshv->bhv", weights, v[:, : t + 1]) / total.unsqueeze(-1))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
