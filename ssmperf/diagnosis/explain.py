"""Add a diagnosis to the verdict on a wrong answer of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssmperf.cases.case import Case
from ssmperf.cases.failure import failure_of
from ssmperf.diagnosis.findings import Finding, diagnose, essence
from ssmperf.diagnosis.variants import Evidence
from ssmperf.judge.answer import Answer
from ssmperf.judge.reference import Reference
from ssmperf.judge.verdict import Verdict
from ssmperf.operands.values import Values

INNER = "recurrence: "  # before the labels of what is inside a layer


def evidence_of(
    case: Case, definition: Callable[..., Any], values: Values, *, deep: bool = False
) -> Evidence | None:
    """Give what a wrong answer is diagnosed from; None for a layer, whose function is no recurrence."""
    if case.level != "op":
        return None
    return Evidence(definition, values, case.shape["T"], dict(case.shape), deep)


def diagnosed(
    verdict: Verdict, answer: Answer, reference: Reference, case: Case, evidence: Evidence | None
) -> Verdict:
    """Add the diagnosis to a verdict that compared numbers and found some wrong.

    The reason becomes that of the worst object, with the essence of the diagnosis.
    Where a layer is right but the recurrence inside it is wrong, the recurrence is diagnosed. A diagnosis
    that fails leaves the verdict as it is, and says so in its place.
    """
    own, results, exact = inner_parts(verdict, answer, reference)
    try:
        found = diagnose(
            results.results,
            exact,
            own,
            sizes=dict(case.shape),
            length=case.shape["T"],
            evidence=evidence,
        )
    except Exception as error:  # memory may be short, for example; the verdict must not be lost
        return replace(
            verdict, diagnosis=[{"object": None, "text": f"not diagnosed: {failure_of(error).reason}"}]
        )
    return added(verdict, found)


def inner_parts(verdict: Verdict, answer: Answer, reference: Reference) -> tuple[Verdict, Answer, Reference]:
    """Restrict a judgement to the recurrence inside a layer, if the layer is right and that is wrong."""
    prefix = _prefix(verdict)
    if prefix and answer.inner is not None and reference.inner is not None:
        answer, reference = answer.inner, reference.inner
    own = replace(
        verdict,
        errors=_without(prefix, verdict.errors),
        tolerances=_without(prefix, verdict.tolerances),
        row_errors=_without(prefix, verdict.row_errors),
        row_tolerances=_without(prefix, verdict.row_tolerances),
    )
    return own, answer, reference


def added(verdict: Verdict, found: Sequence[Finding]) -> Verdict:
    """Add findings to a verdict: its status and reason become those of the worst object."""
    if not found:
        return verdict
    prefix = _prefix(verdict)
    data = [{**each.to_json(), "object": prefix + each.label} for each in found]
    status, problem = verdict.problems.get(found[0].label, (verdict.status, str(verdict.reason)))
    return replace(verdict, status=status, reason=f"{prefix}{problem}: {essence(found)}", diagnosis=data)


def _prefix(verdict: Verdict) -> str:
    return INNER if any(name.startswith(INNER) for name in verdict.errors) else ""


def _without(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
