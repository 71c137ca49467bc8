"""DeltaNet and Gated DeltaNet: a state that is corrected towards each new value, without and with a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Block, Model, gate_precision, model

from . import _papers as papers
from ._delta_blocks import DeltaNetBlock, GatedDeltaNetBlock
from ._parts import checked_width

EPSILON = 1e-6  # of the published code's norm, under the root
STEP_RANGE = (1e-3, 1e-1)
RATE_RANGE = (0.0, 16.0)


def unit(x: Tensor) -> Tensor:
    """Divide x by its Euclidean length on the last axis, √(x·x + 1e-6), which is smooth at x = 0."""
    wide = gate_precision(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPSILON)).to(x.dtype)


def first_step_bias(*size: int) -> Tensor:
    """Draw b such that softplus(b) is log-uniform in [1e-3, 1e-1]."""
    low, high = map(math.log, STEP_RANGE)
    step = torch.exp(low + (high - low) * torch.rand(*size))
    return step + torch.log(-torch.expm1(-step))


class DeltaRule(Model):
    """The common part of the models: projections to q, and to one or several k, v and β per token.

    Where the shape has G, q and k have G heads, and head h reads key head h·G // H. x is (B, T, width), y
    (B, T, H·V).

    steps: keys, values and rates of a token, and steps of the recurrence for it. The last one's output is y.
    allow_neg_eigval: β up to 2 instead of 1, so that a transition may have a negative eigenvalue.
    width: of x; H·V if None.

    Raises:
        UsageError: a width below 1.
    """

    projects_key_heads = True

    def __init__(
        self,
        shape: Mapping[str, int],
        steps: int = 1,
        *,
        allow_neg_eigval: bool = False,
        width: int | None = None,
    ) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.steps_per_token = steps
        self.key_heads = self.shape.get("G", H)
        self.input_width = checked_width(width)
        self.largest_rate = 2 if allow_neg_eigval else 1
        self.query = nn.Linear(self.width, self.key_heads * K, bias=False)
        self.key = nn.Linear(self.width, steps * self.key_heads * K, bias=False)
        self.value = nn.Linear(self.width, steps * H * V, bias=False)
        self.rate = nn.Linear(self.width, steps * H, bias=False)

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output[:, self.steps_per_token - 1 :: self.steps_per_token].flatten(-2)


class ConvolvedDeltaRule(DeltaRule):
    """A model whose block convolves q, k and v between `project` and `lower`."""

    @property
    def projected_widths(self) -> list[int]:
        """List the widths of q, k and v in the result of `project`."""
        return [linear.out_features for linear in (self.query, self.key, self.value)]

    def project(self, x: Tensor) -> Tensor:
        """Project x to q, k and v in parallel, before their SiLU."""
        return torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)

    def lower(self, projected: Tensor, x: Tensor) -> dict[str, Any]:
        """Form the operands from the result of `project`, and from x for β and the gate."""
        raise NotImplementedError

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(self.project(x), x)


@model(
    "deltanet",
    recurrence="delta_rule",
    paper=f"{papers.DELTANET}, the delta rule; {papers.FAST_WEIGHTS}, section 4.2",
    gate="none",
)
class DeltaNet(DeltaRule):
    """S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ, o_t = S_tᵀ q_t, β = σ(W x), |k| = |q| = 1.

    q and k are SiLU(W x), normalised; v = W x. The norm of o and one short convolution, of x before W, belong
    to the block; the published code has three, of q, k and v after W. x is (B, T, width), y (B, T, H·V).
    """

    block: ClassVar[type[Block]] = DeltaNetBlock

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads, key_heads = (self.shape["H"], -1), (self.key_heads, -1)
        return {
            "q": unit(functional.silu(self.query(x)).unflatten(-1, key_heads)),
            "k": unit(functional.silu(self.key(x)).unflatten(-1, key_heads)),
            "v": self.value(x).unflatten(-1, heads),
            "beta": self.largest_rate * torch.sigmoid(self.rate(x)),
        }

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k = x @ W["query.weight"].mT, x @ W["key.weight"].mT
        q, k = ((z * torch.sigmoid(z)).view(B, T, self.key_heads, K) for z in (q, k))
        q, k = (z / torch.sqrt((z * z).sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        q, k = (z.repeat_interleave(H // self.key_heads, dim=2) for z in (q, k))
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        beta = self.largest_rate * torch.sigmoid(x @ W["rate.weight"].mT)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            identity = torch.eye(K, dtype=x.dtype, device=x.device)
            erase = torch.einsum("bh,bhk,bhl->bhkl", beta[:, t], k[:, t], k[:, t])
            write = torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], v[:, t])
            S = (identity - erase) @ S + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model(
    "gated_deltanet",
    recurrence="delta_rule",
    paper=f"{papers.GATED_DELTANET}, the gated delta rule",
    gate="scalar",
)
class GatedDeltaNet(DeltaNet):
    """S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ, o_t = S_tᵀ q_t, α = exp(−e^A softplus(W x + b)).

    As DeltaNet, with v = SiLU(W x) and Mamba-2's gate per head: e^A starts uniform in [0, 16], softplus(b)
    log-uniform in [1e-3, 1e-1]. The output gate belongs to the block too. x is (B, T, width), y (B, T, H·V).
    """

    block = GatedDeltaNetBlock

    def __init__(
        self, shape: Mapping[str, int], *, allow_neg_eigval: bool = False, width: int | None = None
    ) -> None:
        super().__init__(shape, allow_neg_eigval=allow_neg_eigval, width=width)
        H = self.shape["H"]
        self.step = nn.Linear(self.width, H, bias=False)
        self.step_bias = nn.Parameter(first_step_bias(H))
        self.A_log = nn.Parameter(torch.log(torch.empty(H).uniform_(*RATE_RANGE)))

    def operands(self, x: Tensor) -> dict[str, Any]:
        operands = super().operands(x)
        step = functional.softplus(gate_precision(self.step(x)) + gate_precision(self.step_bias))
        operands["v"] = functional.silu(operands["v"])
        operands["log_a"] = -step * torch.exp(gate_precision(self.A_log))
        return operands

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
        step = torch.log(1 + torch.exp(x @ W["step.weight"].mT + W["step_bias"]))
        alpha = torch.exp(-torch.exp(W["A_log"]) * step)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            identity = torch.eye(K, dtype=x.dtype, device=x.device)
            erase = torch.einsum("bh,bhk,bhl->bhkl", beta[:, t], k[:, t], k[:, t])
            write = torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], v[:, t])
            S = alpha[:, t].view(B, H, 1, 1) * ((identity - erase) @ S) + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
