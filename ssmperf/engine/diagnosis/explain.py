"""Add a diagnosis to the verdict on a wrong answer of a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.diagnosis.findings import ObjectFault, diagnose, essence
from ssmperf.engine.diagnosis.variants import Evidence
from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.judge.reference import Reference
from ssmperf.engine.judge.verdict import Verdict, judge_answer
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.values import Values

INNER = "recurrence: "  # before the labels of objects inside a layer


def evidence_of(
    case: Case, definition: Callable[..., Any], values: Values, *, deep: bool = False
) -> Evidence | None:
    """Give the evidence for a diagnosis; None for a layer, whose function is no recurrence."""
    if case.level != "op":
        return None
    return Evidence(definition, values, case.shape["T"], dict(case.shape), deep)


def diagnosed(
    verdict: Verdict, answer: Answer, reference: Reference, case: Case, evidence: Evidence | None
) -> Verdict:
    """Add the diagnosis to a verdict that compared numbers and found some wrong.

    The reason becomes that of the worst object, with the essence of the diagnosis. A diagnosis that fails
    leaves the verdict unchanged, and says so in its place.
    """
    try:
        found = findings_of(verdict, answer, reference, case, evidence)
    except Exception as error:  # memory may be short, for example; the verdict must not be lost
        return replace(
            verdict, diagnosis=[{"object": None, "text": f"not diagnosed: {failure_of(error).reason}"}]
        )
    return added(verdict, found)


def findings_of(
    verdict: Verdict, answer: Answer, reference: Reference, case: Case, evidence: Evidence | None
) -> list[ObjectFault]:
    """Diagnose the objects that a verdict finds wrong, the worst first.

    A layer's norm may hide what is wrong with the recurrence inside it, so that is judged and diagnosed too,
    and comes first.
    """
    inner: list[ObjectFault] = []
    if answer.inner is not None and reference.inner is not None:
        own = judge_answer(answer.inner, reference.inner, dtype=dtype_of(case.dtype), bound=verdict.bound)
        inner = [
            replace(each, label=INNER + each.label)
            for each in _diagnosed(own, answer.inner, reference.inner, case, None)
        ]
    layer = replace(verdict, errors={n: e for n, e in verdict.errors.items() if not n.startswith(INNER)})
    return [*inner, *_diagnosed(layer, answer, reference, case, evidence)]


def _diagnosed(
    verdict: Verdict, answer: Answer, reference: Reference, case: Case, evidence: Evidence | None
) -> list[ObjectFault]:
    return diagnose(
        answer.results, reference, verdict, sizes=dict(case.shape), length=case.shape["T"], evidence=evidence
    )


def added(verdict: Verdict, found: Sequence[ObjectFault]) -> Verdict:
    """Add findings to a verdict: its status and reason become those of the worst object."""
    if not found:
        return verdict
    worst = next((each for each in found if each.label in verdict.problems), None)
    status, problem = verdict.problems[worst.label] if worst else (verdict.status, str(verdict.reason))
    clauses = essence(found)
    if worst is not None and worst is not found[0]:
        clauses = f"{found[0].label}: {clauses}"
    return replace(
        verdict,
        status=status,
        reason=f"{problem}: {clauses}",
        diagnosis=[each.to_json() for each in found],
    )
