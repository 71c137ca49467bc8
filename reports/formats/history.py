"""The history of cases over many runs as a terminal table: one line per case, with its course in letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssmperf import CaseHistory, History, Step
from ssmperf.suitekit import commit_text, report

from ..delivery import deliver
from ..rows import units
from ..views.texts.history import NAMED, alarm_text, change, left_out, named, ordered, varying
from .tables import terminal_text

MOST_ROWS = 60
MOST_STEPS = 6  # named in a row, the last ones
DISTINCT = 0.01  # least steps that differ by less are told as one
WIDTH = 30  # letters of a course
BARS = "▁▂▃▄▅▆▇█"
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


def step_text(step: Step) -> str:
    """Describe a step with its commit and date, and other changes there."""
    where = f"{change(step.ratio)} at {commit_text(step.after)} ({step.after.date:%Y-%m-%d})"
    return where + ", fresh" * step.fresh + " (environment changed too)" * bool(step.changes)


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
