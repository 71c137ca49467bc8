"""RWKV-5 and RWKV-6: matrix states that are read before the write, with a bonus for the present token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.authoring import Block, Model, UsageError, gate_precision, model

from . import _papers as papers
from ._parts import checked_rank
from ._rwkv_blocks import HeadwiseRWKV5Block, RWKV5Block, RWKV6Block


def decay_speed(channels: int, depth: float) -> Tensor:
    """Give the published start of ω: −6 in the first channel to −1 in the last, so w from 0.998 to 0.69."""
    place = torch.arange(channels) / max(channels - 1, 1)
    return -6 + 5 * place ** (0.7 + 1.3 * depth)


def first_bonus(channels: int, depth: float) -> Tensor:
    """Give the published start of u: a zigzag of −0.1, 0, 0.1 on a slope that grows with the depth."""
    return slope(channels, depth) + 0.1 * ((torch.arange(channels) + 1) % 3 - 1)


def slope(channels: int, depth: float) -> Tensor:
    """Fall from the depth in the first channel to 0 in the last."""
    return depth * (1 - torch.arange(channels) / max(channels - 1, 1))


@model(
    "rwkv5",
    recurrence="linear_attention",
    paper=f"{papers.EAGLE}, section 4.1, Eagle",
    gate="const",
    cost_gate="key",
)
class RWKV5(Model):
    """o_t = (S_{t−1} + diag(u) k_t v_tᵀ)ᵀ r_t, S_t = diag(w) S_{t−1} + k_t v_tᵀ, w = exp(−exp(ω)).

    ω and the bonus u are parameters of each head's key channels (H, K). Token shift, head norm and output
    gate belong to the block. x and y are (B, T, H·V).

    depth: place of the layer from 0, the first, to 1, the last; it enters the start of ω and u only.
    per_head: whether a head's channels share ω and u, as in the version 5.1 of the authors' code; its layer
        then has that version's token shifts, channel mixing and norms.

    Raises:
        UsageError: a depth outside [0, 1].
    """

    block: ClassVar[type[Block]] = RWKV5Block

    def __init__(self, shape: Mapping[str, int], *, depth: float = 0.0, per_head: bool = False) -> None:
        if not 0 <= depth <= 1:
            raise UsageError(f"the depth must be in [0, 1], got {depth}")
        super().__init__(shape)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.receptance = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)
        if per_head:
            self.block = HeadwiseRWKV5Block  # type: ignore[misc]  # of this layer, not of its class
            self.omega = nn.Parameter(decay_speed(H, depth).unsqueeze(-1))
            self.bonus = nn.Parameter(slope(H, depth).unsqueeze(-1))
        else:
            self.omega = nn.Parameter(decay_speed(H * K, depth).view(H, K))
            self.bonus = nn.Parameter(first_bonus(H * K, depth).view(H, K))

    def log_decay(self, x: Tensor) -> Tensor:
        """Form log w = −exp(ω) (H, K)."""
        return -torch.exp(gate_precision(self.omega)).expand(-1, self.shape["K"])

    @classmethod
    def depth_options(
        cls, shape: Mapping[str, int], layers: int, options: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        return [{"depth": layer / max(layers - 1, 1)} for layer in range(layers)]

    def operands(self, x: Tensor) -> dict[str, Any]:
        return self.lower(x, x, x, x)

    def lower(self, r: Tensor, k: Tensor, v: Tensor, w: Tensor) -> dict[str, Any]:
        """Compute the operands from the inputs of the receptance, key, value and decay."""
        heads = (self.shape["H"], -1)
        return {
            "q": self.receptance(r).unflatten(-1, heads),
            "k": self.key(k).unflatten(-1, heads),
            "v": self.value(v).unflatten(-1, heads),
            "log_a": self.log_decay(w),
            "bonus": self.bonus.expand(-1, self.shape["K"]),
            "read": "pre",
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        r = (x @ W["receptance.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        w = torch.exp(-torch.exp(W["omega"])).expand(B, T, H, K)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            kv = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", r[:, t], S + W["bonus"].unsqueeze(-1) * kv))
            S = w[:, t].unsqueeze(-1) * S + kv
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model("rwkv6", recurrence="linear_attention", paper=f"{papers.EAGLE}, section 4.2, Finch", gate="key")
class RWKV6(RWKV5):
    """RWKV-5 with a decay that depends on the data: w_t = exp(−exp(ω + tanh(x_t A) B)).

    A and B start as linear layers do; the published code has A = 0. The mix of x with the token before it,
    data-dependent in this version, belongs to the block.

    rank: of AB.

    Raises:
        UsageError: a depth outside [0, 1], or a rank below 1.
    """

    block = RWKV6Block

    def __init__(self, shape: Mapping[str, int], *, depth: float = 0.0, rank: int = 64) -> None:
        super().__init__(shape, depth=depth)
        self.decay_down = nn.Linear(self.width, checked_rank(rank), bias=False)
        self.decay_up = nn.Linear(rank, self.shape["H"] * self.shape["K"], bias=False)

    def log_decay(self, x: Tensor) -> Tensor:
        """Form log w_t = −exp(ω + tanh(x_t A) B) (B, T, H, K)."""
        step = self.decay_up(torch.tanh(self.decay_down(x))).unflatten(-1, (self.shape["H"], -1))
        return -torch.exp(gate_precision(self.omega) + gate_precision(step))

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        r = (x @ W["receptance.weight"].mT).view(B, T, H, K)
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        low = torch.tanh(x @ W["decay_down.weight"].mT)
        w = torch.exp(-torch.exp(W["omega"] + (low @ W["decay_up.weight"].mT).view(B, T, H, K)))
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            kv = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", r[:, t], S + W["bonus"].unsqueeze(-1) * kv))
            S = w[:, t].unsqueeze(-1) * S + kv
        return torch.stack(y, dim=1).reshape(B, T, H * V)
