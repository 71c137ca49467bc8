"""Findings: for each wrong object of an answer, where it is wrong, and an explanation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.diagnosis import places
from ssmperf.engine.diagnosis.profile import ErrorProfile, axes_of, profile_of
from ssmperf.engine.diagnosis.relations import Match, WrongObject, relation
from ssmperf.engine.diagnosis.variants import (
    Evidence,
    Region,
    evaluate,
    region_of,
    restricted,
    variants,
)
from ssmperf.engine.judge.reference import Reference
from ssmperf.engine.judge.verdict import Verdict, excess
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import widen
from ssmperf.engine.operands.time_axis import has_time

NEAR_TOLERANCE = 3.0  # an error below so many tolerances shows no place: it may be rounding
ROW_MARGIN = 4.0  # by which an element of a wrong row must exceed the root mean square that its row may have
LONGEST_S = 1.0  # of the processor's time, after which no further fault is computed for a record
MOST_IN_REASON = 3  # objects beside the worst one
NAMES = ("output", "final_state")
# relations that may hold in some places alone
OF_PLACES = ("factor", "sign", "another", "gate", "conjugate")


@dataclass(frozen=True, slots=True)
class ObjectFault:
    """The fault found in one object.

    label: the object, such as "output" or "gradient of q". error, tolerance: by elements, relative to the
        largest exact value; row_error, row_tolerance: those of its worst row, None if it has no rows.
    text: a clause about it, such as "it is 2 × the exact one in head 1 of 4".
    match: explanation of the error; None if no tested one fits.
    steps, parts: wrong places along time and along the other axes.
    tried: tested explanations, with the relative error that each leaves.
    untested: number of faults of the recurrence that were not computed, since the time was over.
    """

    label: str
    error: float
    tolerance: float
    row_error: float | None
    row_tolerance: float | None
    text: str
    match: Match | None
    profile: ErrorProfile
    steps: places.Steps | None
    parts: Mapping[str, Mapping[str, Any]]
    tried: Sequence[tuple[str, float]]
    untested: int = 0

    @property
    def excess(self) -> float:
        """The error in tolerances, by elements or by rows; infinite if it is not a number."""
        return excess(
            self.label,
            {self.label: self.error},
            {self.label: self.tolerance},
            {} if self.row_error is None else {self.label: self.row_error},
            {} if self.row_tolerance is None else {self.label: self.row_tolerance},
        )

    @property
    def order(self) -> float:
        """The order of magnitude of the excess: of objects with the same one, the output comes first."""
        return round(math.log10(max(self.excess, 1e-300))) if math.isfinite(self.excess) else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as records have it."""
        profile, match = self.profile, self.match
        return {
            "object": self.label,
            "text": self.text,
            "kind": match.kind if match else None,
            "factor": match.value if match else None,
            "error_explained": match.error if match else None,
            "error": self.error,
            "tolerance": self.tolerance,
            "row_error": self.row_error,
            "row_tolerance": self.row_tolerance,
            "shape": list(profile.shape),
            "worst": dict(zip(profile.axes, profile.worst, strict=True)),
            "steps": places.as_json(self.steps),
            "parts": {name: dict(part) for name, part in self.parts.items()},
            "not_finite": profile.not_finite,
            "first_not_finite": None if profile.first_not_finite is None else list(profile.first_not_finite),
            "tested": len({text for text, _ in self.tried}),
            "untested": self.untested,
            "envelope": places.envelope_of(profile.over_time),
        }


def diagnose(
    results: Mapping[str, Tensor],
    reference: Reference,
    verdict: Verdict,
    *,
    sizes: Mapping[str, int],
    length: int,
    evidence: Evidence | None = None,
) -> list[ObjectFault]:
    """Diagnose all results that a verdict finds wrong, the worst by orders of magnitude first.

    results: by name, as an answer has them; a result that the verdict did not compare is left out.
    sizes: the case's sizes by letter. length: number of time steps.
    evidence: inputs for computing the recurrence with a fault in it; None to try no faults.
    """
    subjects = [
        _subject(name, actual, results, reference, verdict, sizes, length, evidence)
        for name, actual in results.items()
        if _is_wrong(label_of(name), verdict)
    ]
    found = [_finding(subject, relation(subject), verdict) for subject in subjects]
    if found and evidence is not None and (evidence.deep or any(finding.match is None for finding in found)):
        found = _with_variants(subjects, found, evidence, verdict)
    return sorted(found, key=lambda finding: -finding.order)


def label_of(name: str) -> str:
    """Name an object in words."""
    return name if name in NAMES else f"gradient of {name}"


def essence(findings: Sequence[ObjectFault]) -> str:
    """Sum up findings in one clause: the worst object's, then those of others."""
    if not findings:
        return ""
    worst, *others = findings
    text = worst.text
    same = [other.label for other in others if other.text == worst.text]
    if same:
        text += f"; the same holds for {', '.join(same)}"
    rest = [other for other in others if other.text != worst.text]
    for other in rest[:MOST_IN_REASON]:
        text += f"; {other.label}: {other.text}"
    return text + (f"; and {len(rest) - MOST_IN_REASON} more" if len(rest) > MOST_IN_REASON else "")


def _is_wrong(label: str, verdict: Verdict) -> bool:
    def beyond(errors: Mapping[str, float], limits: Mapping[str, float]) -> bool:
        return label in errors and not errors[label] <= limits[label]

    return beyond(verdict.errors, verdict.tolerances) or beyond(verdict.row_errors, verdict.row_tolerances)


def _subject(
    name: str,
    actual: Tensor,
    results: Mapping[str, Tensor],
    reference: Reference,
    verdict: Verdict,
    sizes: Mapping[str, int],
    length: int,
    evidence: Evidence | None,
) -> WrongObject:
    label, exact = label_of(name), reference.expected(name)
    timed = name != "final_state" and has_time(name, exact, length)
    scale = reference.output_scale if name == "output" else None
    scale = (float(exact.abs().max()) if exact.numel() and scale is None else scale) or 1.0
    output_dims = reference.exact.output.dim()
    profile = profile_of(
        actual.detach(),
        exact,
        limit=_limit(name, label, reference, verdict, scale),
        scale=scale,
        timed=timed,
        axes=axes_of(name, exact.shape, output_dims, timed=timed, heads=sizes.get("H")),
    )
    operands = {} if evidence is None else evidence.values.tensors
    others = {label_of(other): reference.expected(other) for other in results if other != name}
    if name == "final_state" and "initial_state" in operands:
        others["initial state"] = operands["initial_state"]
    limits = [each.get(label, 0.0) for each in (verdict.tolerances, verdict.row_tolerances)]
    return WrongObject(
        name, label, actual, exact, scale, max(limits[0], 1e-300), profile, others, operands.get(name), sizes
    )


def _limit(name: str, label: str, reference: Reference, verdict: Verdict, scale: float) -> float | Tensor:
    """Give the error beyond which an element is wrong; that of its row, if the rows alone are wrong."""
    if not verdict.errors[label] <= verdict.tolerances[label] or name not in reference.row_axes:
        return verdict.tolerances[label] * scale
    axes, exact = reference.row_axes[name], reference.expected(name)
    length = math.prod(exact.shape[axis] for axis in axes)
    limits = ROW_MARGIN * verdict.row_tolerances[label] * reference.row_sizes[name] / math.sqrt(length)
    for axis in sorted(axes):
        limits = limits.unsqueeze(axis)
    return limits


def _finding(subject: WrongObject, match: Match | None, verdict: Verdict) -> ObjectFault:
    label, profile = subject.label, subject.profile
    steps, parts = places.steps_of(profile), places.parts_of(profile)
    made = ObjectFault(
        label,
        verdict.errors[label],
        verdict.tolerances[label],
        verdict.row_errors.get(label),
        verdict.row_tolerances.get(label),
        "",
        match,
        profile,
        steps,
        parts,
        subject.tried,
    )
    return replace(made, text=_text(made))


def _text(finding: ObjectFault) -> str:
    """Compose the clause about an object."""
    profile, match = finding.profile, finding.match
    where = " ".join(filter(None, (places.in_words(finding.steps), places.parts_in_words(finding.parts))))
    if profile.not_finite:
        text = _not_finite(profile, where)
        return f"{text}: {match.text}" if match else text
    if match is not None:
        if match.kind == "zeros":
            return f"it is 0 {where or 'everywhere'}"
        return f"{match.text} {where}".rstrip() if match.kind in OF_PLACES else match.text
    if finding.excess < NEAR_TOLERANCE:
        return f"it is {finding.excess:.2g} × its tolerance at most, with no pattern"
    return f"it is wrong {where or 'everywhere'}"


def _not_finite(profile: ErrorProfile, where: str) -> str:
    total = math.prod(profile.shape)
    if profile.not_finite == 1 and profile.first_not_finite is not None:
        words = [
            f"{'step' if profile.time and axis == TIME else places.ONE.get(name, name)} {index}"
            for axis, (name, index) in enumerate(zip(profile.axes, profile.first_not_finite, strict=True))
        ]
        text = f"it is the one at {', '.join(words)}"
    elif profile.not_finite == total:
        return "no value is finite"
    else:
        text = f"they are {where or ('at all steps' if profile.time else 'everywhere')}"
    return f"{text}, and others are wrong" if profile.finite_wrong else text


def _with_variants(
    subjects: Sequence[WrongObject], found: Sequence[ObjectFault], evidence: Evidence, verdict: Verdict
) -> list[ObjectFault]:
    """Explain errors that fit no relation by the recurrence with a fault in it."""
    findings = list(found)
    gradients = any(subject.label.startswith("gradient") for subject in subjects)
    worst = max(range(len(findings)), key=lambda at: findings[at].excess)
    profile = findings[worst].profile
    item = profile.worst[0] if profile.axes[:1] == ("batch",) else 0
    region = region_of(evidence, gradients=gradients, worst_item=item)
    if region is None:
        return findings
    begun_s = time.process_time()
    listed = list(variants(evidence, _chunks(findings, evidence.length), gradients=gradients))
    for number, variant in enumerate(listed):
        open_ = [at for at, finding in enumerate(findings) if finding.match is None]
        if not (open_ or evidence.deep):
            break
        if not evidence.deep and time.process_time() - begun_s > LONGEST_S:
            left = len(listed) - number
            return [each if each.match else replace(each, untested=left) for each in findings]
        if variant.backward and not region.gradients:
            continue
        try:
            results = evaluate(variant, evidence, region)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the definition refuses the changed operands, so that this is no explanation
            results = {}
        for at in range(len(findings)) if evidence.deep else open_:
            match = _matched(subjects[at], variant.kind, variant.text, results, evidence, region)
            if match is not None and at in open_:
                findings[at] = _finding(subjects[at], match, verdict)
    return findings


def _chunks(findings: Sequence[ObjectFault], length: int) -> list[int]:
    found: list[int] = []
    for finding in sorted(findings, key=lambda each: -each.excess):
        if finding.steps is not None:
            found += places.chunks_before(finding.steps)
    found = [*dict.fromkeys(found)] or [P for P in (64, 32, 16) if length > P]
    return found[:6]


def _matched(
    subject: WrongObject,
    kind: str,
    text: str,
    results: Mapping[str, Tensor],
    evidence: Evidence,
    region: Region,
) -> Match | None:
    """Compare an object with a variant's. Values that are not finite in it are left out."""
    if subject.name not in results:
        return None
    expected = results[subject.name]
    actual, exact = (
        widen(restricted(each, subject.name, evidence, region), torch.float64)
        for each in (subject.actual, subject.exact)
    )
    if actual.shape != expected.shape or actual.is_complex() != expected.is_complex():
        return None
    seen = torch.isfinite(actual)
    if not bool(seen.any()):
        return None
    scale = torch.full_like(actual.abs(), subject.scale)
    if subject.profile.time:  # a variant may grow with time, and so does its rounding
        others = [axis for axis in range(actual.dim()) if axis != TIME]
        largest = torch.nan_to_num(expected.abs(), posinf=0.0).amax(others, keepdim=True)
        scale = torch.maximum(scale, largest.cummax(TIME).values)
    before, after = (
        float(((actual - other).abs() / scale)[seen].nan_to_num(math.inf).max())
        for other in (exact, expected)
    )
    return Match(kind, text, after) if subject.test(text, before, after) else None
