"""Judge one call of a backend against a reference: output, final state and every gradient.

Besides wrong numbers, these are `wrong` too, with the reason: a changed input, an unwritten row, a missing
gradient, and a result that is still being computed when the call returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssmperf.cases.record import Status
from ssmperf.judge.poison import poisoned
from ssmperf.judge.reference import Reference
from ssmperf.judge.tolerance import relative_error, row_errors, row_tolerance, tolerance
from ssmperf.operands.values import Values


@dataclass(frozen=True)
class Verdict:
    """How a judgement ended. Errors and tolerances are relative to the largest reference value.

    output: the backend's output, so that a caller can see later whether it was overwritten.
    row_errors, row_tolerances: of each object's row that comes nearest to its tolerance, relative to the row.
    """

    status: Status
    reason: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    output: Tensor | None = field(default=None, compare=False, repr=False)
    row_errors: Mapping[str, float] = field(default_factory=dict)
    row_tolerances: Mapping[str, float] = field(default_factory=dict)


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

    A layer that is right is called once more, for the recurrence inside it.

    bound: error bound that the backend declares for these values, None if it is exact.
    poison: whether uninitialised memory reads as NaN during the call.
    """
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
        return replace(verdict, status=Status.WRONG, reason=found, output=None)
    if verdict.status is not Status.OK or reference.inner is None or reference.inner_values is None:
        return verdict
    inner = judge_call(
        partial(function, inner=True),
        reference.inner_values.clone(),
        reference.inner,
        dtype=dtype,
        gradients=gradients,
        bound=bound,
        poison=poison,
    )
    return _with_inner(verdict, inner)


def _with_inner(whole: Verdict, inner: Verdict) -> Verdict:
    """Add the verdict on the recurrence inside a layer to that on the layer."""

    def added(to: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
        return {**to, **{f"recurrence: {name}": number for name, number in numbers.items()}}

    return replace(
        whole,
        status=inner.status,
        reason=None if inner.reason is None else f"recurrence: {inner.reason}",
        errors=added(whole.errors, inner.errors),
        tolerances=added(whole.tolerances, inner.tolerances),
        row_errors=added(whole.row_errors, inner.row_errors),
        row_tolerances=added(whole.row_tolerances, inner.row_tolerances),
    )


def compare_gradients(
    found: Mapping[str, Tensor], reference: Reference, *, dtype: torch.dtype, bound: float | None
) -> Verdict:
    """Judge gradients alone, by operand name."""
    return _compare(None, None, found, reference, dtype, bound)


def _compare(
    output: Tensor | None,
    state: Tensor | None,
    gradients: Mapping[str, Tensor],
    reference: Reference,
    dtype: torch.dtype,
    bound: float | None,
) -> Verdict:
    results: dict[str, Tensor] = {} if output is None else {"output": output}
    if state is not None and reference.exact.final_state is not None:
        results["final_state"] = state.detach()
    results |= gradients
    verdict = Verdict(Status.OK, output=output)
    errors, limits, of_rows, limits_of_rows = {}, {}, {}, {}
    for name, actual in results.items():
        expected = reference.expected(name)
        label = name if name in ("output", "final_state") else f"gradient of {name}"
        gradient = name in gradients
        scale = reference.output_scale if name == "output" else None
        errors[label] = relative_error(actual, expected, scale)
        limits[label] = tolerance(reference.low_errors[name], dtype, gradient=gradient, bound=bound)
        problem = _problem_of(label, actual, expected, errors[label], limits[label])
        if name in reference.row_axes:
            where, of_rows[label], limits_of_rows[label] = _worst_row(
                name, actual, reference, dtype, gradient=gradient, bound=bound
            )
            problem = problem or _problem_of_row(label, where, of_rows[label], limits_of_rows[label])
        if problem and verdict.status is Status.OK:
            verdict = replace(verdict, status=problem[0], reason=problem[1])
    return replace(
        verdict, errors=errors, tolerances=limits, row_errors=of_rows, row_tolerances=limits_of_rows
    )


def _worst_row(
    name: str,
    actual: Tensor,
    reference: Reference,
    dtype: torch.dtype,
    *,
    gradient: bool,
    bound: float | None,
) -> tuple[tuple[int, ...], float, float]:
    """Find the row of an object that exceeds its tolerance the most, or comes nearest to it.

    A declared bound is an error of single elements relative to the largest value of the whole object, so a
    row may err by as much in each of its elements.

    Returns:
        the row's index, its error and its tolerance, both relative to its size.
    """
    expected = reference.expected(name)
    axes, sizes = reference.row_axes[name], reference.row_sizes[name]
    errors = row_errors(actual, expected, axes, sizes)
    limits = torch.full_like(sizes, row_tolerance(reference.low_row_errors[name], dtype, gradient=gradient))
    length = math.prod(expected.shape[axis] for axis in axes)
    if name in reference.gate_noise:  # its root mean square
        limits = limits + 2 * reference.gate_noise[name] * math.sqrt(length / 3) / sizes
    if bound is not None:
        scale = reference.output_scale if name == "output" else None
        largest = float(expected.abs().max()) if scale is None else scale
        limits = limits.maximum(bound * largest * math.sqrt(length) / sizes)
    worst = int((errors / limits).argmax())  # NaN counts as the largest
    error, limit = float(errors.flatten()[worst]), float(limits.flatten()[worst])
    where: tuple[int, ...] = ()
    for size in reversed(sizes.shape):
        worst, index = divmod(worst, size)
        where = (index, *where)
    return where, error, limit


def _problem_of(
    label: str, actual: Tensor, expected: Tensor, error: float, limit: float
) -> tuple[Status, str] | None:
    not_finite = ~torch.isfinite(actual)
    count = int(not_finite.sum().item())
    if count and bool(torch.isfinite(expected).all()):
        where = tuple(int(i) for i in not_finite.nonzero()[0])
        return Status.NAN, f"{label}: {count} of {actual.numel()} values are not finite, first at {where}"
    if not error <= limit:
        return Status.WRONG, f"{label}: relative error {error:.2e} is above the tolerance {limit:.2e}"
    return None


def _problem_of_row(
    label: str, where: tuple[int, ...], error: float, limit: float
) -> tuple[Status, str] | None:
    if error <= limit:
        return None
    row = f"row {where}" if where else "the whole object"
    return Status.WRONG, f"{label}: {row} is off by {error:.2e} of its size, above the tolerance {limit:.2e}"


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
