"""Fast weights with a gate on both sides of the outer product: DUR, decaying and gated fast weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import Model, gate_precision, model

from . import _papers as papers

DECAYING = f"{papers.DECAYING}, section 3"


@model(
    "dur",
    recurrence="linear_attention",
    paper=f"{DECAYING}; {papers.LCSM}, Table 1, its projections",
    gate="both",
)
class DUR(Model):
    """S_t = (f_t g_tᵀ) ⊙ S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t, f = σ(W_f x) on keys, g = σ(W_g x) on values.

    The decaying update rule among the projections of LCSM, which have no biases. The norm of o belongs to the
    block. x and y are (B, T, H·V).
    """

    biased: ClassVar[bool] = False

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=self.biased)
        self.key = nn.Linear(self.width, H * K, bias=self.biased)
        self.value = nn.Linear(self.width, H * V, bias=self.biased)
        self.key_gate = nn.Linear(self.width, H * K, bias=self.biased)
        self.value_gate = nn.Linear(self.width, H * V, bias=self.biased)

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        return {
            "q": self.query(x).unflatten(-1, heads),
            "k": self.key(x).unflatten(-1, heads),
            "v": self.value(x).unflatten(-1, heads),
            "log_a": functional.logsigmoid(gate_precision(self.key_gate(x))).unflatten(-1, heads),
            "log_b": functional.logsigmoid(gate_precision(self.value_gate(x))).unflatten(-1, heads),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()

        def project(name: str) -> Tensor:
            return (x @ W[f"{name}.weight"].mT + W.get(f"{name}.bias", 0)).view(B, T, H, -1)

        q, k, v = project("query"), project("key"), project("value")
        f, g = torch.sigmoid(project("key_gate")), torch.sigmoid(project("value_gate"))
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            decay = torch.einsum("bhk,bhv->bhkv", f[:, t], g[:, t])
            S = decay * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model("decaying_fast_weights", recurrence="linear_attention", paper=DECAYING, gate="both")
class DecayingFastWeights(DUR):
    """S_t = (σ(z_t) σ(f_t)ᵀ) ⊙ S_{t−1} + k_t v_tᵀ, o_t = S_tᵀ q_t, all five linear in x with biases.

    As published: q, k and v are those of a pre-trained attention layer, which have biases. The published code
    also has a delta rule, which reads before the write and has no gate. x and y are (B, T, H·V).
    """

    biased = True


@model(
    "gfw",
    recurrence="linear_attention",
    paper=f"{papers.GFW}, the gated update; {papers.LCSM}, Table 1, its separable form",
    gate="both",
)
class GatedFastWeights(DUR):
    """S_t = (f_t g_tᵀ) ⊙ S_{t−1} + T_t ⊙ k_t v_tᵀ, o_t = S_tᵀ q_t, T_t = (1 − f_t)(1 − g_t)ᵀ.

    f and g are sigmoids as in `dur`. This is the separable form that LCSM lists. The paper keeps
    (1 − T_t) ⊙ S_{t−1}, which for a T_t of rank one is an elementwise gate, beyond this recurrence. The
    input T_t ⊙ k_t v_tᵀ is exact, the outer product of (1 − f_t) ⊙ k_t and (1 − g_t) ⊙ v_t. x and y are
    (B, T, H·V).
    """

    def operands(self, x: Tensor) -> dict[str, Any]:
        H = self.shape["H"]
        given = super().operands(x)
        keys_in = torch.sigmoid(-gate_precision(self.key_gate(x))).unflatten(-1, (H, -1))
        values_in = torch.sigmoid(-gate_precision(self.value_gate(x))).unflatten(-1, (H, -1))
        return {**given, "k": (keys_in * given["k"]).to(x.dtype), "v": (values_in * given["v"]).to(x.dtype)}

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q, k, v, f, g = (
            (x @ W[f"{name}.weight"].mT).view(B, T, H, -1)
            for name in ("query", "key", "value", "key_gate", "value_gate")
        )
        f, g = torch.sigmoid(f), torch.sigmoid(g)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            gate = torch.einsum("bhk,bhv->bhkv", 1 - f[:, t], 1 - g[:, t])
            decay = torch.einsum("bhk,bhv->bhkv", f[:, t], g[:, t])
            S = decay * S + gate * torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
