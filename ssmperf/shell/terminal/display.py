"""Output of the command line: progress, plans and reports."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import TRACEBACK
from ssmperf.engine.cases.record import Record, Status, one_line
from ssmperf.engine.machine.calibration import ABSENT
from ssmperf.engine.machine.devices import ASSUMED
from ssmperf.engine.plan.estimate import expected_s
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.plan.selection import Device
from ssmperf.engine.runs.store import RUN_FILE, Run, load, planned
from ssmperf.errors import UsageError

if TYPE_CHECKING:
    from ssmperf.comparison.versions.search.candidates import Commit
    from ssmperf.comparison.versions.search.verdicts import CommitVerdict
    from ssmperf.engine.execute.request import Request

FINE = (Status.OK, Status.UNSUPPORTED)
LINE_EVERY_S = 5.0
LONGEST_REASON = 160
LONGEST_PLACE = 100
SHORT = 10  # digits of a commit
# with what turns the direction of text: one such character can reverse a whole line
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
PLACE = re.compile(r" at (?P<file>\S.*)(?P<line>:\d+(?: \([^()]*\))?)$")  # the end of a crash's reason


def progress(*, debug: bool = False) -> Any:
    """Make a progress display: a bar with the remaining time on a terminal, plain lines elsewhere.

    debug: whether to print the traceback of a case that has one, when the case ends.
    """
    return BarProgress(debug) if sys.stderr.isatty() else LineProgress(debug)


def bad_cases(run: Run) -> list[Record]:
    """List the records whose status is neither ok nor unsupported."""
    return [record for record in run.records if record.status not in FINE]


def table(runs: list[Run]) -> None:
    """Print the terminal table of some runs, with shortened reasons."""
    short = [replace(run, records=[_with_short_reason(record) for record in run.records]) for run in runs]
    write_report("table", short, None)


def measured(folder: Path) -> None:
    """Print the table of what an interrupted run has measured, if there is any."""
    run = load(folder) if (folder / RUN_FILE).exists() else None
    if run is not None and run.records:
        table([run])


def flat(text: str | None) -> str:
    """Bring foreign text to one line without control characters (terminal escapes included)."""
    return " ".join(CONTROL.sub(" ", text or "").split())


def brief(text: str | None) -> str:
    """Shorten foreign text to a line (see `flat`). The place at its end is kept, with the end of its path."""
    line = flat(text)
    if len(line) <= LONGEST_REASON:
        return line
    place = ""
    before, found, after = line.rpartition(" at ")
    if match := PLACE.search(found + after):
        file, end = match["file"], match["line"][: LONGEST_PLACE // 2]
        room = LONGEST_PLACE - len(end)
        place = f" at {file if len(file) <= room else '…' + file[1 - room :]}{end}"
        line = before
    room = LONGEST_REASON - len(place)
    return (line if len(line) <= room else f"{line[: room - 1]}…") + place


def traceback_of(record: Record) -> str:
    """Give a record's traceback for a terminal: its lines, indented, without terminal escapes; or nothing."""
    text = record.numbers.get(TRACEBACK)
    lines = text.splitlines() if isinstance(text, str) else []
    return "\n".join(f"  {CONTROL.sub(' ', line)}".rstrip() for line in lines)


def _with_short_reason(record: Record) -> Record:
    return replace(record, reason=brief(record.reason) or record.reason)


def write_report(
    name: str, subject: Any, destination: Path | None, *, of: str | None = None, aside: bool = False
) -> None:
    """Write a report to its destination or print it; the last line says which file was written.

    of: kind of the subject, such as "comparison"; None for a list of runs.
    aside: whether that line goes to stderr, since stdout has JSON for a script.

    Raises:
        UnknownName: there is no such format. UsageError: the destination cannot be written, or is "-".
    """
    make = registry.report(name, of)
    if str(destination) == "-":
        raise UsageError(f"{name} is not written to -: name a file")
    try:
        text = make(subject, destination)
    except OSError as error:
        raise UsageError(f"cannot write {destination}: {error.strerror or error}") from error
    if text is not None:
        print(text)
    if destination is not None:
        print(f"{name} written to {destination}", file=sys.stderr if aside else None)


def unfinished(runs: Iterable[Run]) -> Iterator[str]:
    """Say of which runs planned cases have no record, so that the fastest of the rest is not the fastest."""
    for run in runs:
        ids = planned(run.meta)
        absent = len(set(ids) - {record.case.id for record in run.records})
        if absent:
            yield (
                f"warning: {one_line(str(run.path))} is unfinished: {absent} of {len(ids)} planned cases are "
                "without a record; run --resume measures them"
            )


def closing(run: Run) -> str:
    """Compose the last line of a run's output: how its cases ended, and its folder."""
    return f"{counts(run.records)}; run written to {run.path}"


def warnings(run: Run) -> list[str]:
    """List what is wrong with this machine's calibration; empty if there is none, or a good one."""
    reasons = (environment.get("calibration_reason") for environment in run.environments.values())
    return [f"warning: {brief(str(each))}" for each in dict.fromkeys(reasons) if each not in (None, ABSENT)]


def counts(records: list[Record]) -> str:
    """Count the cases by status, as in "12 cases: 10 ok, 2 unsupported"."""
    by_status = Counter(record.status for record in records)
    parts = [f"{by_status[status]} {status}" for status in Status if by_status[status]]
    return f"{len(records)} cases: {', '.join(parts) or 'none'}"


def plan(request: Request) -> str:
    """Show the plan of a request, one line per case: whether it would run, or why it is skipped."""
    from ssmperf.engine.execute.run import own_part
    from ssmperf.engine.execute.stand_ins import StandIns

    made = own_part(make_plan(request.selection, request.suites), request)
    stand_ins = StandIns(made, request.selection)
    lines = []
    for item in made.cases:
        leader = stand_ins.leaders.get(item.case.id)
        note = (
            f"  SKIPPED: {brief(item.refusal)}" if item.refusal else f"  as {leader.model}" if leader else ""
        )
        lines.append(f"{item.case.id}  {item.case}{note}")
    to_measure = stand_ins.measured(made.to_run)
    counts = [f"{len(to_measure)} to run", f"{len(made.refused)} skipped with a reason"]
    if stand_ins:
        counts.insert(1, f"{len(stand_ins.leaders)} as another model with the same operands")
    seconds = expected_of(request, to_measure)
    where = _place(request.selection.device)
    last = f"{len(made.cases)} cases: {', '.join(counts)}; takes about {duration(seconds)}{where}"
    return "\n".join([*lines, last])


def expected_of(request: Request, cases: Iterable[Case]) -> float:
    """Forecast the seconds of some cases of a request."""
    return expected_s(
        cases,
        rounds=request.options.rounds or 1,
        devices=len(request.devices),
        workers=request.selection.device.workers,
        training=request.scale.training,
    )


def _place(device: Device) -> str:
    """Say which GPU a plan assumes where there is none."""
    return " on an H200, as there is no GPU here" if device is ASSUMED else ""


def duration(seconds: float) -> str:
    """Give a rough time in words: "40 s", "8 min" or "1.5 h"."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def bisection_step(commit: Commit, left: int, judgements: int) -> None:
    """Print which commit a search judges next, and how many are left."""
    what = f"{commit.name[:SHORT]} {brief(commit.subject)}"
    commits, steps = counted(left, "commit"), counted(judgements, "comparison")
    print(f"bisecting: {commits} left, about {steps}; now {what}", file=sys.stderr, flush=True)


def bisection_judged(commit: Commit, found: CommitVerdict) -> None:
    """Print what was found out about a commit."""
    text = f"{commit.name[:SHORT]} is {found.word}: {brief(found.text)} {found.change}".rstrip()
    print(text, file=sys.stderr, flush=True)


def shown_lines(text: str) -> str:
    """Take control characters and terminal escapes out of foreign text, line by line."""
    return "\n".join(CONTROL.sub(" ", line) for line in text.splitlines())


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, as in "1 commit" and "2 commits"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class LineProgress:
    """Prints a line every few seconds, and one for each case that is neither ok nor unsupported.

    debug: whether to print tracebacks.
    """

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug

    def begin(self, total: int, done: int) -> None:
        self.total, self.done, self.earlier = total, done, done
        self.begun = self.shown = time.monotonic()
        self.first: float | None = None  # when the first case ended, before which workers start
        self.statuses: Counter[Status] = Counter()
        kept = f", {done} already done" if done else ""
        self._print(f"{total} cases{kept}")

    def start(self, case: Case, device: str) -> None:
        pass

    def progress(self, case: Case, text: str) -> None:
        now = time.monotonic()
        if now - self.shown >= LINE_EVERY_S:
            self.shown = now
            self._print(f"[{self.done}/{self.total}] {case}: {brief(text)}")

    def finish(self, record: Record) -> None:
        self.done += 1
        self.statuses[record.status] += 1
        if record.status not in FINE:
            self._print(f"{record.status}: {record.case}: {brief(record.reason)}")
            if self.debug and (text := traceback_of(record)):
                self._print(text)
        now = time.monotonic()
        self.first = now if self.first is None else self.first
        if now - self.shown >= LINE_EVERY_S:
            self.shown = now
            self._print(f"[{self.done}/{self.total}] {record.case}{self._remaining(now)}")

    def drop(self, count: int) -> None:
        self.total -= count

    def end(self) -> None:
        took = time.monotonic() - self.begun
        parts = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        self._print(f"measured {self.done - self.earlier} cases in {took:.0f} s: {parts or 'nothing to do'}")

    def _remaining(self, now: float) -> str:
        """Extrapolate from the cases behind the first one; nothing before there is another."""
        since = self.done - self.earlier - 1
        if self.first is None or since < 1:
            return ""
        left = (now - self.first) / since * (self.total - self.done)
        return f"  about {left:.0f} s left"

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def new_bar(*, counts: bool = True) -> Any:
    """Make a bar with the time left. counts: whether it shows how many steps are done, and of how many."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=None)]
    columns += [MofNCompleteColumn()] if counts else []
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))


class BarProgress:
    """Shows a progress bar, and prints cases that are neither ok nor unsupported above it.

    debug: whether to print their tracebacks.
    """

    def __init__(self, debug: bool = False) -> None:
        self.debug = debug

    def begin(self, total: int, done: int) -> None:
        self.bar = new_bar()
        self.task = self.bar.add_task("starting a worker", total=total, completed=done)
        self.bar.start()

    def start(self, case: Case, device: str) -> None:
        self.bar.update(self.task, description=f"{case} on {device}"[:70])

    def progress(self, case: Case, text: str) -> None:
        self.bar.update(self.task, description=f"{case.backend}: {brief(text)}"[:70])

    def finish(self, record: Record) -> None:
        self.bar.advance(self.task)
        if record.status not in FINE:
            self.bar.console.print(f"{record.status}: {record.case}: {brief(record.reason)}", markup=False)
            if self.debug and (text := traceback_of(record)):
                self.bar.console.print(text, markup=False, highlight=False)

    def drop(self, count: int) -> None:
        self.bar.update(self.task, total=(self.bar.tasks[0].total or 0) - count)

    def end(self) -> None:
        self.bar.stop()


class StepBar:
    """Shows steps: as a bar on a terminal, as lines elsewhere. Use as a context manager.

    counts: see `new_bar`.
    """

    def __init__(self, *, counts: bool = True) -> None:
        self._bar = new_bar(counts=counts) if sys.stderr.isatty() else None

    @property
    def is_bar(self) -> bool:
        return self._bar is not None

    def __enter__(self) -> StepBar:
        if self._bar is not None:
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def count(self, done: float, total: float | None) -> None:
        """Say how many steps are done, and of how many."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def say(self, text: str, *, lasting: bool = False) -> None:
        """Say what is being done. lasting: whether a terminal keeps it, whole, as a line above the bar."""
        if self._bar is None:
            print(flat(text) if lasting else brief(text), file=sys.stderr, flush=True)
        elif lasting:
            self._bar.console.print(flat(text), markup=False, highlight=False)
        else:
            self._bar.update(self._task, description=brief(text)[:70])
