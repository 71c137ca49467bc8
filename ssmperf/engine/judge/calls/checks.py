"""Judge a backend on what its recurrence's signature promises beside plain calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import complex_refusal
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import failure_of
from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge.calls import second
from ssmperf.engine.judge.calls.causes import alone, cause, explained, words_of
from ssmperf.engine.judge.calls.probe import LENGTHS, CallProbe, forms
from ssmperf.engine.judge.checked import Checked, worst
from ssmperf.engine.judge.tolerance import SECOND_DERIVATIVE, relative_error
from ssmperf.engine.judge.verdict import Verdict, judge_call
from ssmperf.engine.operands.contract import well_formed
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.registry.declarations import Backend
from ssmperf.errors import Unsupported, UsageError

PRECISE = ("float32", "float64")  # dtypes in which second derivatives are compared

Bound = Callable[[Any], float | None]


def check_calls(
    backend: Backend, probe: CallProbe, bound: Bound, *, few_shapes: bool = False
) -> Iterator[Checked]:
    """Judge every form of a call in turn; one that the backend refuses does not apply, and no other.

    few_shapes: leave out the forms with other shapes, for a backend that is compiled for each.
    """
    return ProbedCalls(backend, probe, bound).findings(few_shapes)


def at_taken_sizes(check: Callable[[bool], Sequence[Checked]]) -> Sequence[Checked]:
    """Check calls of the smallest sizes, or of the case's own if the backend refuses even a plain call there.

    check: whether sizes are the case's own -> what `check_calls` finds.
    """
    found = check(False)
    return check(True) if len(found) == 1 and found[0].error is None else found


class ProbedCalls:
    """A backend on a probe's cases. bound: operands -> the error bound that it declares, or None."""

    def __init__(self, backend: Backend, probe: CallProbe, bound: Bound) -> None:
        self.backend, self.probe, self.bound = backend, probe, bound
        self.function = well_formed(backend.function)
        self.definition = probe.recurrence.definition if backend.equivalent else backend.own_definition()
        self.gradients = probe.case.gradients and "forward_backward" in backend.passes
        self.judge = cache(self._judge)

    def findings(self, few_shapes: bool) -> Iterator[Checked]:
        length = next((T for T in LENGTHS if not (self.backend.lengths and self.backend.lengths(T))), None)
        if length is None:
            return
        plain = self.probe.plain(length)
        try:
            verdict = self.judge(plain)
        except (Unsupported, UsageError) as refusal:
            yield Checked(words_of(plain), reason=str(refusal))
            return
        if verdict.status is not Status.OK:
            yield _finding(words_of(plain), verdict, f"at T = {length}: {verdict.reason}")
            return
        operands = tuple(self.probe.values(plain).varying)
        for case in forms(self.probe, length, operands, gradients=self.gradients, few_shapes=few_shapes):
            yield self.finding(case, operands)
        foreign = registry.is_peer(self.backend.of, self.backend.name)  # whose authors promise no second ones
        if self.gradients and plain.dtype in PRECISE and not foreign:
            yield self.second(plain)

    def finding(self, case: Case, operands: tuple[str, ...]) -> Checked:
        """Judge one form of the call, of which the plain one is right."""
        try:
            verdict = self.judge(case)
            for words in alone(case) if verdict.status is not Status.OK else ():
                part = replace(case, call=words)
                if self.judge(part).status is not Status.OK:
                    case, verdict = part, self.judge(part)
                    break
        except (Unsupported, UsageError) as refusal:
            return Checked(words_of(case), reason=str(refusal))
        if verdict.status is Status.OK:
            return _finding(words_of(case), verdict, None)
        text = cause(case, operands)
        why = None
        if verdict.output is not None and verdict.output.shape == self.reference(case).exact.output.shape:
            exact = self.reference(case).exact.output
            why = explained(case, self.definition, self.probe.values(case), verdict.output, exact)
        return _finding(words_of(case), verdict, f"{text}{f', {why}' if why else ''} ({verdict.reason})")

    def reference(self, case: Case) -> Any:
        return self.probe.reference(case, self.definition, self.gradients)

    def _judge(self, case: Case) -> Verdict:
        """Judge a case; an exception from the backend is a verdict, too, or refuses complex operands.

        Raises:
            Unsupported, UsageError: the backend or the definition refuses it.
        """
        values = self.probe.values(case)
        if self.backend.lengths and (reason := self.backend.lengths(case.shape["T"])):
            raise Unsupported(reason)
        reference = self.reference(case)
        try:
            return judge_call(
                self.function,
                values.clone(),
                reference,
                dtype=dtype_of(case.dtype),
                gradients=self.gradients,
                bound=self.bound(values.operands),
            )
        except (Unsupported, UsageError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = failure_of(error).reason
            if refusal := complex_refusal(case.call, reason):
                raise Unsupported(refusal) from error
            return Verdict(Status.WRONG, reason)

    def second(self, case: Case) -> Checked:
        """Compare second derivatives. An exception is a refusal, since nobody takes it for a number."""
        values = self.probe.values(case)
        try:
            expected, limits = self.probe.second(case, self.definition)
            found = second.second_derivatives(self.function, values)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return Checked(second.NAME, reason=failure_of(error).reason)
        errors = {name: relative_error(found[name], value) for name, value in expected.items()}
        bound = self.bound(values.operands) or 0.0
        limits = {name: max(limit, SECOND_DERIVATIVE * bound) for name, limit in limits.items()}
        name = max(
            errors, key=lambda each: errors[each] / limits[each] if errors[each] == errors[each] else math.inf
        )
        if errors[name] <= limits[name]:
            return Checked(second.NAME, errors[name], limits[name])
        reason = (
            f"wrong, and not refused, for a loss that is linear in the output: that of {name} is off by "
            f"{errors[name]:.2e}, above the tolerance {limits[name]:.2e}"
        )
        return Checked(second.NAME, errors[name], limits[name], reason, Status.WRONG)


def _finding(words: str, verdict: Verdict, reason: str | None) -> Checked:
    """Give the finding of a verdict, with the error that comes nearest to its tolerance."""
    if verdict.status is not Status.OK:
        error = max(verdict.errors.values(), default=math.nan)
        return Checked(words, error, None, reason, Status.WRONG)
    return worst(words, ((error, verdict.tolerances[name]) for name, error in verdict.errors.items()))
