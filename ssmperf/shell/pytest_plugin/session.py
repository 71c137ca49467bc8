"""The value of the fixture `ssmperf_session`: it verifies and measures kernels."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

from ssmperf.authors.verification.report import Verification
from ssmperf.authors.verification.verify import verify
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.plan.nonce import as_text
from ssmperf.errors import UsageError
from ssmperf.shell.pytest_plugin.measuring import measured, wanted
from ssmperf.shell.pytest_plugin.recorder import SessionRecorder

# Exceptions in a test's process that are not the kernel's: of pytest.skip, a timeout, or Ctrl-C.
PASSED_ON = (pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception, KeyboardInterrupt)


class SsmperfSession:
    """Verifies and measures kernels for one test.

    node_id: pytest's id of the test. recorder: the run of the test session; None in a process that must not
        measure. refusal: why it must not.
    """

    def __init__(self, node_id: str, recorder: SessionRecorder | None, refusal: str) -> None:
        self.node_id, self._recorder, self._refusal = node_id, recorder, refusal
        self._own: set[str] = set()  # ids of the cases that this test has measured

    def verify(self, of: str, function: Callable[..., Any] | str, **options: Any) -> Verification:
        """Judge a function as `ssmperf.verify(of, function, **options)` does; fail the test if it is wrong.

        Returns:
            The report, which is true.
        """
        __tracebackhide__ = True
        report = verify(of, function, **options)
        if not report:
            pytest.fail(str(report))
        return report

    def measure(self, of: str, function: Callable[..., Any] | str, **choices: Any) -> Record:
        """Judge a function, time it as the throughput suite does, and put the record into the session's run.

        Args:
            of: a recurrence, or a model, whose operands are then its own; or a workload as NAME:PHASE.
            function: takes the recurrence's operands and returns (output, final_state), as for
                `ssmperf.verify`. Or the name of a registered backend.
            choices: the fields of `ssmperf.shell.pytest_plugin.measuring.Choices`, such as pass_="backward",
                and sizes of dimensions by letter, such as T=4096.

        Returns:
            The record, whose status is ok. Any other record fails the test, with its reason.

        Raises:
            UsageError: a name, letter or value is illegal, or the case was measured before by another test.
            Unsupported: the backend of this name cannot be imported here.
        """
        __tracebackhide__ = True
        if self._recorder is None:
            pytest.fail(self._refusal, pytrace=False)
        case = wanted(of, function, **choices)
        if case.case.id in self._own:
            raise UsageError(
                f'this test has measured "{case.case}" before: give another `name` to one of them'
            )
        self._own.add(case.case.id)
        self._recorder.begin(case.case, self.node_id)
        nonce = self._recorder.nonce
        words = ("pytest", self.node_id, "--ssmperf-nonce", as_text(nonce))
        facts = self._recorder.facts_of(case)
        record = measured(case, facts, nonce=nonce, command=shlex.join(words), passed_on=PASSED_ON)
        self._recorder.add(record, facts)
        if record.status is not Status.OK:
            pytest.fail(f"{record.case} is {record.status}: {record.reason}")  # its traceback is on stderr
        return record
