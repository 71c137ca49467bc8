"""The history of cases over many runs as a terminal table: one line per case, with its course in letters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssmperf import Case, CaseHistory, History, Step, commit_text, report

from . import units
from .exports import deliver
from .tables import terminal_text

MOST_ROWS = 60
MOST_LEFT_OUT = 12
LEFT_OUT = "left out"
MOST_STEPS = 6  # named in a row, the last ones
DISTINCT = 0.01  # least steps that differ by less are told as one
WIDTH = 30  # letters of a course
BARS = "▁▂▃▄▅▆▇█"
USUAL = ("suite", "recurrence", "model", "backend", "shape", "dtype", "pass_")
NAMED = ("model", "backend", "shape", "dtype", "pass")
NUMBERS = ("runs", "first", "last", "change")


@report("table", of="history")
def table(history: History, destination: Path | None = None) -> str | None:
    """Show the cases' courses, those that people act on first, then omissions and the conclusions."""
    listed = ordered(history)
    lines: list[Any] = []
    for device in dict.fromkeys(each.device for each in listed):
        members = [each for each in listed if each.device == device]
        lines += [Text(units.plain(device), style="bold"), _grid(members[:MOST_ROWS], history.threshold)]
        if len(members) > MOST_ROWS:
            more = len(members) - MOST_ROWS
            lines.append(Text(f"and {more} more: --json and --html have them all", style="dim"))
    lines += [Text(text, style="yellow") for text in left_out(history)]
    lines.append(Text(history.could_have_found))
    lines.append(Text(history.conclusion, style="bold red" if history.behind else "bold"))
    return deliver(terminal_text(lines, plain=destination is not None), destination)


def ordered(history: History) -> list[CaseHistory]:
    """List the cases that stand behind first, then those with steps, then the others."""
    return sorted(history.cases, key=lambda each: (each.device, not each.behind, not each.steps))


def named(case: Case) -> list[str]:
    """Name a case by its columns `NAMED`."""
    return list(map(units.plain, (case.subject, case.backend, case.shape, case.dtype, case.pass_)))


def varying(cases: Sequence[Case]) -> list[str]:
    """List the fields of a case beside the usual ones, and the suite, that take several values."""
    others = [field.name for field in dataclasses.fields(Case) if field.name not in USUAL]
    return [name for name in ("suite", *others) if len({getattr(case, name) for case in cases}) > 1]


def change(ratio: float) -> str:
    """Write a ratio as a change, such as +5.2 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def interval(low: float, high: float) -> str:
    return f"{change(low)} to {change(high)}"


def step_text(step: Step) -> str:
    """Describe a step with its commit and date, and other changes there."""
    where = f"{change(step.ratio)} at {commit_text(step.after)} ({step.after.date:%Y-%m-%d})"
    return where + ", fresh" * step.fresh + " (environment changed too)" * bool(step.changes)


def alarm_text(history: CaseHistory) -> str:
    """Describe the raised alarm of a case; empty if it has none."""
    alarm = history.alarm
    if alarm is None:
        return ""
    return f"creeps: {change(alarm.ratio)} since {commit_text(alarm.since)} ({alarm.since.date:%Y-%m-%d})"


def left_out(history: History) -> list[str]:
    """List omissions with their reasons: a few texts and the number of the others.

    A text about a part of a run says itself what is left out; the run is not.
    """
    texts = [each if LEFT_OUT in each else f"{LEFT_OUT}: {each}" for each in history.left_out[:MOST_LEFT_OUT]]
    more = len(history.left_out) - len(texts)
    return [*map(units.plain, texts), *([f"{LEFT_OUT}: {more} more"] if more else [])]


def course(values: Sequence[float], threshold: float, width: int = WIDTH) -> str:
    """Draw values as bars of eight heights, by their logs; a narrow range is not stretched.

    With more values than `width`, each bar is the middle one of several.
    """
    logs = [math.log(value) for value in values]
    count = min(width, len(logs))
    parts = [logs[i * len(logs) // count : (i + 1) * len(logs) // count] for i in range(count)]
    middles = [sorted(part)[len(part) // 2] for part in parts]
    low, high = min(middles), max(middles)
    margin = max(0.0, 2 * math.log1p(threshold) - (high - low)) / 2
    low, span = low - margin, high - low + 2 * margin
    return "".join(BARS[min(len(BARS) - 1, int(len(BARS) * (each - low) / span))] for each in middles)


def _grid(members: Sequence[CaseHistory], threshold: float) -> Table:
    more = varying([each.case for each in members])
    least = min((each.least_step for each in members if each.least_step is not None), default=None)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in (*map(units.label, more), *NAMED, *NUMBERS, "course", "steps"):
        justify: Any = "right" if heading in NUMBERS else "left"
        grid.add_column(heading, justify=justify, no_wrap=heading != "steps")
    for each in members:
        first, last = each.points[0].value, each.points[-1].value
        cells = [units.plain(getattr(each.case, name)) for name in more]
        cells += [*named(each.case), str(len(each.points))]
        cells += [units.number(each.field, first), units.number(each.field, last), change(each.change)]
        cells.append(course([point.value for point in each.points], threshold))
        grid.add_row(*map(Text, cells), Text(_notes(each, least), style="bold red" if each.behind else ""))
    return grid


def _notes(history: CaseHistory, least: float | None) -> str:
    steps = history.steps[-MOST_STEPS:]
    earlier = len(history.steps) - len(steps)
    texts = [f"{earlier} earlier" if earlier else "", *map(step_text, steps), alarm_text(history)]
    if least is not None and (history.least_step is None or history.least_step > least + DISTINCT):
        texts.append(f"could overlook {history.overlooks}")
    return "; ".join(filter(None, texts))
