"""Judge one case in a worker: before it is timed, afterwards, and with candidate configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.cases.case import Case
from ssmperf.cases.record import Status
from ssmperf.errors import Unsupported
from ssmperf.execute.context import Context
from ssmperf.judge.reference import Reference, make_reference
from ssmperf.judge.tolerance import error_bound
from ssmperf.judge.verdict import Verdict, compare_gradients, judge_call
from ssmperf.operands.dtypes import dtype_of
from ssmperf.operands.values import Values


@dataclass(frozen=True)
class Judging:
    """Judges a case's backend against references that are shared by all cases with the same operands.

    with_state: whether the calls start from a random initial state.
    """

    case: Case
    context: Context
    with_state: bool = False

    def first(self) -> tuple[Verdict, Values]:
        """Judge the backend twice before it is timed, on fresh values in the same buffers.

        The first judgement covers output and final state; the second also covers the gradients, if the pass
        computes any. A cached result or a stale graph fails the second judgement.

        Returns:
            The first verdict that is not ok, or else the second; and the buffers with the values of the
            second judgement, ready to be timed.
        """
        gradients = self.case.gradients
        buffers = self.values(0).clone()
        # before the references are made, since the backend may refuse these operands
        self.context.time_first_call(self.case, buffers)
        for number in (0, 1):
            self.reference(number, gradients=gradients and number == 1)
        verdict = self._judge(buffers, 0, gradients=False)
        if verdict.status is not Status.OK or verdict.output is None:
            return verdict, buffers
        kept = verdict.output.clone()
        self.restore(buffers)
        again = self._judge(buffers, 1, gradients=gradients)
        if again.status is Status.OK and not torch.equal(verdict.output, kept):
            reason = "its second call overwrote the output of the first"
            return Verdict(Status.WRONG, reason, again.errors, again.tolerances), buffers
        return again, buffers

    def after_timing(self, buffers: Values) -> Verdict:
        """Judge the first values once more, without poisoned memory."""
        buffers.refill(self.values(0))
        return self._judge(buffers, 0, gradients=self.case.gradients, poison=False)

    def with_candidate(self, buffers: Values) -> Verdict:
        """Judge the values of the second judgement again, with the configurations now in force."""
        self.restore(buffers)
        return self._judge(buffers, 1, gradients=self.case.gradients)

    def gradients(self, buffers: Values, found: Mapping[str, Tensor]) -> Verdict:
        """Judge the gradients that a timed pass computed from the values of the second judgement."""
        return compare_gradients(
            found,
            self.reference(1, gradients=True),
            dtype=dtype_of(self.case.dtype),
            bound=self.bound(buffers.operands),
        )

    def restore(self, buffers: Values) -> None:
        """Write the values of the second judgement into the buffers again."""
        buffers.refill(self.values(1))

    def values(self, number: int) -> Values:
        """Get the case's values by number (0, 1, ...)."""
        return self.context.values(self.case, number, with_state=self.with_state)

    def reference(self, number: int, *, gradients: bool) -> Reference:
        """Get the oracle's answer for the values of this number, made once for all backends and passes.

        Raises:
            Unsupported: the values overflow the case's dtype, or the backend is declared to compute another
                function without a definition of it.
        """
        definition, values = self.definition(), self.values(number)
        reference: Reference = self.context.memoised(
            self.case,
            ("reference", number, self.with_state, gradients, definition),
            lambda: make_reference(self.context.subject(self.case), definition, values, gradients=gradients),
        )
        return reference

    def definition(self) -> Callable[..., Any]:
        """Get the definition by which the case's backend is judged.

        Raises:
            Unsupported: the backend is declared to compute another function, without a definition of it.
        """
        backend = self.context.backend(self.case)
        if backend.equivalent:
            return self.context.recurrence(self.case).definition
        if backend.definition is None:
            raise Unsupported(f"{backend.name} computes another function, and declares no definition of it")
        return backend.definition

    def bound(self, operands: Mapping[str, Any], dtype: str | None = None) -> float | None:
        """Get the error that the backend declares for these operands, in the case's dtype or another."""
        return error_bound(
            self.context.backend(self.case),
            self.context.recurrence(self.case),
            self.context.subject(self.case),
            operands,
            dtype or self.case.dtype,
        )

    def _judge(self, values: Values, number: int, *, gradients: bool, poison: bool = True) -> Verdict:
        return judge_call(
            self.context.function(self.case),
            values,
            self.reference(number, gradients=gradients),
            dtype=dtype_of(self.case.dtype),
            gradients=gradients,
            bound=self.bound(values.operands),
            poison=poison,
        )
