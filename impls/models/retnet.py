"""RetNet's retention: a constant decay per head, plain and with rotated queries and keys (xPos)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ssmperf.authoring import Block, Model, UsageError, gate_precision, model

from . import _papers as papers
from ._blocks import RetNetBlock, RetNetGLUBlock
from ._parts import checked_width


def counter(n: int, x: Tensor) -> Tensor:
    """Count 0 .. n − 1 on the device of x, at gate precision."""
    return torch.arange(n, device=x.device, dtype=gate_precision(x.new_empty(0)).dtype)


def log_decay(H: int, x: Tensor) -> Tensor:
    """Form log γ_h = log(1 − 2^(−5−h)) (H,); γ itself rounds to 1 in half precision."""
    return torch.log1p(-torch.exp2(-5 - counter(H, x)))


@model("retnet", recurrence="linear_attention", paper=f"{papers.RETNET}, eqs. 6 and 8", gate="const")
class RetNet(Model):
    """S_t = γ_h S_{t−1} + k_t v_tᵀ, o_t = K^(−1/2) q_tᵀ S_t, γ_h = 1 − 2^(−5−h), without the rotation.

    The group norm and the swish gate on o belong to the block. x is (B, T, width), y (B, T, H·V).

    width: of x; H·V if None.
    glu: whether the layer is that of the authors' later code, with RMS norms and a GLU of the channels.

    Raises:
        UsageError: a width below 1.
    """

    block: ClassVar[type[Block]] = RetNetBlock

    def __init__(self, shape: Mapping[str, int], *, width: int | None = None, glu: bool = False) -> None:
        super().__init__(shape)
        self.input_width = checked_width(width)
        if glu:
            self.block = RetNetGLUBlock  # type: ignore[misc]  # of this layer, not of its class
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.query = nn.Linear(self.width, H * K, bias=False)
        self.key = nn.Linear(self.width, H * K, bias=False)
        self.value = nn.Linear(self.width, H * V, bias=False)

    def operands(self, x: Tensor) -> dict[str, Any]:
        H, K = self.shape["H"], self.shape["K"]
        return {
            "q": self.query(x).unflatten(-1, (H, -1)) * K**-0.5,
            "k": self.key(x).unflatten(-1, (H, -1)),
            "v": self.value(x).unflatten(-1, (H, -1)),
            "log_a": log_decay(H, x),
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
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(H)], dtype=x.dtype, device=x.device)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = gamma.view(H, 1, 1) * S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S))
        return torch.stack(y, dim=1).reshape(B, T, H * V)


@model(
    "retnet_xpos", recurrence="linear_attention", paper=f"{papers.RETNET}, section 2.1", gate="const_complex"
)
class RetNetXPos(RetNet):
    """RetNet with q_n e^(inθ) and k_m e^(imθ), θ_j = 10000^(−2j/K), as a complex state.

    Channels 2j and 2j + 1 form one complex channel, so q, k and the state have K/2 complex channels:
    o = Re(q_cᵀ S), S_t = γ_h e^(iθ) S_{t−1} + conj(k_c) vᵀ. The gate turns the state, so that a passed-on
    state needs no position; in the rotated real form of the definition it would.

    Raises:
        UsageError: K is odd, or a width below 1.
    """

    def __init__(self, shape: Mapping[str, int], *, width: int | None = None, glu: bool = False) -> None:
        if shape["K"] % 2:
            raise UsageError(f"retnet_xpos pairs key channels: K must be even, got {shape['K']}")
        super().__init__(shape, width=width, glu=glu)

    def operands(self, x: Tensor) -> dict[str, Any]:
        H, K = self.shape["H"], self.shape["K"]
        real = super().operands(x)
        q, k = (torch.view_as_complex(gate_precision(real[name]).unflatten(-1, (-1, 2))) for name in "qk")
        return {
            "q": q,
            "k": k.conj().resolve_conj(),
            "v": real["v"],
            "log_a": real["log_a"],
            "phase": torch.pow(10000.0, -2 * counter(K // 2, x) / K).expand(H, -1),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.real.to(x.dtype).flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        q = (x @ W["query.weight"].mT).view(B, T, H, K) / K**0.5
        k = (x @ W["key.weight"].mT).view(B, T, H, K)
        v = (x @ W["value.weight"].mT).view(B, T, H, V)
        gamma = torch.tensor([1 - 2.0 ** (-5 - h) for h in range(H)], dtype=x.dtype, device=x.device)
        theta = torch.tensor([10000 ** (-j / (K / 2)) for j in range(K // 2)], dtype=x.dtype, device=x.device)

        def rotate(pairs: Tensor, n: int) -> Tensor:
            even, odd = pairs[..., 0::2], pairs[..., 1::2]
            cos, sin = torch.cos(n * theta), torch.sin(n * theta)
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = gamma.view(H, 1, 1) * S + torch.einsum("bhk,bhv->bhkv", rotate(k[:, t], t), v[:, t])
            y.append(torch.einsum("bhk,bhkv->bhv", rotate(q[:, t], t), S))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
