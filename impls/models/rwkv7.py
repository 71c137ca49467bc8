"""RWKV-7: a state with a decay per key channel, in which a unit key is replaced by another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import BackendLike, Model, Unsupported, UsageError, gate_precision, model

from . import _papers as papers
from ._parts import EPSILON, GroupNorm, LowRank
from ._rwkv_blocks import RWKV7Block

PRESETS = {
    "smoke": [{"B": 1, "H": 2, "K": 16, "V": 16}],
    "standard": [{"B": 4, "T": 4096, "H": 32, "K": 64, "V": 64}],
    "long": [{"B": 1, "H": 32, "K": 64, "V": 64}],
}
LARGEST_DECAY = math.exp(-0.5)  # of −log w


def rise(channels: int) -> Tensor:
    """Rise from −½ in the first channel to ½ in the last."""
    return torch.arange(channels) / max(channels - 1, 1) - 0.5


def zigzag(heads: int, channels: int) -> Tensor:
    """Rise from −1 to 1 within each head as z|z|, where z is linear in the channel."""
    z = 2 * rise(channels)
    return (z * z.abs()).repeat(heads)


@model(
    "rwkv7",
    recurrence="delta_rule",
    paper=f"{papers.RWKV7}, section 4",
    gate="dplr_key",
    presets=PRESETS,
)
class RWKV7(Model):
    """S_t = (diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ) S_{t−1} + k̃_t v_tᵀ, y_t = norm(S_tᵀ r_t) + (r_t · (ρ ⊙ k̃_t)) v_t.

    κ = (ξ ⊙ k)/|ξ ⊙ k| and k̃ = k ⊙ (1 + (a − 1) ⊙ α). log w = −e^(−1/2) σ(w₀ + tanh(x W₁) W₂) > −0.607 and
    a = σ(a₀ + x A₁A₂), both per key channel. r, k and v are projections of x. The norm is one per head, with
    1e-5·V under the root. Layers after the first mix v with that of the first layer, by the share
    σ(v₀ + x V₁V₂). x and y are (B, T, H·V).

    The block gives r, w, k, v and a an x of their own, by token shifts; it has the output gate, too.
    Parameters start as in the published code, except for W₁, A₁ and V₁, which start as linear layers do
    instead of with 0.

    layer: number of the layer, from 0.
    layers: how many the network has; both also enter the start of w₀ and of the token shifts.

    Raises:
        UsageError: a layer that is none of the network's.
    """

    block = RWKV7Block
    least_log_gate = -LARGEST_DECAY

    def __init__(self, shape: Mapping[str, int], *, layer: int = 0, layers: int = 1) -> None:
        if not 0 <= layer < layers:
            raise UsageError(f"the layer must be in 0..{layers - 1}, got {layer}")
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.layer, self.layers_left = layer, 1 - layer / layers
        self.output_width = H * V
        self.receptance = self._projection(H * K, 0.5)
        self.key = self._projection(H * K, 0.05)
        self.value = self._projection(H * V, 0.5)
        depth = layer / max(layers - 1, 1)
        speed = -6 + 6 * (rise(H * K) + 0.5) ** (1 + depth**0.3)
        self.decay = LowRank(self.width, H * K, 2.5, torch.tanh)
        self.decay_bias = nn.Parameter(speed + 0.5 + 2.5 * zigzag(H, K))
        self.rate = LowRank(self.width, H * K, 2.5)
        self.rate_bias = nn.Parameter(-0.19 + 0.3 * zigzag(H, K) + 0.4 * rise(H * K))
        if layer:
            self.share = LowRank(self.width, H * V, 1.7)
            self.share_bias = nn.Parameter(0.73 - 0.4 * rise(H * V))
        self.removed = nn.Parameter(0.71 - 0.1 * rise(H * K))  # ξ
        self.replaced = nn.Parameter(torch.full((H * K,), 1.02))  # α
        self.bonus = nn.Parameter(torch.full((H, K), -0.04))  # ρ
        self.output_norm = GroupNorm(H, H * V, eps=EPSILON * V)

    def _projection(self, channels: int, scale: float) -> nn.Linear:
        linear = nn.Linear(self.width, channels, bias=False)
        bound = scale * self.width**-0.5
        nn.init.uniform_(linear.weight, -bound, bound)
        return linear

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        return [{"layer": layer, "layers": layers} for layer in range(layers)]

    def forward(
        self, x: Tensor, *, backend: BackendLike = "sequential", state: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        operands = self.operands(x)
        output, final = self.compute(operands, backend, state)
        return self.finish(output, operands), final

    def lower(
        self, r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, first: Tensor | None = None
    ) -> dict[str, Any]:
        """Form the operands from the input of each projection.

        first: v of the first layer (B, T, H, V), for the later ones.

        Raises:
            Unsupported: there is no `first`, and this is not the first layer.
        """
        heads = (self.shape["H"], -1)
        keys, rate = self.key(k), torch.sigmoid(self.rate_bias + self.rate(a))
        removed = (self.removed * keys).unflatten(-1, heads)
        unit = functional.normalize(gate_precision(removed), dim=-1).to(keys.dtype)
        decay = gate_precision(self.decay_bias) + gate_precision(self.decay(w))
        return {
            "q": self.receptance(r).unflatten(-1, heads),
            "k": (keys * (1 + (rate - 1) * self.replaced)).unflatten(-1, heads),
            "v": self._values(v, first),
            "beta": None,
            "log_a": -LARGEST_DECAY * torch.sigmoid(decay).unflatten(-1, heads),
            "p": -rate.unflatten(-1, heads) * unit,
            "r": unit,
        }

    def _values(self, x: Tensor, first: Tensor | None) -> Tensor:
        v: Tensor = self.value(x).unflatten(-1, (self.shape["H"], -1))
        if self.layer == 0:
            return v
        if first is None:
            raise Unsupported(f"layer {self.layer} of {self.name} needs v of the first layer: use a network")
        share: Tensor = torch.sigmoid(self.share_bias + self.share(x))
        return v + share.view(v.shape) * (first - v)

    def finish(self, output: Tensor, operands: Mapping[str, Any]) -> Tensor:
        """Form y from the recurrence's output and operands: the norm, and the bonus of the present token."""
        weight = (operands["q"] * self.bonus * operands["k"]).sum(-1, keepdim=True)
        y: Tensor = self.output_norm(output.flatten(-2)) + (weight * operands["v"]).flatten(-2)
        return y

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(x, x, x, x, x)

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return self.finish(output, self.operands(x))

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        r, k = ((x @ W[f"{name}.weight"].mT).view(B, T, H, K) for name in ("receptance", "key"))
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        low = torch.tanh(x @ W["decay.down.weight"].mT) @ W["decay.up.weight"].mT
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(W["decay_bias"] + low)).view(B, T, H, K)
        a = W["rate_bias"] + x @ W["rate.down.weight"].mT @ W["rate.up.weight"].mT
        a = torch.sigmoid(a).view(B, T, H, K)
        kappa = k * W["removed"].view(H, K)
        kappa = kappa / torch.sqrt((kappa * kappa).sum(-1, keepdim=True)).clamp(min=1e-12)
        k = k * (1 + (a - 1) * W["replaced"].view(H, K))
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            erase = torch.einsum("bhk,bhl->bhkl", a[:, t] * kappa[:, t], kappa[:, t])
            write = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            S = (torch.diag_embed(w[:, t]) - erase) @ S + write
            o = torch.einsum("bhkv,bhk->bhv", S, r[:, t])
            o = o - o.mean(-1, keepdim=True)
            o = o / torch.sqrt((o * o).mean(-1, keepdim=True) + 1e-5 * V)
            o = o * W["output_norm.weight"].view(H, V) + W["output_norm.bias"].view(H, V)
            y.append(o + (r[:, t] * W["bonus"] * k[:, t]).sum(-1, keepdim=True) * v[:, t])
        return torch.stack(y, dim=1).reshape(B, T, H * V)
