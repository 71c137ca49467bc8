"""Judge one call of a backend against a reference: output, final state and every gradient.

Besides wrong numbers, these are `wrong` too, with the reason: a changed input, an unwritten row, a missing
gradient, and a result that is still being computed when the call returns (judge/answer.py).

The largest error of a result hides small channels and cheap arithmetic. So each result is also judged by
rows, mostly the time steps of one channel, in the 2-norm and relative to the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge.answer import Answer, call_backend
from ssmperf.engine.judge.reference import Reference
from ssmperf.engine.judge.tolerance import relative_error, row_errors, row_tolerance, tolerance
from ssmperf.engine.operands.contract import wrong_shape
from ssmperf.engine.operands.values import Values


@dataclass(frozen=True)
class Verdict:
    """The outcome of a judgement. Errors and tolerances are relative to the largest reference value.

    row_errors, row_tolerances: of each object's row that comes nearest to its tolerance, relative to the row.
    extra: further numbers that were asked for.
    output: the backend's output, where the judgement ran in the caller's process.
    bound: the error bound that the backend declares for the values judged, None if it declares none.
    problems: status and reason of each wrong object, of which the verdict has the first; not in its JSON.
    diagnosis: the fault of each wrong object, the worst first, as `ssmperf.engine.diagnosis` says it.
    """

    status: Status
    reason: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    row_errors: Mapping[str, float] = field(default_factory=dict)
    row_tolerances: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    output: Tensor | None = field(default=None, compare=False, repr=False)
    bound: float | None = None
    problems: Mapping[str, tuple[Status, str]] = field(default_factory=dict, repr=False)
    diagnosis: Sequence[Mapping[str, Any]] = ()

    @property
    def excess(self) -> float:
        """The largest error of elements or rows in units of its tolerance; 0 if there is none, ∞ for NaN."""
        ratios = (
            math.inf if math.isnan(error) else error / limits[name]
            for errors, limits in (
                (self.errors, self.tolerances),
                (self.row_errors, self.row_tolerances),
            )
            for name, error in errors.items()
            if limits.get(name)
        )
        return max(ratios, default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the output. NaN stays NaN."""
        return {
            "status": str(self.status),
            "reason": self.reason,
            "errors": dict(self.errors),
            "tolerances": dict(self.tolerances),
            "row_errors": dict(self.row_errors),
            "row_tolerances": dict(self.row_tolerances),
            "extra": dict(self.extra),
            "bound": self.bound,
            "diagnosis": [dict(each) for each in self.diagnosis],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Read the result of `to_json`."""
        return cls(**{**data, "status": Status(data["status"])})


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

    A layer is called once more, for the recurrence inside it.

    bound: error bound that the backend declares for these values, None if it is exact.
    poison: whether uninitialised memory reads as NaN during the call.
    """
    inner = None
    if reference.inner is not None and reference.inner_values is not None:
        inner = reference.inner_values.clone(), reference.inner.contract
    answer = call_backend(
        function, values, reference.contract, gradients=gradients, poison=poison, inner=inner
    )
    verdict = judge_answer(answer, reference, dtype=dtype, bound=bound)
    return replace(verdict, output=answer.output)


def judge_answer(
    answer: Answer, reference: Reference, *, dtype: torch.dtype, bound: float | None = None
) -> Verdict:
    """Compare all results of one call with the reference; of a layer, also those of the recurrence inside."""
    verdict = _judged(answer, reference, dtype, bound)
    if verdict.status is Status.OK and reference.inner is not None and answer.inner is not None:
        verdict = _with_inner(verdict, _judged(answer.inner, reference.inner, dtype, bound))
    return replace(verdict, bound=bound)


def _judged(answer: Answer, reference: Reference, dtype: torch.dtype, bound: float | None) -> Verdict:
    if bound is not None and not 0 <= bound < 1:
        return Verdict(Status.WRONG, f"its declared error bound {bound:g} is not valid: it must be below 1")
    if answer.problem:
        return Verdict(Status.WRONG, answer.problem)
    results = dict(answer.results)
    problem = _misshapen(results, reference)
    if problem:
        return Verdict(Status.WRONG, problem)
    output, state = results.pop("output", None), results.pop("final_state", None)
    verdict = _compare(output, state, results, reference, dtype, bound)
    if answer.gradient_problem and verdict.status is Status.OK:
        return replace(verdict, status=Status.WRONG, reason=answer.gradient_problem)
    return verdict


def _misshapen(results: Mapping[str, Tensor], reference: Reference) -> str | None:
    exact = reference.exact
    expected = {"output": exact.output, "final_state": exact.final_state, **exact.gradients}
    for name, value in results.items():
        wanted = expected.get(name)
        if wanted is None:
            return f"{name} is a Tensor, must be None: this recurrence has no state"
        problem = wrong_shape(name, value.shape, wanted.shape)
        if problem:
            return problem
    return None


def _with_inner(whole: Verdict, inner: Verdict) -> Verdict:
    """Add the verdict on the recurrence inside a layer to that on the layer."""

    def added(to: Mapping[str, float], numbers: Mapping[str, float]) -> dict[str, float]:
        return {**to, **{f"recurrence: {name}": number for name, number in numbers.items()}}

    return replace(
        whole,
        status=inner.status,
        problems={
            f"recurrence: {name}": (each[0], f"recurrence: {each[1]}")
            for name, each in inner.problems.items()
        },
        reason=None if inner.reason is None else f"recurrence: {inner.reason}",
        errors=added(whole.errors, inner.errors),
        tolerances=added(whole.tolerances, inner.tolerances),
        row_errors=added(whole.row_errors, inner.row_errors),
        row_tolerances=added(whole.row_tolerances, inner.row_tolerances),
    )


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
    problems: dict[str, tuple[Status, str]] = {}
    errors, limits, of_rows, limits_of_rows = {}, {}, {}, {}
    for name, actual in results.items():
        expected = reference.expected(name)
        label = label_of(name)
        gradient = name in gradients
        scale = reference.output_scale if name == "output" else None
        errors[label] = relative_error(actual, expected, scale)
        factor = reference.factors.get(name, 1.0)
        limits[label] = tolerance(
            reference.low_errors[name], dtype, gradient=gradient, bound=bound, factor=factor
        )
        problem = _problem_of(label, actual, expected, errors[label], limits[label])
        if name in reference.row_axes:
            where, of_rows[label], limits_of_rows[label] = _worst_row(
                name, actual, reference, dtype, gradient=gradient, bound=bound
            )
            problem = problem or _problem_of_row(label, where, of_rows[label], limits_of_rows[label])
        if problem:
            problems[label] = problem
    status, reason = next(iter(problems.values()), (Status.OK, None))
    return Verdict(
        status,
        reason,
        errors=errors,
        tolerances=limits,
        row_errors=of_rows,
        row_tolerances=limits_of_rows,
        problems=problems,
    )


def label_of(name: str) -> str:
    """Name a result in words: the output, the final state, or the gradient of an operand."""
    return name if name in ("output", "final_state") else f"gradient of {name}"


def excess(
    label: str,
    errors: Mapping[str, float],
    tolerances: Mapping[str, float],
    row_errors: Mapping[str, float],
    row_tolerances: Mapping[str, float],
) -> float:
    """Give an object's error in tolerances, by elements or by rows; infinite if it is not a number."""

    def ratio(error: float, limit: float) -> float:
        if math.isnan(error):
            return math.inf
        return error / limit if limit else (math.inf if error else 0.0)

    by_elements = ratio(errors[label], tolerances[label])
    return max(by_elements, ratio(row_errors.get(label, 0.0), row_tolerances.get(label, 1.0)))


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
    if name in reference.noise:  # its root mean square
        limits = limits + 2 * reference.noise[name] * math.sqrt(length / 3) / sizes
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
