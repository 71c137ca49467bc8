"""TTT-Linear: a linear model trained while it reads, by one gradient step per token or by one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmperf.authoring import Model, model

from . import _papers as papers
from .deltanet import unit


@model(
    "ttt_linear",
    recurrence="delta_rule",
    paper=f"{papers.TTT}, section 2.1, one gradient step per token, without norm and residual",
    gate="none",
)
class TTTLinear(Model):
    """W_t = W_{t−1} − η_t ∇ℓ(W_{t−1}; x_t), z_t = W_t q_t, ℓ(W; x) = ½|W k − v|², η = σ(θ·x + b), |k| = 1.

    The inner model is f(k) = W k from W_0 = 0, with a learned rate per head. It is the delta rule with β = η
    and state Wᵀ. k is normalised, so that β|k|² ≤ 2; q, k and v are the paper's test, training and label
    views. x and y are (B, T, H·V).
    """

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.test_view = nn.Linear(self.width, H * K, bias=False)
        self.training_view = nn.Linear(self.width, H * K, bias=False)
        self.label_view = nn.Linear(self.width, H * V, bias=False)
        self.rate = nn.Linear(self.width, H)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        return {
            "q": self.test_view(x).unflatten(-1, heads),
            "k": unit(self.training_view(x).unflatten(-1, heads)),
            "v": self.label_view(x).unflatten(-1, heads),
            "beta": torch.sigmoid(self.rate(x)),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        q, k, v, eta = self.views(x)
        W, z = x.new_zeros(*v.shape[0:3:2], v.shape[3], k.shape[3], dtype=v.dtype), []
        for t in range(x.shape[1]):
            gradient = self.inner_gradient(W, k[:, t], v[:, t])
            W = W - eta[:, t] * gradient
            z.append(torch.einsum("bhvk,bhk->bhv", W, q[:, t]))
        return torch.stack(z, dim=1).flatten(-2)

    def views(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Project x to q, k (B, T, H, K), v (B, T, H, V) and η (B, T, H, 1, 1), all in float64."""
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        heads, x = (*x.shape[:2], self.shape["H"], -1), x.double()
        names = ("test_view", "training_view", "label_view")
        q, k, v = ((x @ W[f"{name}.weight"].mT).view(heads) for name in names)
        eta = torch.sigmoid(x @ W["rate.weight"].mT + W["rate.bias"])
        return q, k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6), v, eta[..., None, None]

    def inner_gradient(self, W: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Form ∇_W ½|W k − v|² = (W k − v) kᵀ: W (B, H, V, K), k (B, H, K), v (B, H, V)."""
        error = torch.einsum("bhvk,bhk->bhv", W, k) - v
        return torch.einsum("bhv,bhk->bhvk", error, k)


@model(
    "ttt_linear_batch",
    recurrence="linear_attention",
    paper=f"{papers.TTT}, theorem 1, batch gradient descent and linear attention",
    gate="none",
)
class TTTLinearBatch(TTTLinear):
    """W_t = W_0 − Σ_{s≤t} η_s ∇ℓ(W_0; x_s), z_t = W_t q_t: TTT-Linear with all gradients taken at W_0 = 0.

    That is linear attention on values η v. x and y are (B, T, H·V).
    """

    def operands(self, x: Tensor) -> dict[str, Any]:
        operands = super().operands(x)
        operands["v"] = operands.pop("beta").unsqueeze(-1) * operands["v"]
        return operands

    def definition(self, x: Tensor) -> Tensor:
        q, k, v, eta = self.views(x)
        start = x.new_zeros(*v.shape[0:3:2], v.shape[3], k.shape[3], dtype=v.dtype)
        W, z = start, []
        for t in range(x.shape[1]):
            gradient = self.inner_gradient(start, k[:, t], v[:, t])
            W = W - eta[:, t] * gradient
            z.append(torch.einsum("bhvk,bhk->bhv", W, q[:, t]))
        return torch.stack(z, dim=1).flatten(-2)
