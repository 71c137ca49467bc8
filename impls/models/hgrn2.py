"""HGRN2: HGRN with its state expanded to a matrix by an outer product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssmperf.authoring import UsageError, model

from . import _papers as papers
from .hgrn import Bound, Bounded, forget_gate


def regrouped(shape: Mapping[str, int], expand: int | None) -> dict[str, int]:
    """Give the shape with its H·V channels in heads of `expand` keys and values.

    Raises:
        UsageError: `expand` does not divide them.
    """
    if expand is None:
        return dict(shape)
    width = shape["H"] * shape["V"]
    if expand < 1 or width % expand:
        raise UsageError(f"hgrn2 has heads of expand={expand} channels, which must divide H·V = {width}")
    return {**shape, "H": width // expand, "K": expand, "V": expand}


@model(
    "hgrn2",
    recurrence="linear_attention",
    paper=f"{papers.HGRN2}, eq. 3",
    gate="key",
)
class HGRN2(Bounded):
    """S_t = diag(f_t) S_{t−1} + (1 − f_t) i_tᵀ, y_t = S_tᵀ o_t, f_t = β + (1 − β)σ(·), i = SiLU(·), o = σ(·).

    The paper has K = V = d/H and writes the transposed state. β as in HGRN, a number or a tensor (H·K,): 0 in
    the first layer, the default. The norm of y belongs to the block. x and y are (B, T, H·V).

    expand: the paper's expansion ratio, K = V = `expand` in H·V/expand heads; the sizes of the shape if None.

    Raises:
        UsageError: H·V is not divisible by `expand`.
    """

    def __init__(
        self, shape: Mapping[str, int], *, lower_bound: Bound = 0.0, expand: int | None = None
    ) -> None:
        super().__init__(regrouped(shape, expand), lower_bound=lower_bound)
        H, K, V = (self.shape[letter] for letter in "HKV")
        self.forget = nn.Linear(self.width, H * K)
        self.input = nn.Linear(self.width, H * V)
        self.output = nn.Linear(self.width, H * K)

    @staticmethod
    def bounded_channels(shape: Mapping[str, int], options: Mapping[str, Any]) -> int:
        sizes = regrouped(shape, options.get("expand"))
        return sizes["H"] * sizes["K"]

    def operands(self, x: Tensor) -> dict[str, Any]:
        heads = (self.shape["H"], -1)
        log_f, rest = forget_gate(self.forget(x), self.bound())
        return {
            "q": torch.sigmoid(self.output(x)).unflatten(-1, heads),
            "k": rest.to(x.dtype).unflatten(-1, heads),
            "v": functional.silu(self.input(x)).unflatten(-1, heads),
            "log_a": log_f.unflatten(-1, heads),
        }

    def readout(self, output: Tensor, x: Tensor) -> Tensor:
        return output.flatten(-2)

    def definition(self, x: Tensor) -> Tensor:
        W = {name: parameter.double() for name, parameter in self.named_parameters()}
        B, T, _ = x.shape
        H, K, V = (self.shape[letter] for letter in "HKV")
        x = x.double()
        beta = self.exact_bound().to(x.device)
        f = beta + (1 - beta) * torch.sigmoid(x @ W["forget.weight"].mT + W["forget.bias"])
        i = functional.silu(x @ W["input.weight"].mT + W["input.bias"]).view(B, T, H, V)
        o = torch.sigmoid(x @ W["output.weight"].mT + W["output.bias"]).view(B, T, H, K)
        f = f.view(B, T, H, K)
        S, y = x.new_zeros(B, H, K, V), []
        for t in range(T):
            S = f[:, t].unsqueeze(-1) * S + torch.einsum("bhk,bhv->bhkv", 1 - f[:, t], i[:, t])
            y.append(torch.einsum("bhkv,bhk->bhv", S, o[:, t]))
        return torch.stack(y, dim=1).reshape(B, T, H * V)
