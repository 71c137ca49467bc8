"""Kimi Delta Attention: the delta rule with a gate per key channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import gate_precision, model

from . import _papers as papers
from ._delta_blocks import KDABlock
from ._parts import below_zero
from .deltanet import ConvolvedDeltaRule, first_step_bias, unit

RATE_RANGE = (1.0, 16.0)


@model(
    "kda",
    recurrence="delta_rule",
    paper=f"{papers.KIMI}, section 3, Kimi Delta Attention",
    gate="key",
)
class KDA(ConvolvedDeltaRule):
    """S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ, o_t = K^(−1/2) S_tᵀ q_t.

    log α = −e^A softplus(W₂W₁ x + b), with A per head and b per key channel. W₁ projects down to V channels.
    β = σ(W x). q, k and v are SiLU(W x); q and k are normalised. The convolution before the SiLU, the norm of
    o and its gate belong to the block. e^A starts uniform in [1, 16], softplus(b) log-uniform in
    [1e-3, 1e-1]. Where the shape has G, q and k have G heads. x is (B, T, width), y (B, T, H·V).

    lower_bound: of log α; then log α = lower_bound · σ(e^A (W₂W₁ x + b)), and e^A starts at 1. Published
        layers have −5.

    Raises:
        UsageError: a width below 1, or a lower bound that is not below 0.
    """

    block = KDABlock

    def __init__(
        self,
        shape: Mapping[str, int],
        *,
        allow_neg_eigval: bool = False,
        lower_bound: float | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(shape, allow_neg_eigval=allow_neg_eigval, width=width)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.lower_bound = None if lower_bound is None else below_zero("lower_bound", lower_bound)
        self.least_log_gate = self.lower_bound
        self.step_down = nn.Linear(self.width, V, bias=False)
        self.step_up = nn.Linear(V, H * K, bias=False)
        self.step_bias = nn.Parameter(first_step_bias(H, K))
        first_rate = torch.ones(H) if lower_bound is not None else torch.empty(H).uniform_(*RATE_RANGE)
        self.A_log = nn.Parameter(torch.log(first_rate))

    def lower(self, projected: Tensor, x: Tensor) -> dict[str, Any]:
        H, K = self.shape["H"], self.shape["K"]
        q, k, v = functional.silu(projected).split(self.projected_widths, dim=-1)
        q, k = (unit(z.unflatten(-1, (self.key_heads, K))) for z in (q, k))
        return {
            "q": q * K**-0.5,
            "k": k,
            "v": v.unflatten(-1, (H, -1)),
            "beta": self.largest_rate * torch.sigmoid(self.rate(x)),
            "log_a": self.log_gate(x),
        }

    def log_gate(self, x: Tensor) -> Tensor:
        """Form log α (B, T, H, K) in float32 or wider."""
        step = gate_precision(self.step_up(self.step_down(x))).unflatten(-1, (self.shape["H"], -1))
        step = step + gate_precision(self.step_bias)
        rate = torch.exp(gate_precision(self.A_log)).unsqueeze(-1)
        if self.lower_bound is None:
            return -rate * functional.softplus(step)
        return self.lower_bound * torch.sigmoid(rate * step)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k, v = (x @ W[f"{name}.weight"].mT for name in ("query", "key", "value"))
        q, k, v = ((z * torch.sigmoid(z)).view(B, T, -1, width) for z, width in ((q, K), (k, K), (v, V)))
        q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        q, k = (z.repeat_interleave(H // self.key_heads, dim=2) for z in (q, k))
        beta = self.largest_rate * torch.sigmoid(x @ W["rate.weight"].mT)
        step = (x @ W["step_down.weight"].mT @ W["step_up.weight"].mT).view(B, T, H, K) + W["step_bias"]
        A = torch.exp(W["A_log"]).view(H, 1)
        if self.lower_bound is None:
            alpha = torch.exp(-A * torch.log(1 + torch.exp(step)))
        else:
            alpha = torch.exp(self.lower_bound / (1 + torch.exp(-A * step)))
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            identity = torch.eye(K, dtype=x.dtype, device=x.device)
            erase = torch.einsum("bh,bhk,bhl->bhkl", beta[:, t], k[:, t], k[:, t])
            write = torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], v[:, t])
            S = (identity - erase) @ torch.diag_embed(alpha[:, t]) @ S + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) / K**0.5)
        return torch.stack(y, dim=1).reshape(B, T, H * V)
