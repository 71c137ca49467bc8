"""Judge: makes references from a case alone, and judges the answers of any backend against them.

It never sees a backend. References are kept as long as there is room, so that all backends and passes with
the same operands share them. The worker that runs the candidates has none: it asks (trial/client.py).
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.diagnosis.explain import diagnosed, evidence_of
from ssmperf.engine.diagnosis.variants import Evidence
from ssmperf.engine.judge.answer import Answer
from ssmperf.engine.judge.oracle import Evaluation
from ssmperf.engine.judge.reference import (
    Reference,
    exact_evaluation,
    make_reference,
    small_results,
    steadied,
)
from ssmperf.engine.judge.tolerance import ROUNDED_AGAIN, relative_error
from ssmperf.engine.judge.verdict import Verdict, judge_answer, label_of
from ssmperf.engine.operands.dtypes import dtype_of, widen
from ssmperf.engine.operands.subject import Subject, subject_of
from ssmperf.engine.operands.values import Values
from ssmperf.engine.operands.variation import Variation
from ssmperf.engine.trial.question import Question
from ssmperf.errors import Unsupported

# Bytes of references and values kept beyond those of the last case. On a GPU it is a share of the memory,
# so that rounds of many cases need not make them again.
KEPT_BYTES, KEPT_SHARE = 1 << 30, 0.3
NEAR = 4.0  # an error below so many tolerances is judged by further low-precision evaluations
SMALLEST_CHANNEL = 1e-6  # of the largest one's energy; the phase of less is that of rounding errors


@dataclass
class Judge:
    """Judges answers on one device.

    kept_share: the share of a GPU's memory that references may take.
    """

    device: str
    kept_share: float = KEPT_SHARE
    _kept: OrderedDict[tuple[object, ...], dict[Hashable, Any]] = field(default_factory=OrderedDict)
    _bytes: dict[tuple[object, ...], int] = field(default_factory=dict)  # bytes kept, by operands

    def verdict(self, question: Question, answer: Answer) -> Verdict:
        """Judge an answer.

        Raises:
            Unsupported: the values overflow the case's dtype, or the backend is declared to compute another
                function without a definition of it.
        """
        case = question.case
        reference = self._asked(question)
        verdict = judge_answer(answer, reference, dtype=dtype_of(case.dtype), bound=question.bound)
        small = set(map(label_of, small_results(reference)))
        if verdict.problems.keys() & small or 1 < verdict.excess < NEAR:
            reference = self._asked(question, steady=True)
            verdict = judge_answer(answer, reference, dtype=dtype_of(case.dtype), bound=question.bound)
        if verdict.errors and verdict.status is not Status.OK:
            verdict = diagnosed(verdict, answer, reference, case, self._evidence(question))
        extra: dict[str, Any] = {}
        if answer.output is not None and answer.problem is None:
            if question.ends:
                limit = verdict.tolerances.get("output")
                extra |= errors_along_time(answer.output, reference.exact.output, question.ends, limit)
                extra |= largest_final_state(reference)
            if question.distance:
                extra["distance"] = relative_error(answer.output, self._recurrence_output(question))
        return dataclasses.replace(verdict, extra=extra)

    def forget(self) -> None:
        """Drop all references."""
        self._kept.clear()
        self._bytes.clear()

    def reference(self, question: Question) -> Reference:
        """Get the oracle's answer for a draw, made once for all backends and passes."""
        definition = self._definition(question)
        key = ("reference", question.number, question.with_state, question.gradients, definition)
        reference: Reference = self._keep(
            question.case,
            key,
            lambda: make_reference(
                self._subject(question.case),
                definition,
                self._values(question, question.number),
                gradients=question.gradients,
            ),
        )
        return reference

    def _asked(self, question: Question, *, steady: bool = False) -> Reference:
        """Get the oracle's answer to a question. steady: see `steadied`."""
        reference = self.reference(question)
        if steady:
            definition, plain = self._definition(question), reference
            values = self._values(question, question.number)
            reference = self._keep(
                question.case,
                ("steady", question.number, question.with_state, question.gradients, definition),
                lambda: steadied(plain, self._subject(question.case), definition, values),
            )
        return self._varied(question, reference) if question.drawn else reference

    def _varied(self, question: Question, second: Reference) -> Reference:
        """Get the oracle's answer for a variation, with a tolerance for its further rounding.

        second: the answer for the second base.
        """
        drawn = question.drawn
        assert drawn is not None
        case, made = question.case, self._variation(question)
        about = (case.pass_, question.with_state, question.gradients, self._definition(question))
        if drawn.seed is not None:
            mixture = ("mixture", question.number, drawn, *about)
            exact = self._keep(case, mixture, lambda: self._evaluated(question, made.values(drawn)))
            mixed = dataclasses.replace(second, exact=exact)
            return _loosened(mixed, dict.fromkeys(mixed.low_errors, ROUNDED_AGAIN))
        key = ("base", question.number, *about)
        first: Evaluation = self._keep(case, key, lambda: self._evaluated(question, made.base()))
        return _combination(drawn.answer, first, second)

    def _evidence(self, question: Question) -> Evidence | None:
        """Give the evidence for a diagnosis; None for a variation, whose values are not kept."""
        if question.drawn is not None:
            return None
        values = self._values(question, question.number)
        return evidence_of(question.case, self._definition(question), values)

    def _evaluated(self, question: Question, values: Values) -> Evaluation:
        definition, subject = self._definition(question), self._subject(question.case)
        return exact_evaluation(subject, definition, values, gradients=question.gradients)

    def _variation(self, question: Question) -> Variation:
        first, second = (self._values(question, question.number - back) for back in (1, 0))
        return Variation.of(question.case, first, second, equivalent=question.equivalent)

    def _recurrence_output(self, question: Question) -> Tensor:
        definition = registry.recurrence(question.case.recurrence).definition

        def make() -> Tensor:
            values = self._values(question, question.number)
            subject = self._subject(question.case)
            return make_reference(subject, definition, values, gradients=False).exact.output

        output: Tensor = self._keep(question.case, ("recurrence", question.number), make)
        return output

    def _definition(self, question: Question) -> Callable[..., Any]:
        case = question.case
        if question.equivalent:  # the backend itself may be one that this process does not load
            return registry.recurrence(case.recurrence).definition
        return registry.backend(case.owner, case.backend).own_definition()

    def _subject(self, case: Case) -> Subject:
        return subject_of(case, self.device)

    def _values(self, question: Question, number: int) -> Values:
        values: Values = self._keep(
            question.case,
            ("values", number, question.with_state),
            lambda: self._subject(question.case).values(number, with_state=question.with_state),
        )
        return values

    def _keep(self, case: Case, key: Hashable, make: Callable[[], Any]) -> Any:
        """Make something once for all cases with the same operands; a refusal is remembered too."""
        operands = case.operand_key
        own = self._kept.setdefault(operands, {})
        self._kept.move_to_end(operands)
        if key not in own:
            self._make_room()
            try:
                own[key] = make()
            except Unsupported as refusal:
                own[key] = refusal
            self._bytes[operands] = self._bytes.get(operands, 0) + bytes_of(own[key])
        if isinstance(own[key], Unsupported):
            raise own[key]
        return own[key]

    def _make_room(self) -> None:
        """Drop the entries of the operands that were used longest ago."""
        limit = KEPT_BYTES
        if self.device.startswith("cuda"):
            limit = int(self.kept_share * torch.cuda.get_device_properties(self.device).total_memory)
        while len(self._kept) > 1 and sum(self._bytes.values()) > limit:
            oldest, _ = self._kept.popitem(last=False)
            self._bytes.pop(oldest, None)


def errors_along_time(
    output: Tensor, expected: Tensor, ends: tuple[int, ...], limit: float | None = None
) -> dict[str, Any]:
    """Compare an output (B, T, ...) with the float64 output in pieces of time that end before `ends`.

    limit: relative error beyond which a step counts as wrong.
    """
    scale = float(expected.abs().max()) or 1.0
    difference = (widen(output, torch.float64) - expected).abs() / scale
    difference = difference.transpose(0, 1).flatten(1)  # (T, B·...)
    broken = ~torch.isfinite(difference)
    finite = difference[~broken]
    beyond = None if limit is None else first_step((difference > limit) | broken)
    return {
        "first_nan_step": first_step(broken),
        "first_wrong_step": beyond,
        "phase_drift": phase_drift(output, expected, ends),
        "largest_finite_error": float(finite.max()) if len(finite) else None,
        "error_envelope": [float(piece.max()) for piece in difference.tensor_split(ends[:-1])],
    }


def first_step(marked: Tensor) -> int | None:
    """Find the first step of (T, n) in which anything is marked."""
    found = marked.any(1).nonzero()
    return int(found[0]) if len(found) else None


def phase_drift(output: Tensor, expected: Tensor, ends: tuple[int, ...]) -> float | None:
    """Compute by how many radians the last piece of a complex output (B, T, ...) is turned; None if real.

    It is the largest angle of any channel's inner product with the float64 output; channels that have nearly
    nothing there are left out.
    """
    if not output.is_complex():
        return None
    start = ends[-2] if len(ends) > 1 else 0
    last = expected[:, start:]
    products = (last.conj() * widen(output[:, start:], torch.float64)).sum(1)
    sizes = last.abs().square().sum(1)
    angles = products.angle().abs()[sizes >= SMALLEST_CHANNEL * sizes.max()]
    return float(angles.max()) if bool(torch.isfinite(angles).all()) and angles.numel() else None


def largest_final_state(reference: Reference) -> dict[str, float]:
    """Give the largest magnitude in the float64 state after the last step, if there is a state."""
    state = reference.exact.final_state
    return {} if state is None else {"largest_final_state": float(state.abs().max())}


def bytes_of(made: Any) -> int:
    """Count the bytes of the tensors that a judge keeps."""
    if isinstance(made, Tensor):
        return made.numel() * made.element_size()
    if isinstance(made, Mapping):
        return sum(map(bytes_of, made.values()))
    if isinstance(made, Reference):
        return bytes_of(made.exact)
    if isinstance(made, Evaluation):
        return bytes_of(made.output) + bytes_of(made.final_state) + bytes_of(made.gradients)
    if isinstance(made, Values):
        return bytes_of(made.operands) + bytes_of(made.grad_output) + bytes_of(made.grad_state)
    return 0


def _combination(weights: tuple[float, float], first: Evaluation, second: Reference) -> Reference:
    """Combine the answers of two bases. Errors may be as large as those of both together."""
    exact = second.exact
    pairs = {"output": (first.output, exact.output)}
    if first.final_state is not None and exact.final_state is not None:
        pairs["final_state"] = first.final_state, exact.final_state
    pairs |= {name: (first.gradients[name], exact.gradients[name]) for name in exact.gradients}
    made: dict[str, Tensor] = {}
    factors: dict[str, float] = {}
    for name, (one, two) in pairs.items():
        made[name] = one * weights[0] + two * weights[1]
        largest = [float(each.abs().max()) if each.numel() else 0.0 for each in (one, two, made[name])]
        together = abs(weights[0]) * largest[0] + abs(weights[1]) * largest[1]
        factors[name] = ROUNDED_AGAIN * max(1.0, together / largest[2] if largest[2] else 1.0)
    evaluation = Evaluation(
        made.pop("output"), made.pop("final_state", None), {name: made[name] for name in exact.gradients}
    )
    return _loosened(dataclasses.replace(second, exact=evaluation), factors)


def _loosened(reference: Reference, factors: Mapping[str, float]) -> Reference:
    """Loosen tolerances by these factors. Rows are judged only where the values are a draw's."""
    return dataclasses.replace(reference, factors=factors, row_axes={}, inner=None)
