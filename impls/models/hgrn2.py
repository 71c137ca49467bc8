"""HGRN2: HGRN with its state expanded to a matrix by an outer product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf import Model, model

from ._blocks import NormedBlock
from .hgrn import checked_bound, forget_gate


@model(
    "hgrn2",
    recurrence="linear_attention",
    paper="HGRN2: Gated Linear RNNs with State Expansion (Qin et al., 2024), eq. 3",
    gate="key",
)
class HGRN2(Model):
    """S_t = diag(f_t) S_{t−1} + (1 − f_t) i_tᵀ, y_t = S_tᵀ o_t, f_t = β + (1 − β)σ(·), i = SiLU(·), o = σ(·).

    The paper has K = V = d/H and writes the transposed state. β as in HGRN, a number or a tensor (H·K,): 0 in
    the first layer, the default. The norm of y belongs to the block. x and y are (B, T, H·V).
    """

    block = NormedBlock

    def __init__(self, shape: Mapping[str, int], *, lower_bound: float | Tensor = 0.0) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.lower_bound = checked_bound(lower_bound)
        self.forget = nn.Linear(self.width, H * K)
        self.input = nn.Linear(self.width, H * V)
        self.output = nn.Linear(self.width, H * K)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        log_f, rest = forget_gate(self.forget(x), self.lower_bound)
        return {
            "q": torch.sigmoid(self.output(x)).unflatten(-1, heads),
            "k": rest.to(x.dtype).unflatten(-1, heads),
            "v": functional.silu(self.input(x)).unflatten(-1, heads),
            "log_a": log_f.unflatten(-1, heads),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        beta = torch.as_tensor(self.lower_bound, dtype=x.dtype, device=x.device)
        f = beta + (1 - beta) * torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        i = functional.silu(x @ W["input.weight"].mT + W["input.bias"]).view(B, T, H, V)
        o = torch.sigmoid(x @ W["output.weight"].mT + W["output.bias"]).view(B, T, H, K)
        f = f.view(B, T, H, K)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = f[:, t].unsqueeze(-1) * S + torch.einsum("bhk,bhv->bhkv", 1 - f[:, t], i[:, t])
            y.append(torch.einsum("bhkv,bhk->bhv", S, o[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
