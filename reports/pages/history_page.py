"""The page of a history: changes by commit, and one chart per case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssmperf import CaseHistory, History, Step
from ssmperf.suitekit import commit_text, report

from ..delivery import deliver
from ..rows import units
from ..views.texts import history as texts
from .html import render

FILTERS = ("device", "suite", "model", "backend", "pass")


@report("html", of="history")
def html(history: History, destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same runs give the same bytes."""
    data = {"courses": [_course(each) for each in texts.ordered(history)]}
    return deliver(render("history.html", _page(history), data, ("history.js",), plots=True), destination)


def _page(history: History) -> dict[str, Any]:
    """Give the data of the page's template."""
    listed = texts.ordered(history)
    more = texts.varying([each.case for each in listed])
    values = {name: sorted({_filters(each)[name] for each in listed}) for name in FILTERS}
    return {
        "title": f"History of {len(listed)} cases",
        "runs": [],
        "conclusion": history.conclusion,
        "could_have_found": history.could_have_found,
        "behind": bool(history.behind),
        "left_out": texts.left_out(history),
        "filters": {name: found for name, found in values.items() if len(found) > 1},
        "steps": [
            _step(step, each)
            for step, each in sorted(
                ((step, each) for each in listed for step in each.steps),
                key=lambda pair: pair[0].after.date,
                reverse=True,
            )
        ],
        "alarms": [_alarm(each) for each in listed if each.alarm],
        "cases": [
            {
                "title": _title(each, more),
                "filters": _filters(each),
                "note": _note(each),
                "behind": each.behind,
            }
            for each in listed
        ],
    }


def _filters(history: CaseHistory) -> dict[str, str]:
    case = history.case
    chosen = (history.device, case.suite, case.subject, case.backend, case.pass_)
    return dict(zip(FILTERS, map(units.plain, chosen), strict=True))


def _title(history: CaseHistory, more: list[str]) -> str:
    others = [units.plain(getattr(history.case, name)) for name in more]
    return " · ".join([*texts.named(history.case), *others])


def _note(history: CaseHistory) -> str:
    first, last = (units.number(history.field, history.points[end].value) for end in (0, -1))
    parts = [f"{first} → {last} ({texts.change(history.change)})", texts.alarm_text(history)]
    parts.append(f"could overlook {history.overlooks}")
    return "; ".join(filter(None, parts))


def _step(step: Step, history: CaseHistory) -> dict[str, Any]:
    """Give a row of the table of steps."""
    return {
        "filters": _filters(history),
        "direction": "slower" if step.slower else "faster",
        "fresh": step.fresh,
        "case": _title(history, []),
        "ratio": texts.change(step.ratio),
        "interval": texts.interval(step.low, step.high),
        "date": units.plain(step.after.origin.date),
        "commit": commit_text(step.after),
        "before": commit_text(step.before),
        "tag": units.plain(step.after.origin.tag),
        "changes": units.plain("; ".join(step.changes)),
    }


def _alarm(history: CaseHistory) -> dict[str, Any]:
    """Give a row of the table of alarms."""
    alarm = history.alarm
    assert alarm is not None
    return {
        "filters": _filters(history),
        "case": _title(history, []),
        "ratio": texts.change(alarm.ratio),
        "interval": texts.interval(alarm.low, alarm.high),
        "since": f"{commit_text(alarm.since)} ({alarm.since.date:%Y-%m-%d})",
        "baseline": f"{commit_text(alarm.baseline)} ({alarm.baseline.date:%Y-%m-%d})",
    }


def _course(history: CaseHistory) -> dict[str, Any]:
    """Give the chart of a case: its values by date, and its steps."""
    points = history.points
    bounded = all(point.low is not None and point.high is not None for point in points)
    return {
        "unit": units.unit(history.field),
        "axis": units.label(history.field),
        "dates": [point.date.isoformat() for point in points],
        "y": [point.value for point in points],
        "below": [max(0.0, point.value - (point.low or 0.0)) for point in points] if bounded else [],
        "above": [max(0.0, (point.high or 0.0) - point.value) for point in points] if bounded else [],
        "text": [_hover(history, place) for place in range(len(points))],
        "steps": [
            {
                "place": step.place,
                "slower": step.slower,
                "text": f"{texts.change(step.ratio)} {commit_text(step.after)}",
            }
            for step in history.steps
        ],
    }


def _hover(history: CaseHistory, place: int) -> str:
    """Describe a point in lines of text."""
    point = history.points[place]
    lines = [
        units.number(history.field, point.value),
        f"{point.date:%Y-%m-%d %H:%M} · {commit_text(point)}",
        units.plain(point.origin.tag),
        units.plain(point.run),
    ]
    return "\n".join(filter(None, lines))
