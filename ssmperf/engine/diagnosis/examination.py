"""Examination: repeat one case in this process, and say all that is known about its faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import STATELESS, parse, without
from ssmperf.engine.cases.case import Case, split_source
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.cases.record import Status
from ssmperf.engine.diagnosis.experiments import conclusion, experiments_on, stands_out
from ssmperf.engine.diagnosis.explain import added, evidence_of, findings_of
from ssmperf.engine.diagnosis.findings import ObjectFault
from ssmperf.engine.judge.answer import call_backend
from ssmperf.engine.judge.calls.checks import at_taken_sizes, check_calls
from ssmperf.engine.judge.calls.probe import CallProbe, has_probe
from ssmperf.engine.judge.checked import Checked
from ssmperf.engine.judge.known_answers import judge_analytic, judge_identity, prepare_analytic, rehearse
from ssmperf.engine.judge.properties import Probe, check_properties, has_properties, widest
from ssmperf.engine.judge.reference import make_reference
from ssmperf.engine.judge.tolerance import error_bound
from ssmperf.engine.judge.verdict import Verdict, judge_answer
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.subject import subject_of
from ssmperf.engine.plan.selection import is_own, is_regime
from ssmperf.errors import BrokenContract, Unsupported, UsageError

KNOWN = ("analytic", "identity")  # sources of operands whose answers are known
DRAW = 1  # the number of the draw on which a case's gradients are judged
DTYPES = ("float64", "float32")
PIECES = 16  # of a table of errors along an axis


@dataclass(frozen=True, slots=True)
class Condition:
    """The case under another condition: the difference, and how it ended.

    excess: the largest error in tolerances; None if no numbers were compared.
    """

    name: str
    status: Status
    reason: str | None
    excess: float | None


@dataclass(frozen=True, slots=True)
class Examination:
    """A case that was repeated: its verdict, findings about all wrong objects, and other conditions.

    experiments: what the conditions that are experiments show; empty if nothing.
    promises: of a case that is right by itself, what else was checked: forms of the call, and properties.
    """

    case: Case
    verdict: Verdict
    findings: list[ObjectFault]
    conditions: list[Condition]
    experiments: str = ""
    promises: list[Checked] = field(default_factory=list)

    @property
    def broken(self) -> list[Checked]:
        """The promises that do not hold."""
        return [each for each in self.promises if not each.holds]

    def to_json(self) -> dict[str, Any]:
        """Return plain data. Infinite and undefined numbers become null."""
        return {
            "case_id": self.case.id,
            "case": self.case.to_json(),
            "status": str(self.verdict.status),
            "reason": self.verdict.reason,
            "findings": [
                {
                    **finding.to_json(),
                    "along": {axis: [list(row) for row in rows] for axis, rows in along(finding)},
                    "tests": [{"text": text, "error": error} for text, error in finding.tried],
                }
                for finding in self.findings
            ],
            "conditions": [
                {**dataclasses.asdict(each), "status": str(each.status)} for each in self.conditions
            ],
            "experiments": self.experiments,
            "promises": [
                {"name": each.name, "holds": each.holds, "error": each.error, "reason": each.reason}
                for each in self.promises
            ],
        }


def examine(case: Case, *, device: str, nonce: int) -> Examination:
    """Repeat a case on the values of its run, then under other conditions.

    device: torch device. nonce: the run's secret, on which all values depend.

    Raises:
        UsageError: the case is judged by something that only its suite knows.
    """
    source = case.operand_source
    if split_source(source)[0] in KNOWN:
        return Examination(case, _by_known_answer(case, device), [], [])
    if not (is_own(source) or is_regime(source)):
        raise UsageError(f"{source} is judged by an answer of its suite's own: there is nothing to diagnose")
    verdict, findings = _judged(case, device, nonce, deep=True)
    later = verdict
    if verdict.status is not Status.OK:
        later, _ = _judged(case, device, nonce)
        if later.status is Status.OK:
            text = f"its first call is wrong, a later one on the same values is right: {verdict.reason}"
            verdict = replace(verdict, reason=text)
    promises = list(_promises(case, device)) if verdict.status is Status.OK else []
    tried = [(each, *_condition(each.where, each.case, device, nonce)) for each in experiments_on(case)]
    conditions = [*_conditions(case, device, nonce), *(condition for _, _, condition in tried)]
    shown = ""
    if stands_out(verdict) and stands_out(later):
        shown = conclusion(verdict, [(each, own) for each, own, _ in tried])
    return Examination(case, verdict, findings, conditions, shown, promises)


def _promises(case: Case, device: str) -> Iterator[Checked]:
    """Check what `correctness` checks of a case beside its plain call."""
    recurrence, backend = registry.recurrence(case.recurrence), registry.backend(case.owner, case.backend)
    if not backend.equivalent or backend.of != case.recurrence:
        return

    def bound(operands: Any, dtype: str) -> float | None:
        return error_bound(backend, recurrence, subject_of(case, device), operands, dtype)

    if has_probe(case):
        own = partial(bound, dtype=case.dtype)
        yield from at_taken_sizes(
            lambda sizes: list(check_calls(backend, CallProbe(case, device, own_sizes=sizes), own))
        )
    if has_properties(case):
        dtype = widest(backend)
        yield from check_properties(backend, Probe(case, dtype, device), partial(bound, dtype=dtype))


def _by_known_answer(case: Case, device: str) -> Verdict:
    """Judge a case by its closed form or identity again."""
    recurrence, backend = registry.recurrence(case.recurrence), registry.backend(case.owner, case.backend)
    dtype, (source, name) = dtype_of(case.dtype), split_source(case.operand_source)
    bound = partial(error_bound, backend, recurrence, subject_of(case, device), dtype=case.dtype)
    if source == "analytic":
        form = registry.analytics(case.recurrence)[name or ""]
        known = prepare_analytic(form, dtype, device, case.layout)
        return judge_analytic(known, backend, dtype, device, bound)
    identity = registry.identities()[name or ""]
    rehearsed = rehearse(identity, dtype)
    return judge_identity(identity, rehearsed, backend, dtype, device, bound, case.layout)


def along(finding: ObjectFault) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Tabulate the largest error along each axis: by the axis's name, indices as text and the error."""
    profile = finding.profile
    for axis, errors, indices in zip(profile.axes, profile.along, profile.indices, strict=True):
        pieces = min(PIECES, len(errors))
        rows = []
        for values, own in zip(errors.tensor_split(pieces), indices.tensor_split(pieces), strict=True):
            first, last = int(own[0]), int(own[-1])
            rows.append((str(first) if first == last else f"{first}-{last}", float(values.max())))
        yield axis, rows


def _conditions(case: Case, device: str, nonce: int) -> Iterator[Condition]:
    """Judge a case under conditions that are no experiments: without a circumstance, in other dtypes."""
    backend = registry.backend(case.owner, case.backend)
    for word in parse(case.call).circumstances:
        if word != STATELESS:
            yield _condition(f"without {word}", replace(case, call=without(case.call, word)), device, nonce)[
                1
            ]
    for dtype in DTYPES:
        if dtype != case.dtype and dtype in backend.dtypes and (dtype, case.dtype) != ("float32", "float64"):
            yield _condition(dtype, replace(case, dtype=dtype), device, nonce)[1]


def _condition(name: str, case: Case, device: str, nonce: int) -> tuple[Verdict, Condition]:
    try:
        verdict, findings = _judged(case, device, nonce)
    except Unsupported as refusal:
        verdict, findings = Verdict(Status.UNSUPPORTED, str(refusal)), []
    except Exception as error:  # a backend may raise anything under a condition that it was not made for
        verdict, findings = Verdict(Status.CRASH, failure_of(error).reason), []
    compared = [
        error / verdict.tolerances[label]
        for label, error in verdict.errors.items()
        if verdict.tolerances[label]
    ]
    worst = max((finding.excess for finding in findings), default=max(compared, default=None))
    return verdict, Condition(name, verdict.status, verdict.reason, worst)


def _judged(case: Case, device: str, nonce: int, *, deep: bool = False) -> tuple[Verdict, list[ObjectFault]]:
    """Judge one call on a draw of the run, from a random initial state, and diagnose its errors."""
    subject, dtype = subject_of(case, device), dtype_of(case.dtype)
    recurrence, backend = registry.recurrence(case.recurrence), registry.backend(case.owner, case.backend)
    definition = recurrence.definition if backend.equivalent else backend.own_definition()
    values = subject.values(nonce + DRAW, with_state=case.level == "op")
    bound = error_bound(backend, recurrence, subject, values.operands, case.dtype)
    reference = make_reference(subject, definition, values, gradients=case.gradients)
    inner = None
    if reference.inner is not None and reference.inner_values is not None:
        inner = reference.inner_values.clone(), reference.inner.contract
    try:
        answer = call_backend(
            subject.function(backend.function, dtype),
            values.clone(),
            reference.contract,
            gradients=case.gradients,
            inner=inner,
        )
    except BrokenContract as error:
        return Verdict(Status.WRONG, str(error)), []
    verdict = judge_answer(answer, reference, dtype=dtype, bound=bound)
    if verdict.status is Status.OK or not verdict.errors:
        return verdict, []
    evidence = evidence_of(case, definition, values, deep=deep) if deep else None
    found = findings_of(verdict, answer, reference, case, evidence)
    return added(verdict, found), found
