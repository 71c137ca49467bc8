"""Three gated variants of the delta rule, one per kind of transition that the recurrence allows.

All three are defined by this project; none is a published model. `f4_scalar` has the recurrence of Gated
DeltaNet and `f4_vector` that of Kimi Delta Attention, both with another gate. `f4_decoupled` has a form like
the rows M1 to M3 of LCSM's Table 7, and is none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers
from ._parts import checked_rank
from .deltanet import unit

OURS = "defined by this project, not a published model"
RANK = 16
TEMPERATURE = 16


class Corrected(Model):
    """The common part of the three: plain q and v, unit k, β = σ(W x), and gates σ(·)^(1/16)."""

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        self.rate = nn.Linear(self.width, H, bias=False)

    def log_gate(self, x: Tensor) -> Tensor:
        """Form log α in float32 or wider, (B, T, H) or (B, T, H, K)."""
        raise NotImplementedError

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        return {
            "q": self.query(x).unflatten(-1, heads) * self.shape["K"] ** -0.5,
            "k": unit(self.key(x).unflatten(-1, heads)),
            "v": self.value(x).unflatten(-1, heads),
            "beta": torch.sigmoid(self.rate(x)),
            "log_a": self.log_gate(x),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K) / K**0.5
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        beta = torch.sigmoid(x @ W["rate.weight"].mT)
        S, y = x.new_zeros(B, H, K, V), []
        for t, transition in enumerate(self.transitions(x, W, k, beta)):
            write = torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], v[:, t])
            S = transition @ S + write
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)

    def transitions(self, x: Tensor, W: Mapping[str, Tensor], k: Tensor, beta: Tensor) -> list[Tensor]:
        """List the dense matrix (B, H, K, K) of every step, for the definition."""
        raise NotImplementedError


@model(
    "f4_scalar",
    recurrence="delta_rule",
    paper=f"{papers.GATED_DELTANET}, the gated delta rule with another gate: {OURS}",
    gate="scalar",
)
class F4Scalar(Corrected):
    """S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ, o_t = K^(−1/2) S_tᵀ q_t, α = σ(W x + b)^(1/16).

    x and y are (B, T, H·V).
    """

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        self.gate = nn.Linear(self.width, self.shape["H"])

    def log_gate(self, x: Tensor) -> Tensor:
        return functional.logsigmoid(gate_precision(self.gate(x))) / TEMPERATURE

    def transitions(self, x: Tensor, W: Mapping[str, Tensor], k: Tensor, beta: Tensor) -> list[Tensor]:
        alpha = torch.sigmoid(x @ W["gate.weight"].mT + W["gate.bias"]) ** (1 / 16)
        identity = torch.eye(k.shape[-1], dtype=x.dtype, device=x.device)
        erase = torch.einsum("bth,bthk,bthl->bthkl", beta, k, k)
        return list((alpha[..., None, None] * (identity - erase)).unbind(1))


@model(
    "f4_vector",
    recurrence="delta_rule",
    paper=f"{papers.KIMI}, Kimi Delta Attention with another gate: {OURS}",
    gate="key",
)
class F4Vector(Corrected):
    """S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ, o_t = K^(−1/2) S_tᵀ q_t.

    α = σ(x W₁W₂ + b)^(1/16). x and y are (B, T, H·V).

    rank: of W₁W₂.

    Raises:
        UsageError: a rank below 1.
    """

    def __init__(self, shape: Mapping[str, int], *, rank: int = RANK) -> None:
        super().__init__(shape)
        self.gate_down = nn.Linear(self.width, checked_rank(rank), bias=False)
        self.gate_up = nn.Linear(rank, self.shape["H"] * self.shape["K"])

    def log_gate(self, x: Tensor) -> Tensor:
        gate = gate_precision(self.gate_up(self.gate_down(x))).unflatten(-1, (self.shape["H"], -1))
        return functional.logsigmoid(gate) / TEMPERATURE

    def transitions(self, x: Tensor, W: Mapping[str, Tensor], k: Tensor, beta: Tensor) -> list[Tensor]:
        gate = x @ W["gate_down.weight"].mT @ W["gate_up.weight"].mT + W["gate_up.bias"]
        alpha = torch.sigmoid(gate.view(k.shape)) ** (1 / 16)
        identity = torch.eye(k.shape[-1], dtype=x.dtype, device=x.device)
        erase = torch.einsum("bth,bthk,bthl->bthkl", beta, k, k)
        return list(((identity - erase) @ torch.diag_embed(alpha)).unbind(1))


@model(
    "f4_decoupled",
    recurrence="delta_rule",
    paper=f"{papers.LCSM}, Table 7, a form like its M1–M3: {OURS}",
    gate="dplr_key",
)
class F4Decoupled(F4Vector):
    """S_t = (diag(α_t) − β_t r_t r_tᵀ) S_{t−1} + β_t k_t v_tᵀ, o_t = K^(−1/2) S_tᵀ q_t, |r| = |k| = 1.

    The erased direction r is a projection of its own, and reads the ungated state. Every transition is
    symmetric with eigenvalues in [−1, 1], so states stay bounded. α as in f4_vector. x and y are (B, T, H·V).
    """

    def __init__(self, shape: Mapping[str, int], *, rank: int = RANK) -> None:
        super().__init__(shape, rank=rank)
        self.erase = nn.Linear(self.width, self.shape["H"] * self.shape["K"], bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        operands = super().operands(x)
        r = unit(self.erase(x).unflatten(-1, (self.shape["H"], -1)))
        return {**operands, "p": -operands["beta"].unsqueeze(-1) * r, "r": r}

    def transitions(self, x: Tensor, W: Mapping[str, Tensor], k: Tensor, beta: Tensor) -> list[Tensor]:
        gate = x @ W["gate_down.weight"].mT @ W["gate_up.weight"].mT + W["gate_up.bias"]
        alpha = torch.sigmoid(gate.view(k.shape)) ** (1 / 16)
        r = (x @ W["erase.weight"].mT).view(k.shape)
        r = r / torch.sqrt((r * r).sum(-1, keepdim=True) + 1e-6)
        erase = torch.einsum("bth,bthk,bthl->bthkl", beta, r, r)
        return list((torch.diag_embed(alpha) - erase).unbind(1))
