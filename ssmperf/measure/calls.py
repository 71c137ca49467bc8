"""What is called when a pass is timed, profiled or measured, and the values that it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.measure.verify import Values, contract, draw_cotangents
from ssmperf.operands import build, initial_state


def values_of(case: Case, number: int, *, device: str, with_state: bool) -> Values:
    """The case's operands number 0, 1, ... and random gradients of the loss at its results.

    with_state: a random initial state too, where the recurrence has one, and a gradient at the final state.
    """
    recurrence = registry.recurrence(case.recurrence)
    operands = build(case, draw=number, device=device)
    if with_state and recurrence.has_state:
        operands["initial_state"] = initial_state(case, operands, draw=number, device=device)
    output, state = contract(recurrence.definition, operands, case.shape["T"])
    full = output.new_empty(output.shape[0], case.shape["T"], *output.shape[2:])
    grad_output, grad_state = draw_cotangents(full, state, seed=17 + number)
    if not with_state and grad_state is not None:
        grad_state = torch.zeros_like(grad_state)
    return Values(operands, grad_output, grad_state)


def call_of(pass_: str, function: Callable[..., Any], values: Values) -> Callable[[], Any]:
    """One pass of a backend on these values, as a function without arguments. No gradient is accumulated.

    `forward` runs without a graph; `backward` gets its graph ready-made, and returns the gradients of all
    tensor operands (None where none arrives), as `forward_backward` does, from the gradient at the output.
    """
    if pass_ == "forward":

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
