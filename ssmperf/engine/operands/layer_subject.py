"""The subject of cases of level "block": a model's whole layer as a function of x and of its parameters."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.layers.block import Block, build_block
from ssmperf.engine.operands.build import embed_text
from ssmperf.engine.operands.dtypes import dtype_of, widen
from ssmperf.engine.operands.time_axis import length_of
from ssmperf.engine.operands.values import Values, contract, draw_cotangents


@dataclass(frozen=True)
class LayerSubject:
    """A model's block as `f(x, **parameters) -> (y, None)`. It starts without a state and returns none."""

    case: Case
    device: str

    def values(self, number: int, *, with_state: bool) -> Values:
        """Draw x (B, T, width), the block's parameters by name, and a random gradient at y.

        x is embedded text plus half as much noise. The noise stands for the contribution of earlier layers:
        without it, norms would cancel all gradients but rounding errors where equal bytes follow each other.

        number: number of the draw; each gives other text for the same parameters.
        """
        case, device = self.case, self.device
        block, dtype = self._block(torch.float32, "cpu"), dtype_of(case.dtype)
        B, T = case.shape["B"], case.shape["T"]
        text = embed_text(B, T, block.width, seed=case.seed, draw=number, device=device)
        noise, _ = draw_cotangents(text, None, seed=41 + number)
        x = (text + noise / 2).to(dtype)
        parameters = {
            name: widen(parameter.detach().to(device), dtype).clone()
            for name, parameter in block.named_parameters()
        }
        grad_output, _ = draw_cotangents(x, None, seed=17 + number)
        return Values({"x": x, **parameters}, grad_output, None)

    def function(self, compute: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
        """Make the layer around `compute`; called with `inner=True`, it computes only the recurrence inside.

        Then the operands are the recurrence's, as `inner` draws them.
        """
        block = self._block(dtype, self.device)

        def run(*, inner: bool = False, **operands: Any) -> tuple[Tensor, None]:
            if inner:
                output, _ = compute(**operands)
                return output, None
            x = operands.pop("x")
            y, _ = functional_call(block, operands, (x,), {"backend": compute})
            return y, None

        return run

    def residual(self, values: Values) -> Tensor | None:
        x: Tensor = values.operands["x"]
        return x

    def inner(self, values: Values) -> Values | None:
        """Give the recurrence's operands inside the layer, and a random gradient at its output."""
        lowered = self.lower(values.operands)
        operands = {n: v for n, v in lowered.items() if n != "initial_state" or v is not None}
        T = length_of(operands)
        output, _ = contract(registry.recurrence(self.case.recurrence).definition, operands, T)
        whole = output.new_empty(output.shape[0], T, *output.shape[2:])
        grad_output, _ = draw_cotangents(whole, None, seed=29)
        return Values(operands, grad_output, None)

    def lower(self, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Give the operands that the recurrence gets, the last time if a model calls it more than once."""
        definition = registry.recurrence(self.case.recurrence).definition
        captured: dict[str, Any] = {}

        def capture(**lowered: Any) -> tuple[Tensor, Any]:
            captured.clear()
            captured.update(lowered)
            T = length_of(lowered)
            output, state = contract(definition, lowered, T)
            return output.expand(-1, T, *output.shape[2:]), state

        with torch.no_grad():
            self.function(capture, operands["x"].dtype)(**operands)
        return captured

    def _block(self, dtype: torch.dtype, device: str) -> Block:
        sizes = self.case.shape.with_(B=1, T=1)  # B and T enter no parameter
        return _build(self.case.model or "", sizes, self.case.seed, dtype, device)


@functools.lru_cache(maxsize=4)
def _build(name: str, shape: Shape, seed: int, dtype: torch.dtype, device: str) -> Block:
    """Build a block in a dtype; its parameters depend only on the seed, not on the device."""
    if (dtype, device) != (torch.float32, "cpu"):
        return copy.deepcopy(_build(name, shape, seed, torch.float32, "cpu")).to(device, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_block(name, shape).requires_grad_(False)
