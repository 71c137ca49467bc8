"""Judge one call of a backend against a reference: output, final state and every gradient.

Besides wrong numbers, these are `wrong` too, with the reason: a changed input, an unwritten row, a missing
gradient, and a result that is still being computed when the call returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.cases.record import Status
from ssmperf.judge.poison import poisoned
from ssmperf.judge.reference import Reference
from ssmperf.judge.tolerance import relative_error, tolerance
from ssmperf.operands.values import Values


@dataclass(frozen=True)
class Verdict:
    """How a judgement ended. Errors and tolerances are relative to the largest reference value.

    output: the backend's output, so that a caller can see later whether it was overwritten.
    bound: the error bound that the backend declares for the values judged, None if it declares none.
    """

    status: Status
    reason: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    output: Tensor | None = field(default=None, compare=False, repr=False)
    bound: float | None = None


def judge_call(
    function: Callable[..., Any],
    values: Values,
    reference: Reference,
    *,
    dtype: torch.dtype,
    gradients: bool,
    bound: float | None = None,
    poison: bool = True,
) -> Verdict:
    """Call a backend once on these values and compare all its results with the reference.

    bound: error bound that the backend declares for these values, None if it is exact.
    poison: whether uninitialised memory reads as NaN during the call.
    """
    verdict = _judge_call(
        function, values, reference, dtype=dtype, gradients=gradients, bound=bound, poison=poison
    )
    return replace(verdict, bound=bound)


def _judge_call(
    function: Callable[..., Any],
    values: Values,
    reference: Reference,
    *,
    dtype: torch.dtype,
    gradients: bool,
    bound: float | None,
    poison: bool,
) -> Verdict:
    if bound is not None and not 0 <= bound < 1:
        return Verdict(Status.WRONG, f"its declared error bound {bound:g} is not valid: it must be below 1")
    tensors = values.tensors
    watched = {**tensors, "the incoming gradient": values.grad_output}
    before = {name: value.detach().clone() for name, value in watched.items()}
    memory = poisoned(values.grad_output.device, like=list(watched.values())) if poison else nullcontext()
    try:
        for value in tensors.values():
            value.requires_grad_(gradients)
        with memory:
            with torch.set_grad_enabled(gradients):
                result = function(**values.operands)
            problem = _malformed(result, reference) or _unfinished(result[0])
            if problem:
                return Verdict(Status.WRONG, problem)
            output, state = result
            found = _gradients(output, state, tensors, values) if gradients else {}
    finally:
        for value in tensors.values():
            value.requires_grad_(False)
    changed = [name for name, value in watched.items() if not torch.equal(value.detach(), before[name])]
    if changed:
        return Verdict(Status.WRONG, f"it changed its input {', '.join(changed)}")
    verdict = _compare(
        output.detach(), state, {} if isinstance(found, str) else found, reference, dtype, bound
    )
    if isinstance(found, str) and verdict.status is Status.OK:
        return Verdict(Status.WRONG, found, verdict.errors, verdict.tolerances)
    return verdict


def compare_gradients(
    found: Mapping[str, Tensor], reference: Reference, *, dtype: torch.dtype, bound: float | None
) -> Verdict:
    """Judge gradients alone, by operand name."""
    return replace(_compare(None, None, found, reference, dtype, bound), bound=bound)


def _compare(
    output: Tensor | None,
    state: Tensor | None,
    gradients: Mapping[str, Tensor],
    reference: Reference,
    dtype: torch.dtype,
    bound: float | None,
) -> Verdict:
    exact = reference.exact
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    if output is not None:
        pairs["output"] = (output, exact.output)
    if state is not None and exact.final_state is not None:
        pairs["final_state"] = (state.detach(), exact.final_state)
    pairs |= {name: (gradient, exact.gradients[name]) for name, gradient in gradients.items()}
    errors: dict[str, float] = {}
    limits: dict[str, float] = {}
    verdict: Verdict | None = None
    for name, (actual, expected) in pairs.items():
        label = name if name in ("output", "final_state") else f"gradient of {name}"
        scale = reference.output_scale if name == "output" else None
        errors[label] = relative_error(actual, expected, scale)
        limits[label] = tolerance(reference.low_errors[name], dtype, gradient=name in gradients, bound=bound)
        if verdict is None:
            verdict = _verdict_of(label, actual, expected, errors[label], limits[label])
    if verdict is None:
        return Verdict(Status.OK, None, errors, limits, output)
    return Verdict(verdict.status, verdict.reason, errors, limits, output)


def _verdict_of(label: str, actual: Tensor, expected: Tensor, error: float, limit: float) -> Verdict | None:
    not_finite = ~torch.isfinite(actual)
    count = int(not_finite.sum().item())
    if count and bool(torch.isfinite(expected).all()):
        where = tuple(int(i) for i in not_finite.nonzero()[0])
        return Verdict(
            Status.NAN, f"{label}: {count} of {actual.numel()} values are not finite, first at {where}"
        )
    if not error <= limit:
        return Verdict(
            Status.WRONG, f"{label}: relative error {error:.2e} is above the tolerance {limit:.2e}"
        )
    return None


def _malformed(result: Any, reference: Reference) -> str | None:
    if not isinstance(result, tuple) or len(result) != 2:
        return f"it returned {type(result).__name__}, the contract is (output, final_state)"
    for label, value, expected, dtype in (
        ("output", result[0], reference.exact.output, reference.output_dtype),
        ("final_state", result[1], reference.exact.final_state, reference.state_dtype),
    ):
        if expected is None:
            if value is not None:
                return f"{label} is a {type(value).__name__}: this recurrence has none"
            continue
        if type(value) is not Tensor:
            return f"{label} is a {type(value).__name__}, not a plain tensor"
        if value.shape != expected.shape:
            return f"{label} has shape {tuple(value.shape)}, the contract says {tuple(expected.shape)}"
        if value.dtype != dtype:
            return f"{label} is {value.dtype}, the contract says {dtype}"
    return None


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


def _gradients(
    output: Tensor, state: Tensor | None, leaves: Mapping[str, Tensor], values: Values
) -> dict[str, Tensor] | str:
    """Compute the gradients of all leaves, or say what is wrong with the graph."""
    ends = [
        (tensor, gradient)
        for tensor, gradient in ((output, values.grad_output), (state, values.grad_state))
        if tensor is not None and gradient is not None and tensor.requires_grad
    ]
    if not output.requires_grad:
        return "its output has no graph: no gradient can flow"
    found = torch.autograd.grad(
        [tensor for tensor, _ in ends],
        list(leaves.values()),
        [gradient.to(tensor.dtype) for tensor, gradient in ends],
        allow_unused=True,
    )
    missing = [name for name, gradient in zip(leaves, found, strict=True) if gradient is None]
    if missing:
        return f"no gradient reaches {', '.join(missing)}"
    return dict(zip(leaves, found, strict=True))
