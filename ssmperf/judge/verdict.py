"""Judge one call of a backend against a reference: output, final state and every gradient.

Besides wrong numbers, these are `wrong` too, with the reason: a changed input, an unwritten row, a missing
gradient, and a result that is still being computed when the call returns (judge/answer.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf.cases.record import Status
from ssmperf.judge.answer import Answer, call_backend
from ssmperf.judge.reference import Reference
from ssmperf.judge.tolerance import relative_error, tolerance
from ssmperf.operands.values import Values


@dataclass(frozen=True)
class Verdict:
    """How a judgement ended. Errors and tolerances are relative to the largest reference value.

    extra: further numbers that were asked for.
    output: the backend's output, where the judgement ran in the caller's process.
    bound: the error bound that the backend declares for the values judged, None if it declares none.
    """

    status: Status
    reason: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    output: Tensor | None = field(default=None, compare=False, repr=False)
    bound: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without the output. NaN stays NaN."""
        return {
            "status": str(self.status),
            "reason": self.reason,
            "errors": dict(self.errors),
            "tolerances": dict(self.tolerances),
            "extra": dict(self.extra),
            "bound": self.bound,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Read what `to_json` returned."""
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

    bound: error bound that the backend declares for these values, None if it is exact.
    poison: whether uninitialised memory reads as NaN during the call.
    """
    answer = call_backend(function, values, reference.contract, gradients=gradients, poison=poison)
    verdict = judge_answer(answer, reference, dtype=dtype, bound=bound)
    return dataclasses.replace(verdict, output=answer.output)


def judge_answer(
    answer: Answer, reference: Reference, *, dtype: torch.dtype, bound: float | None = None
) -> Verdict:
    """Compare all results of one call with the reference."""
    return dataclasses.replace(_judged(answer, reference, dtype, bound), bound=bound)


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
        return Verdict(Status.WRONG, answer.gradient_problem, verdict.errors, verdict.tolerances)
    return verdict


def _misshapen(results: Mapping[str, Tensor], reference: Reference) -> str | None:
    exact = reference.exact
    expected = {"output": exact.output, "final_state": exact.final_state, **exact.gradients}
    for name, value in results.items():
        wanted = expected.get(name)
        if wanted is None:
            return f"{name} is a Tensor: this recurrence has none"
        if value.shape != wanted.shape:
            return f"{name} has shape {tuple(value.shape)}, the contract says {tuple(wanted.shape)}"
    return None


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
        limits[label] = tolerance(
            reference.low_errors[name],
            dtype,
            gradient=name in gradients,
            bound=bound,
            factor=reference.factors.get(name, 1.0),
        )
        if verdict is None:
            verdict = _verdict_of(label, actual, expected, errors[label], limits[label])
    if verdict is None:
        return Verdict(Status.OK, None, errors, limits)
    return Verdict(verdict.status, verdict.reason, errors, limits)


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
