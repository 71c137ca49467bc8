"""Based: linear attention with the Taylor expansion of the exponential to second order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import TransformerBlock

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 16, "K": 160, "V": 64}],
    "long": [{"B": 1, "H": 16, "K": 160, "V": 64}],
}


def projected_width(features: int) -> int:
    """Find the largest n whose (n + 1)(n + 2)/2 features fit: 16 for 153 to 170."""
    return (math.isqrt(8 * features + 1) - 3) // 2


def taylor(z: Tensor, features: int) -> Tensor:
    """Form φ(z) (..., features) of z (..., n): φ(z)·φ(w) = 1 + z·w + (z·w)²/2.

    A product of two channels is one feature, √2 times as large as in the outer product, where it occurs
    twice. Zeros fill up the features.
    """
    wide = gate_precision(z)
    n = z.shape[-1]
    upper = torch.triu_indices(n, n, offset=1, device=z.device)
    products = wide[..., upper[0]] * wide[..., upper[1]]
    parts = [torch.ones_like(wide[..., :1]), wide, wide.square() * 0.5**0.5, products]
    filled = torch.cat(parts, dim=-1)
    return functional.pad(filled, (0, features - filled.shape[-1])).to(z.dtype)


@model(
    "based",
    recurrence="linear_attention",
    paper=f"{papers.BASED}, section 4.1",
    gate="none",
    presets=PRESETS,
)
class Based(Model):
    """y_t = Σ_{s≤t} w_ts v_s / Σ_{s≤t} w_ts with w = 1 + z + z²/2, z_ts = n^(−1/2) q_t·k_s.

    q and k have n channels. w is φ(q)·φ(k) with the features 1, all channels, and all products of two
    channels. The published map has 1 + n + n² features. A product that occurs twice among these is one
    feature here, so that (n + 1)(n + 2)/2 of them give the same y. K is their number, filled up with zeros,
    and n is the largest that fits: the paper's 16 for K = 160.

    The normaliser is one more value column, as in `linear_transformer`. It is at least ½, so that it needs a
    guard only against rounding. The paper's sliding window is a layer of its own. x and y are (B, T, H·V).

    Raises:
        UsageError: K is less than 3.
    """

    block = TransformerBlock

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.n = projected_width(K)
        if self.n < 1:
            raise UsageError(f"based has at least 3 features: K must be 3 or more, got {K}")
        self.query = nn.Linear(self.width, H * self.n, bias=False)
        self.key = nn.Linear(self.width, H * self.n, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads, K = (self.shape["H"], -1), self.shape["K"]
        scale = self.n**-0.25
        return {
            "q": taylor(self.query(x).unflatten(-1, heads) * scale, K),
            "k": taylor(self.key(x).unflatten(-1, heads) * scale, K),
            "v": functional.pad(self.value(x).unflatten(-1, heads), (0, 1), value=1.0),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        wide = gate_precision(output)
        numerator, denominator = wide[..., :-1], wide[..., -1:]
        return (numerator / denominator.clamp(min=0.5)).to(x.dtype).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, V = self.shape["H"], self.shape["V"]
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, self.n)
        k = (x @ W["key.weight"].mT).view(B, T, H, self.n)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        y = []
        for t in range(T):
            z = torch.einsum("bhn,bshn->bhs", q[:, t], k[:, : t + 1]) / self.n**0.5
            w = 1 + z + z.square() / 2
            total = w.sum(-1, keepdim=True)
            y.append(torch.einsum("bhs,bshv->bhv", w, v[:, : t + 1]) / total)
        return torch.stack(y, dim=1).reshape(B, T, H * V)
