"""Answer: the results of one call of a backend, and whether they keep the form of the contract.

Faults that only the calling process can see are found here: a changed input, a missing gradient, a result
that is still being computed when the call returns. Numbers are compared elsewhere (judge/verdict.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.call import GRAPH
from ssmperf.engine.judge.circumstances import Inputs, entered, replayed
from ssmperf.engine.judge.poison import poisoned
from ssmperf.engine.operands.contract import Contract, malformed
from ssmperf.engine.operands.subject import Subject
from ssmperf.engine.operands.time_axis import length_of
from ssmperf.engine.operands.values import Values, contract


@dataclass(frozen=True, slots=True)
class Answer:
    """Results of one call by name, or why there are none to compare.

    results: `output`, `final_state` and the gradients by operand, as far as the call gives them.
    problem: why the call is wrong whatever its numbers are.
    gradient_problem: why there are no gradients; said only if the other results are right.
    inner: for a layer, the results of the recurrence inside it, on the operands that the layer gives it.
    """

    results: Mapping[str, Tensor] = field(default_factory=dict)
    problem: str | None = None
    gradient_problem: str | None = None
    inner: Answer | None = None

    @property
    def output(self) -> Tensor | None:
        return self.results.get("output")


def contract_of(subject: Subject, definition: Callable[..., Any], values: Values) -> Contract:
    """Get the contract of a subject on these values, from the first step of its definition."""
    if subject.residual(values) is not None:  # a layer's output has its input's form
        x: Tensor = values.operands["x"]
        return Contract(tuple(x.shape), x.dtype, None, None)
    return _operation(definition, values, subject.case.shape["T"], with_state=True)


def inside(
    subject: Subject, definition: Callable[..., Any], values: Values
) -> tuple[Values, Contract] | None:
    """Get the values of the recurrence inside a layer, and their contract; None for an operation."""
    inner = subject.inner(values)
    if inner is None:
        return None
    return inner, _operation(definition, inner, length_of(inner.operands), with_state=False)


def _operation(definition: Callable[..., Any], values: Values, T: int, *, with_state: bool) -> Contract:
    output, state = contract(definition, values.operands, T)
    whole = (output.shape[0], T, *output.shape[2:])
    if state is None or not with_state:
        return Contract(whole, output.dtype, None, None)
    return Contract(whole, output.dtype, tuple(state.shape), state.dtype)


def call_backend(
    function: Callable[..., Any],
    values: Values,
    expected: Contract,
    *,
    gradients: bool,
    poison: bool = True,
    inner: tuple[Values, Contract] | None = None,
) -> Answer:
    """Call a backend once on these values and collect its results.

    poison: whether uninitialised memory reads as NaN during the call.
    inner: for a layer, the values of the recurrence inside it, for which it is called once more.
    """
    answer = _called(function, values, expected, gradients=gradients, poison=poison)
    if inner is None or answer.problem:
        return answer
    recurrence = partial(function, inner=True)
    return replace(answer, inner=_called(recurrence, *inner, gradients=gradients, poison=poison))


def _called(
    function: Callable[..., Any], values: Values, expected: Contract, *, gradients: bool, poison: bool
) -> Answer:
    leaves, inputs = values.varying.values(), Inputs(values)
    memory = poisoned(values.device, like=inputs.tensors) if poison else nullcontext()
    try:
        for value in leaves:
            value.requires_grad_(gradients)
        with entered(values, inputs), memory, torch.set_grad_enabled(gradients):
            if GRAPH in values.circumstances:
                answer = _replayed(function, values, expected, inputs)
            else:
                answer = _answered(function, values, expected, inputs)
    finally:
        for value in leaves:
            value.requires_grad_(False)
    problem = inputs.changed()
    return Answer(problem=problem) if problem else answer


def _answered(function: Callable[..., Any], values: Values, expected: Contract, inputs: Inputs) -> Answer:
    """Call a function, and differentiate where gradients are recorded, unless its results break a promise."""
    result = values.call(function)
    problem = (
        malformed(result, expected, values.device)
        or _unfinished(result[0])
        or inputs.changed()  # before autograd meets it, which names no operand
    )
    return Answer(problem=problem) if problem else _results(result, values)


def _replayed(function: Callable[..., Any], values: Values, expected: Contract, inputs: Inputs) -> Answer:
    """Call a function with other values, capture the call, and replay it with its own values."""
    inputs.halve()
    answer = _answered(function, values, expected, inputs)
    if answer.problem or answer.gradient_problem:
        inputs.restore()
        return answer
    answer = replayed(lambda: _results(values.call(function), values), inputs)
    return Answer({name: result.clone() for name, result in answer.results.items()})


def _results(result: tuple[Tensor, Tensor | None], values: Values) -> Answer:
    """Name the results of a call, and compute the gradients if they are recorded."""
    output, state = result
    found = _gradients(output, state, values.varying, values) if torch.is_grad_enabled() else {}
    results = {"output": output.detach()} | ({} if state is None else {"final_state": state.detach()})
    if isinstance(found, str):
        return Answer(results, gradient_problem=found)
    return Answer({**results, **found})


def _unfinished(output: Tensor) -> str | None:
    """Say that work on another stream was still writing the output when the call returned, or return None."""
    if output.device.type != "cuda":
        return None
    at_return = output.detach().clone()
    torch.cuda.synchronize(output.device)
    if torch.equal(at_return.isfinite(), output.isfinite()) and torch.equal(
        at_return[at_return.isfinite()], output.detach()[at_return.isfinite()]
    ):
        return None
    return "its output was still being written when it returned"


def no_gradient(missing: Sequence[str]) -> str:
    """Say which operands get no gradient."""
    are = "gradient is" if len(missing) == 1 else "gradients are"
    return f"no gradient reaches {', '.join(missing)}: the {are} None"


def _gradients(
    output: Tensor, state: Tensor | None, leaves: Mapping[str, Tensor], values: Values
) -> dict[str, Tensor] | str:
    """Compute the gradients of all leaves, or name the fault of the graph."""
    results = (("output", output, values.grad_output), ("final_state", state, values.grad_state))
    ends = [
        (tensor, gradient)
        for name, tensor, gradient in results
        if tensor is not None and gradient is not None and tensor.requires_grad and name not in values.missing
    ]
    if not ends and values.missing:  # the only result with a gradient depends on none of the leaves
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    if not output.requires_grad and "output" not in values.missing:
        return f"output has no graph (requires_grad is False), so no gradient reaches {', '.join(leaves)}"
    found = torch.autograd.grad(
        [tensor for tensor, _ in ends],
        list(leaves.values()),
        [gradient.to(tensor.dtype) for tensor, gradient in ends],
        allow_unused=True,
        materialize_grads=bool(values.missing),
    )
    missing = [name for name, gradient in zip(leaves, found, strict=True) if gradient is None]
    if missing:
        return no_gradient(missing)
    return dict(zip(leaves, found, strict=True))
