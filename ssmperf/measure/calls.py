"""What is called when a pass is timed, profiled or measured, and the values that it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.measure import blocks, verify
from ssmperf.measure.verify import Reference, Values, contract, draw_cotangents
from ssmperf.operands import build, dtype_of, initial_state, laid_out


def values_of(case: Case, number: int, *, device: str, with_state: bool) -> Values:
    """The case's operands number 0, 1, ... and random gradients of the loss at its results.

    In the case's layout, the gradient at the output too.

    with_state: a random initial state too, where the recurrence has one, and a gradient at the final state.
    A block begins without one, and its state is not judged.
    """
    if case.level == "block":
        return blocks.values_of(case, number, device=device)
    recurrence = registry.recurrence(case.recurrence)
    operands = build(case, draw=number, device=device)
    if with_state and recurrence.has_state:
        operands["initial_state"] = initial_state(case, operands, draw=number, device=device)
    T = case.shape["T"]
    output, state = contract(recurrence.definition, operands, T)
    full = output.new_empty(output.shape[0], T, *output.shape[2:])
    grad_output, grad_state = draw_cotangents(full, state, seed=17 + number)
    grad_output = laid_out({"output": grad_output}, case.layout, T)["output"]
    if not with_state and grad_state is not None:
        grad_state = torch.zeros_like(grad_state)
    return Values(operands, grad_output, grad_state)


def function_of(case: Case, *, device: str) -> Callable[..., Any]:
    """What a case calls with its operands by name: the backend, or the block around it."""
    function = registry.backend(case.model or case.recurrence, case.backend).function
    if case.level == "block":
        return blocks.function_of(case, function, dtype=dtype_of(case.dtype), device=device)
    return function


def refer(case: Case, definition: Callable[..., Any], values: Values, *, gradients: bool) -> Reference:
    """The answer of a definition, or of a block around it, for some values; see `verify.refer`."""
    if case.level == "block":
        return blocks.refer(case, definition, values, gradients=gradients)
    length, dtype = case.shape["T"], dtype_of(case.dtype)
    return verify.refer(definition, values, length=length, dtype=dtype, gradients=gradients)


def lowered(case: Case, operands: Mapping[str, Any]) -> Mapping[str, Any]:
    """The operands that the recurrence gets from those of the case."""
    return blocks.lowered(case, operands) if case.level == "block" else operands


def call_of(pass_: str, function: Callable[..., Any], values: Values) -> Callable[[], Any]:
    """One pass of a backend on these values, as a function without arguments. No gradient is accumulated.

    `forward` and `decode` run without a graph; `backward` gets its graph ready-made, and returns the
    gradients of all tensor operands (None where none arrives), as `forward_backward` does, from the gradient
    at the output.
    """
    if pass_ in ("forward", "decode"):

        def forward() -> Any:
            with torch.no_grad():
                return function(**values.operands)

        return forward

    leaves = {name: value.detach().requires_grad_() for name, value in values.tensors.items()}
    operands = {**values.operands, **leaves}

    def backward_of(output: torch.Tensor, *, keep: bool) -> Any:
        if not output.requires_grad:
            return (None,) * len(leaves)
        return torch.autograd.grad(
            output, list(leaves.values()), values.grad_output, retain_graph=keep, allow_unused=True
        )

    if pass_ == "backward":
        output = function(**operands)[0]
        return lambda: backward_of(output, keep=True)
    return lambda: backward_of(function(**operands)[0], keep=False)
