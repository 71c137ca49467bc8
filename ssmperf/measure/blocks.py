"""Cases of level "block": a model's whole layer as a function of x and of all its parameters by name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ssmperf import registry
from ssmperf.block import Block, Compute, build_block
from ssmperf.case import Case, Shape
from ssmperf.measure import verify
from ssmperf.measure.oracle import as_backend, widen
from ssmperf.measure.verify import Reference, Values
from ssmperf.operands import dtype_of, embed_text, length_of


def values_of(case: Case, number: int, *, device: str) -> Values:
    """x (B, T, width), the block's parameters by name, and a random gradient at y.

    x is embedded text and half as much noise, in the place of what earlier layers add: where equal bytes
    follow each other, norms would cancel all gradients but rounding errors.
    number: 0, 1, ... gives other text for the same parameters.
    """
    block, dtype = _built(case), dtype_of(case.dtype)
    B, T = case.shape["B"], case.shape["T"]
    text = embed_text(B, T, block.width, seed=case.seed, draw=number, device=device)
    noise, _ = verify.draw_cotangents(text, None, seed=41 + number)
    x = (text + noise / 2).to(dtype)
    parameters = {
        name: widen(parameter.detach().to(device), dtype).clone()
        for name, parameter in block.named_parameters()
    }
    grad_output, _ = verify.draw_cotangents(x, None, seed=17 + number)
    return Values({"x": x, **parameters}, grad_output, None)


def function_of(case: Case, compute: Compute, *, dtype: torch.dtype, device: str) -> Callable[..., Any]:
    """The block as `f(x, **parameters) -> (y, None)`, its recurrence computed by a backend or a function."""
    block = _skeleton(case.model or "", _sizes(case), case.seed, dtype, device)

    def run(x: Tensor, **parameters: Tensor) -> tuple[Tensor, None]:
        y, _ = functional_call(block, parameters, (x,), {"backend": compute})
        return y, None

    return run


def refer(case: Case, definition: Callable[..., Any], values: Values, *, gradients: bool) -> Reference:
    """The block in float64 around a definition of the recurrence, and how far it is off in the case's dtype.

    There the definition is evaluated as for a recurrence, in float32 or wider, all else in the case's dtype.
    Errors of y are relative to what the block adds to x.
    """
    dtype = dtype_of(case.dtype)
    exact, low = (
        function_of(
            case,
            as_backend(definition, torch.promote_types(precision, torch.float32)),
            dtype=precision,
            device=str(values.grad_output.device),
        )
        for precision in (torch.float64, dtype)
    )
    return verify.refer(
        exact,
        values,
        length=case.shape["T"],
        dtype=dtype,
        gradients=gradients,
        low=low,
        residual=values.operands["x"],
    )


def lowered(case: Case, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The operands that the recurrence gets inside the block."""
    definition = registry.recurrence(case.recurrence).definition
    caught: dict[str, Any] = {}

    def catch(**given: Any) -> tuple[Tensor, Any]:
        caught.update(given)
        output, state = verify.contract(definition, given, length_of(given))
        return output.expand(-1, case.shape["T"], *output.shape[2:]), state

    x = operands["x"]
    with torch.no_grad():
        function_of(case, catch, dtype=x.dtype, device=str(x.device))(**operands)
    return caught


def _built(case: Case) -> Block:
    return _skeleton(case.model or "", _sizes(case), case.seed, torch.float32, "cpu")


def _sizes(case: Case) -> Shape:
    """B and T enter no parameter."""
    return case.shape.with_(B=1, T=1)


@functools.lru_cache(maxsize=4)
def _skeleton(name: str, shape: Shape, seed: int, dtype: torch.dtype, device: str) -> Block:
    """The block with the parameters that this seed gives, the same on every device, in a dtype."""
    if (dtype, device) != (torch.float32, "cpu"):
        return copy.deepcopy(_skeleton(name, shape, seed, torch.float32, "cpu")).to(device, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_block(name, shape).requires_grad_(False)
