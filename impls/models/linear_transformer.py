"""Linear attention with the positive feature map 1 + elu and a normalised readout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._blocks import PostNormBlock

EPSILON = 1e-6  # the published code's guard of the denominator; the paper's equation has none


def feature_map(z: Tensor) -> Tensor:
    """Form φ(z) = 1 + elu(z) > 0, as exp(z) below 0: in half precision 1 + elu(z) is 0 from z = −8 on."""
    wide = gate_precision(z)
    return torch.where(wide > 0, wide + 1, torch.exp(wide.clamp(max=0))).to(z.dtype)


@model(
    "linear_transformer",
    recurrence="linear_attention",
    paper=f"{papers.LINEAR_TRANSFORMER}, eqs. 16–20",
    gate="none",
)
class LinearTransformer(Model):
    """o_t = φ(q_t)ᵀS_t / (φ(q_t)·z_t + 1e-6), S_t = Σ φ(k_s) v_sᵀ, z_t = Σ φ(k_s), φ = 1 + elu.

    The normaliser is one more value column: operand v is [v, 1] of width V + 1, and so is the state.
    The published code has biases in the maps to q, k and v. x and y are (B, T, H·V).
    """

    block = PostNormBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        return {
            "q": feature_map(self.query(x)).unflatten(-1, heads),
            "k": feature_map(self.key(x)).unflatten(-1, heads),
            "v": functional.pad(self.value(x).unflatten(-1, heads), (0, 1), value=1.0),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        wide = gate_precision(output)
        numerator, denominator = wide[..., :-1], wide[..., -1:]
        return (numerator / (denominator + EPSILON)).to(x.dtype).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        phi_q = (1 + functional.elu(x @ W["query.weight"].mT)).view(B, T, H, K)
        phi_k = (1 + functional.elu(x @ W["key.weight"].mT)).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        S, z, y = x.new_zeros(B, H, K, V), x.new_zeros(B, H, K), []
        for t in range(T):
            S = S + torch.einsum("bhk,bhv->bhkv", phi_k[:, t], v[:, t])
            z = z + phi_k[:, t]
            numerator = torch.einsum("bhk,bhkv->bhv", phi_q[:, t], S)
            denominator = torch.einsum("bhk,bhk->bh", phi_q[:, t], z)
            y.append(numerator / (denominator + 1e-6).unsqueeze(-1))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
