"""DeltaProduct: several steps of the delta rule per token, with a gate per token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import UsageError, gate_precision, model

from . import _papers as papers
from ._delta_blocks import DeltaProductBlock
from .deltanet import RATE_RANGE, ConvolvedDeltaRule, first_step_bias, unit


@model(
    "deltaproduct",
    recurrence="delta_rule",
    paper=f"{papers.DELTAPRODUCT}, section 3, Gated DeltaProduct",
    gate="scalar",
)
class DeltaProduct(ConvolvedDeltaRule):
    """S ← α_t S_{t−1}, then S ← (I − β_tj k_tj k_tjᵀ) S + β_tj k_tj v_tjᵀ for j = 1..n, o_t = Sᵀ q_t.

    Each token has n keys, values and rates β = 2σ(W x), one query, and Gated DeltaNet's gate α per head. q, k
    and v are SiLU(W x); q and k are normalised. The convolution before the SiLU, the norm of o and the output
    gate belong to the block. Where the shape has G, q and k have G heads. x is (B, T, width), y (B, T, H·V).

    The recurrence has n steps per token. The gate is that of the first one, and every step has the token's
    query; the last one's output is y.

    n_h: steps per token.
    allow_neg_eigval: β up to 2 instead of 1.

    Raises:
        UsageError: no step per token, or a width below 1.
    """

    block = DeltaProductBlock

    def __init__(
        self,
        shape: Mapping[str, int],
        *,
        n_h: int = 2,
        allow_neg_eigval: bool = True,
        width: int | None = None,
    ) -> None:
        if n_h < 1:
            raise UsageError(f"the steps per token n_h must be at least 1, got {n_h}")
        super().__init__(shape, n_h, allow_neg_eigval=allow_neg_eigval, width=width)
        H = self.shape["H"]
        self.step = nn.Linear(self.width, H, bias=False)
        self.step_bias = nn.Parameter(first_step_bias(H))
        self.A_log = nn.Parameter(torch.log(torch.empty(H).uniform_(*RATE_RANGE)))

    def lower(self, projected: Tensor, x: Tensor) -> dict[str, Any]:
        H, K, V, n = *(self.shape[letter] for letter in "HKV"), self.steps_per_token
        q, k, v = functional.silu(projected).split(self.projected_widths, dim=-1)
        step = functional.softplus(gate_precision(self.step(x)) + gate_precision(self.step_bias))
        log_a = -step * torch.exp(gate_precision(self.A_log))
        return {
            "q": unit(q.unflatten(-1, (-1, K))).repeat_interleave(n, dim=1),
            "k": unit(k.unflatten(-1, (n, -1, K)).flatten(1, 2)),
            "v": v.unflatten(-1, (n, H, V)).flatten(1, 2),
            "beta": self.largest_rate * torch.sigmoid(self.rate(x)).unflatten(-1, (n, H)).flatten(1, 2),
            "log_a": functional.pad(log_a.unsqueeze(2), (0, 0, 0, n - 1)).flatten(1, 2),
        }

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V, G, n = *(self.shape[letter] for letter in "HKV"), self.key_heads, self.steps_per_token
        x = x.double()
        q, k, v = (x @ W[f"{name}.weight"].mT for name in ("query", "key", "value"))
        q, k, v = (z * torch.sigmoid(z) for z in (q, k, v))
        q, k, v = q.view(B, T, 1, G, K), k.view(B, T, n, G, K), v.view(B, T, n, H, V)
        q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        q, k = (z.repeat_interleave(H // G, dim=3) for z in (q, k))
        beta = self.largest_rate * torch.sigmoid(x @ W["rate.weight"].mT).view(B, T, n, H)
        step = torch.log(1 + torch.exp(x @ W["step.weight"].mT + W["step_bias"]))
        alpha = torch.exp(-torch.exp(W["A_log"]) * step)
        identity = torch.eye(K, dtype=x.dtype, device=x.device)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = alpha[:, t].view(B, H, 1, 1) * S
            for j in range(n):
                erase = torch.einsum("bh,bhk,bhl->bhkl", beta[:, t, j], k[:, t, j], k[:, t, j])
                write = torch.einsum("bh,bhk,bhv->bhkv", beta[:, t, j], k[:, t, j], v[:, t, j])
                S = (identity - erase) @ S + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t, 0]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
