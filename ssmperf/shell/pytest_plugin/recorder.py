"""The run of a test session: its folder, its records, and its comparison with a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ssmperf.comparison.comparison import parse_threshold
from ssmperf.comparison.outcome import RunComparison
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record
from ssmperf.engine.execute.request import run_folder
from ssmperf.engine.execute.run import MEASUREMENT
from ssmperf.engine.plan import nonce as nonces
from ssmperf.engine.runs import scope
from ssmperf.engine.runs.store import Run, Writer
from ssmperf.errors import ExitCode, SsmperfError, UsageError
from ssmperf.shell import api
from ssmperf.shell.pytest_plugin.measuring import SUITE, Facts, Wanted, facts_of
from ssmperf.shell.terminal import display

# A test session was asked for the cases that its tests measure, and for no others: `plan` lists them.
ASKED_FOR_ITS_PLAN: dict[str, Any] = {
    "suites": [],
    "models": None,
    "backends": None,
    "device": "",
    "preset": "",
    "sizes": {},
    "axes": {},
    "planned": {},
}


class SessionRecorder:
    """Keeps the records of a test session in a run folder, which is made when the first case is measured.

    out: the folder; None for a new one under `runs/`. baseline: the run to compare with at the end, if any.
    nonce: the secret on which all values depend, as text; None for a fresh one.
    lines: texts to show at the end of the session, once it is finished.

    Raises:
        UsageError: a value is illegal, the folder is not empty, or the baseline cannot be read.
    """

    def __init__(
        self,
        *,
        out: str | None,
        baseline: str | None,
        nonce: str | None,
        threshold: str,
        unsure: str,
        argv: Sequence[str],
    ) -> None:
        parse_threshold(threshold)  # to refuse it now, not after the tests
        self.threshold, self.unsure = threshold, unsure
        self.nonce = nonces.fresh() if nonce is None else nonces.parse(nonce)
        self.baseline: Run | None = None if baseline is None else api.load(baseline)
        self._out = None if out is None else _unused(Path(out))
        self._argv = list(argv)
        self._writer: Writer | None = None
        self._tests: dict[str, str] = {}  # the test that measures each case, by the case's id
        self._facts: dict[tuple[str, int | None], Facts] = {}
        self.lines: list[str] = []

    def begin(self, case: Case, test: str) -> None:
        """Enter a case into the plan, before it is measured.

        Raises:
            UsageError: another test has measured the same case, or the folder cannot be written.
        """
        other = self._tests.setdefault(case.id, test)
        if other != test:
            raise UsageError(f'{other} has measured "{case}" before: give another `name` to one of them')
        if self._writer is None:
            path = self._out or run_folder(None, ("pytest",))
            self._writer = Writer.create(path, self._meta())
        self._writer.add_to_plan([case.id])

    def facts_of(self, wanted: Wanted) -> Facts:
        """Describe a case's device and settings; once per session for each of them."""
        key = wanted.device, wanted.threads
        if key not in self._facts:
            self._facts[key] = facts_of(wanted)
        return self._facts[key]

    def add(self, record: Record, facts: Facts) -> None:
        """Write a record. Raises UsageError if the folder cannot be written."""
        assert self._writer is not None
        self._writer.add_environment(facts.env_id, facts.environment)
        self._writer.append(record)

    def finish(self) -> bool:
        """Close the run, compare it with the baseline, set `lines`. Returns False if the session fails."""
        if self._writer is None:
            if self.baseline is None:
                return True
            count = len(self.baseline.records)
            self.lines = [f"no case was measured, of {count} that the baseline has: nothing can be compared"]
            return self.unsure == "pass"
        self._writer.close()
        try:
            run = api.load(self._writer.path)
            found = None
            if self.baseline is not None:
                found = api.check(run, baseline=self.baseline, threshold=self.threshold, unsure=self.unsure)
            self.lines = [*(_shown(found, self.baseline) if found else ()), display.closing(run)]
        except SsmperfError as error:
            self.lines = [f"the run cannot be compared: {error}"]
            return False
        return found is None or _passes(found)

    def _meta(self) -> dict[str, Any]:
        return {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "tag": None,
            "argv": self._argv,
            nonces.META: nonces.as_text(self.nonce),
            "measurement": MEASUREMENT,
            "rounds": 1,
            scope.META: ASKED_FOR_ITS_PLAN,
            "suites": {SUITE: registry.suite(SUITE).section.to_json()},
        }


def _passes(found: RunComparison) -> bool:
    """Tell whether a session may pass. Cases that the baseline lacks are as undecided as ambiguous ones."""
    if found.exit_code is ExitCode.UNSURE:
        return found.unsure == "pass"
    return found.ok


def _shown(found: RunComparison, baseline: Run | None) -> list[str]:
    """Show a comparison as lines, with what was not measured again."""
    assert baseline is not None
    text = registry.report("table", "comparison")(found, None)
    lines = [*(text or "").splitlines(), *(f"warning: {each}" for each in baseline.warnings)]
    measured = {record.case.id for record in found.new.records}
    others = sum(record.case.id not in measured for record in baseline.records)
    if others:
        lines.append(
            f"{others} {'case' if others == 1 else 'cases'} of {baseline.path} were not measured here"
        )
    return lines


def _unused(path: Path) -> Path:
    """Check that a folder can become the session's. Raises UsageError."""
    try:
        if path.exists() and any(path.iterdir()):
            raise UsageError(f"{path} already exists and is not empty: give another --ssmperf-out")
    except OSError as error:
        raise UsageError(f"cannot use {path} as --ssmperf-out: {error.strerror or error}") from error
    return path
