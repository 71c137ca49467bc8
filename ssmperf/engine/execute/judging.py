"""Judge one case in a worker: before it is timed, while it is, and with candidate configurations."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.execute.context import Context
from ssmperf.engine.judge.answer import Answer, call_backend, contract_of, inside
from ssmperf.engine.judge.tolerance import error_bound
from ssmperf.engine.judge.verdict import Verdict, label_of
from ssmperf.engine.measure.passes import TimedPass
from ssmperf.engine.operands.contract import Contract
from ssmperf.engine.operands.dtypes import dtype_of
from ssmperf.engine.operands.values import Values
from ssmperf.engine.operands.variation import MOST_SEED, CallSecret, Variation
from ssmperf.engine.trial.question import Question
from ssmperf.engine.trial.timed_answers import FreshValues, TimedAnswers
from ssmperf.errors import BrokenContract

NEAR = 2.0  # an error below so many tolerances is judged again, on other values
OTHER_VALUES = 1000  # added to the number of a draw for that


@dataclass(frozen=True)
class Judging:
    """Judges a case's backend by a judge that shares references between all cases with the same operands.

    with_state: whether the calls start from a random initial state.
    offset: added to the number of every draw.
    """

    case: Case
    context: Context
    with_state: bool = False
    offset: int = 0

    def first(self) -> tuple[Verdict, Values]:
        """Judge the backend twice before it is timed, on fresh values in the same buffers.

        The first judgement covers output and final state; the second also covers the gradients, if the pass
        computes any. A cached result or a stale graph fails the second judgement. An error that is only
        little above its tolerance is judged again on other values, and the verdict says how that ended.

        Returns:
            The first verdict that is not ok, or else the second; and the buffers with the values of the
            second judgement, ready to be timed.
        """
        verdict, buffers = self._first()
        if verdict.status is Status.WRONG and 1 < verdict.excess < NEAR and not self.offset:
            other, _ = dataclasses.replace(self, offset=OTHER_VALUES)._first()
            outcome = f"{other.excess:.2g} of its tolerance" if other.errors else other.reason
            verdict = dataclasses.replace(
                verdict, reason=f"{verdict.reason} (on other values: {other.status}, {outcome})"
            )
        return verdict, buffers

    def _first(self) -> tuple[Verdict, Values]:
        gradients = self.case.gradients
        buffers = self.values(0).clone()
        for number in (0, 1):  # declared before the backend has been called
            self._bound(number)
        # before the references are made, since the backend may refuse these operands
        try:
            first = self.context.time_first_call(self.case, buffers, self._contract(buffers))
        except BrokenContract as error:
            return Verdict(Status.WRONG, str(error)), buffers
        buffers.refill(self.values(0))  # the call may have changed its inputs
        if first is not None:
            verdict = self._judged_first(first, buffers)
            del first  # whose results may take much memory
            if verdict.status is not Status.OK:
                return verdict, buffers
        verdict, answer = self._judge(buffers, 0, gradients=False)
        if verdict.status is not Status.OK or answer.output is None:
            return verdict, buffers
        kept = answer.output.clone()
        self.restore(buffers)
        again, second = self._judge(buffers, 1, gradients=gradients)
        if again.status is Status.OK and not torch.equal(answer.output, kept):
            reason = "its second call overwrote the output of the first"
            return Verdict(Status.WRONG, reason, again.errors, again.tolerances), buffers
        return dataclasses.replace(again, output=second.output), buffers

    def _judged_first(self, first: Answer, buffers: Values) -> Verdict:
        """Judge the first answer of all, where a later one to the same values is another.

        A reference with gradients takes longer than a call, and no other answer to these values needs it.
        """
        if first.problem:
            return Verdict(Status.WRONG, first.problem)
        later = self._called(buffers, gradients=self.case.gradients)
        same = first.results.keys() == later.results.keys() and all(
            torch.equal(value, later.results[name]) for name, value in first.results.items()
        )
        if same:
            return Verdict(Status.OK)
        verdict, after = (
            self._ask(each, 0, gradients=self.case.gradients, counts=False) for each in (first, later)
        )
        if verdict.status is Status.OK or after.status is not Status.OK:
            return Verdict(Status.OK)  # what is wrong with later ones is judged with them
        text = f"its first call is wrong, a later one on the same values is right: {verdict.reason}"
        return dataclasses.replace(verdict, reason=text)

    def twice(self, verdict: Verdict, buffers: Values) -> Verdict:
        """Call the backend twice more on the same values; the verdict becomes `wrong` if any bit differs.

        verdict, buffers: those of `first`.
        """
        if not self.context.backend(self.case).deterministic:
            return verdict
        function, expected = self.context.function(self.case), self._contract(buffers)
        first, second = (
            call_backend(function, buffers, expected, gradients=self.case.gradients, poison=False).results
            for _ in range(2)
        )
        differing = [label_of(name) for name in first if not torch.equal(first[name], second[name])]
        if not differing:
            return verdict
        reason = f"two calls on the same values give other bits: {', '.join(differing)}"
        return dataclasses.replace(verdict, status=Status.WRONG, reason=reason)

    def once(self, *, ends: tuple[int, ...] = ()) -> Verdict:
        """Judge one call on the first values.

        ends: ends of pieces of the sequence; the verdict's `extra` then has the largest error of each.
        """
        values = self.values(0)
        verdict, _ = self._judge(values, 0, gradients=self.case.gradients, ends=ends)
        return verdict

    def instead(self, function: Callable[..., Any]) -> Verdict:
        """Judge one forward call of another function on the first values, as the backend is judged."""
        values = self.values(0)
        answer = call_backend(function, values, self._contract(values), gradients=False)
        return self._ask(answer, 0, gradients=False, counts=False)

    def distance(self, verdict: Verdict) -> float:
        """Measure how far the output of the second judgement is from the recurrence's, relatively.

        verdict: that of `first`, for a backend that computes another function.
        """
        assert verdict.output is not None
        answer = Answer({"output": verdict.output})
        found = self._ask(answer, 1, gradients=False, distance=True)
        return float(found.extra["distance"])

    def timed_answers(self, timed: TimedPass, buffers: Values) -> TimedAnswers:
        """Make the observer that gives each timed call its own values and has it answer for them.

        buffers: those that `first` returned, from which the pass was made.
        """
        equivalent = self.context.backend(self.case).equivalent
        made = Variation.of(self.case, self.values(0), self.values(1), equivalent=equivalent)

        def ask(drawn: CallSecret, answer: Answer) -> Verdict:
            return self._ask(answer, 1, gradients=self.case.gradients, drawn=drawn)

        eps = torch.finfo(dtype_of(self.case.dtype)).eps
        return TimedAnswers(
            timed,
            buffers,
            made,
            ask,
            probe=self._probe(),
            eps=eps,
            bound=self._bound(1),
            contract=None if self.case.gradients else self._contract(buffers),
        )

    def fresh_values(self, timed: TimedPass, buffers: Values, ready: Callable[[], None]) -> FreshValues:
        """Make the observer that gives each call values of its own, and does not look at its answer.

        ready: called when the values are written, before the call. The pass itself is not told of them.
        """
        apart = dataclasses.replace(timed, refresh=lambda: None)
        return FreshValues(self.timed_answers(apart, buffers), ready)

    def look(self, pass_: str, timed: TimedPass, buffers: Values) -> FreshValues:
        """Make the observer that gives each call of a pass fresh values, for a short look at its time."""
        judging = dataclasses.replace(self, case=dataclasses.replace(self.case, pass_=pass_))
        return FreshValues(judging.timed_answers(timed, buffers), lambda: None)

    def _probe(self) -> CallSecret:
        """Draw the mixture that all backends of a run share, so that one reference serves all."""
        secret = random.Random(f"{self.context.nonce} {self.case.pass_}")
        return CallSecret(seed=secret.randrange(MOST_SEED), scale=1.25)

    def with_candidate(self, buffers: Values) -> Verdict:
        """Judge the values of the second judgement again, with the configurations now in force."""
        self.restore(buffers)
        verdict, _ = self._judge(buffers, 1, gradients=self.case.gradients, counts=False)
        return verdict

    def restore(self, buffers: Values) -> None:
        """Write the values of the second judgement into the buffers again."""
        buffers.refill(self.values(1))

    def values(self, number: int) -> Values:
        """Get the case's values by number (0, 1, ...)."""
        return self.context.values(self.case, self.offset + number, with_state=self.with_state)

    def definition(self) -> Callable[..., Any]:
        """Get the definition by which the case's backend is judged.

        Raises:
            Unsupported: the backend is declared to compute another function, without a definition of it.
        """
        backend = self.context.backend(self.case)
        if backend.equivalent:
            return self.context.recurrence(self.case).definition
        return backend.own_definition()

    def bound(self, operands: Mapping[str, Any], dtype: str | None = None) -> float | None:
        """Get the error that the backend declares for these operands, in the case's dtype or another."""
        return error_bound(
            self.context.backend(self.case),
            self.context.recurrence(self.case),
            self.context.subject(self.case),
            operands,
            dtype or self.case.dtype,
        )

    def _bound(self, number: int) -> float | None:
        """Get the error bound that the backend declared for a draw when it was first asked."""
        bound: float | None = self.context.memoised(
            self.case,
            ("bound", self.case.backend, self.offset + number, self.with_state),
            lambda: self.bound(self.values(number).operands),
        )
        return bound

    def _judge(
        self,
        values: Values,
        number: int,
        *,
        gradients: bool,
        ends: tuple[int, ...] = (),
        counts: bool = True,
    ) -> tuple[Verdict, Answer]:
        inner = inside(self.context.subject(self.case), self.definition(), values)
        answer = self._called(values, gradients=gradients, inner=inner)
        return self._ask(answer, number, gradients=gradients, ends=ends, counts=counts), answer

    def _called(
        self, values: Values, *, gradients: bool, inner: tuple[Values, Contract] | None = None
    ) -> Answer:
        function, expected = self.context.function(self.case), self._contract(values)
        return call_backend(function, values, expected, gradients=gradients, inner=inner)

    def _contract(self, values: Values) -> Contract:
        contract: Contract = self.context.memoised(
            self.case,
            ("contract", self.definition(), self.with_state),
            lambda: contract_of(self.context.subject(self.case), self.definition(), values),
        )
        return contract

    def _ask(
        self,
        answer: Answer,
        number: int,
        *,
        gradients: bool,
        drawn: CallSecret | None = None,
        ends: tuple[int, ...] = (),
        distance: bool = False,
        counts: bool = True,
    ) -> Verdict:
        question = Question(
            self.case,
            self.context.nonce + self.offset + number,
            with_state=self.with_state,
            gradients=gradients,
            bound=self._bound(number),
            equivalent=self.context.backend(self.case).equivalent,
            drawn=drawn,
            ends=ends,
            distance=distance,
            counts=counts,
        )
        return self.context.ask(question, answer)
