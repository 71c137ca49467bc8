"""The texts of a history that its formats share: the order of its cases, their names and changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ssmperf import Case, CaseHistory, History
from ssmperf.suitekit import commit_text

from ...rows import units

MOST_LEFT_OUT = 12
LEFT_OUT = "left out"
USUAL = ("suite", "recurrence", "model", "backend", "shape", "dtype", "pass_")
NAMED = ("model", "backend", "shape", "dtype", "pass")


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
