"""All suites at a glance: the cells of their table, their charts, and their block on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..rows import units
from ..rows.joined import Glance
from . import grids

HEADINGS = ("time / least", "memory / least", "error / tolerance", "right to T", "envelope", "learned")
TEXTS = ("envelope", "learned")  # headings of cells that hold no number
PLACE = ("model", "dtype", "where")
# the values drawn against the time, and the format of their ticks
CHARTS = (("memory", "memory over the least", "~s"), ("error", "error / tolerance", ".0e"))
FRONT = "front of these two"
MOST_LINES = 20  # on a terminal; of more, those on the front
MOST_ON_FRONT = 60  # of these


def cells(each: Glance) -> tuple[str, ...]:
    """Give a line's cells as text, in the order of HEADINGS."""
    return (
        _over_least(each.slowness),
        _over_least(each.memory),
        "–" if each.error is None else f"{each.error:.2g}",
        _length(each),
        "; ".join(each.envelopes) or "–",
        "; ".join(f"{task}: {text}" for task, text in each.learned.items()) or "–",
    )


def _over_least(value: float | None) -> str:
    """Format how many times the least value it is, without the sign that elsewhere means faster."""
    return "–" if value is None else f"{value:.3g}"


def views(found: Sequence[Glance]) -> dict[str, Any]:
    """Give the headings and lines of the page's table; `first` marks the first line of a place."""
    lines: list[dict[str, Any]] = []
    texts = [cells(each) for each in found]
    used = [place for place, _ in enumerate(HEADINGS) if any(line[place] != "–" for line in texts)]
    for each, line in zip(found, texts, strict=True):
        first = not lines or lines[-1]["place"] != each.place
        shown = [(line[place], HEADINGS[place] not in TEXTS) for place in used]
        lines.append({"place": each.place, "backend": each.backend, "front": each.front, "first": first,
                      "cells": shown, "mark": each.mark})  # fmt: skip
    return {"headings": [(HEADINGS[place], HEADINGS[place] not in TEXTS) for place in used], "lines": lines}


def print_glances(console: Console, found: Sequence[Glance]) -> None:
    """Print one line per model and backend, those on the Pareto front marked; nothing if there are none."""
    shown = list(found)
    if len(found) > MOST_LINES:
        shown = [each for each in found if each.front][:MOST_ON_FRONT]
    if not shown:
        return
    console.print(Text("All suites at a glance", style="bold"))
    console.print()
    seen = views(shown)
    wheres = {each.place[2] for each in shown}
    axes = [name for name in PLACE if name != "where" or len(wheres) > 1]
    headings = ["", *axes, "backend", *(heading for heading, _ in seen["headings"]), ""]
    cells = []
    for each, line in zip(shown, seen["lines"], strict=True):
        style = "bold green" if each.front else ""
        name = Text(each.backend, style=style)
        if each.mark:
            name.append(f" ({each.mark})", style="dim")
        place = dict(zip(PLACE, each.place, strict=True))
        numbers = [Text(text) for text, _ in line["cells"]]
        front = Text("▸" if each.front else " ", style=style)
        cells.append([front, *(Text(place[axis], style="cyan") for axis in axes), name, *numbers, Text("")])
    dropped = grids.narrow(console.width + grids.REASON_WIDTH, headings, cells)
    grid = grids.grid()
    for heading in headings:
        number = heading.replace("\n", " ") in HEADINGS and heading not in TEXTS
        grid.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for texts in cells:
        grid.add_row(*texts)
    console.print(Padding(grid, (0, 0, 1, 1)))
    notes = ["▸ on the Pareto front: none is better in time, memory, error or length and as good in the rest"]
    if len(shown) < len(found):
        notes.append(f"and {len(found) - len(shown)} more: the page has them all")
    if dropped:
        notes.append(f"too narrow here for: {', '.join(dropped)}")
    for note in notes:
        console.print(Text(f"  {note}", style="dim"))
    console.print()


def charts(found: Sequence[Glance]) -> list[dict[str, Any]]:
    """Give the data of scatters of memory and error against time, one panel per model."""
    return [
        chart for field, title, ticks in CHARTS if (chart := _scatter(found, field, title, ticks))["panels"]
    ]


def _scatter(found: Sequence[Glance], field: str, title: str, ticks: str) -> dict[str, Any]:
    drawn = [
        each for each in found if each.slowness is not None and (getattr(each, field) or 0) > 0
    ]  # both axes are logarithmic
    places: dict[tuple[str, str, str], list[Glance]] = {}
    for each in drawn:
        places.setdefault(each.place, []).append(each)
    panels: dict[str, list[dict[str, Any]]] = {}
    for place, members in places.items():
        if len(members) > 1:
            lines = [_point(each, field, title) for each in members]
            panels.setdefault(place[0], []).extend([*lines, *_front(members, field)])
    kept = [line for lines in panels.values() for line in lines]
    axes = [
        {"name": name, "label": units.label(name), "values": sorted({line["axes"][name] for line in kept})}
        for name in PLACE[1:]
    ]
    return {
        "title": f"{title[:1].upper()}{title[1:]} against time over the least",
        "series": "backend",
        "x": "time over the least",
        "y": title,
        "ticks": ticks,
        "unit": "",
        "log": True,
        "log_x": True,
        "scatter": True,
        "facet": "model",
        "axes": [axis for axis in axes if len(axis["values"]) > 1],
        "panels": [{"name": name, "lines": lines} for name, lines in sorted(panels.items())],
    }


def _point(each: Glance, field: str, title: str) -> dict[str, Any]:
    """Give a backend's point: full on the front, hollow elsewhere, and faint if it is wrong."""
    words = "on the front" if each.front else each.mark or "not on the front"
    values = f"time over the least {_over_least(each.slowness)}, {title} {getattr(each, field):.3g}"
    text = f"{each.backend}: {values}\n{' · '.join(each.place)}\n{words}"
    beside = "beside" if each.standing in ("competes", "beside") else "wrong"
    return {
        **_line(each.backend, each, [float(each.slowness or 0)], [float(getattr(each, field))], [text]),
        "standing": "competes" if each.front else beside,
        "mark": each.mark if each.standing != "competes" else "",
    }


def _front(members: Sequence[Glance], field: str) -> Iterator[dict[str, Any]]:
    """Give the steps below which no backend that competes lies, as a faint line."""
    points = sorted(
        (float(each.slowness or 0), float(getattr(each, field)))
        for each in members
        if each.standing == "competes"
    )
    steps: list[tuple[float, float]] = []
    for x, y in points:
        if not steps:
            steps.append((x, y))
        elif y < steps[-1][1]:
            steps += [(x, steps[-1][1]), (x, y)]
    if len(steps) > 1:
        xs, ys = ([step[place] for step in steps] for place in (0, 1))
        yield {**_line(FRONT, members[0], xs, ys, [FRONT] * len(xs)), "reference": 1}


def _line(name: str, each: Glance, x: list[float], y: list[float], text: list[str]) -> dict[str, Any]:
    """Give a line of a chart, as `charts.panels` does."""
    axes = dict(zip(PLACE[1:], each.place[1:], strict=True))
    return {"series": name, "axes": axes, "rest": "", "x": x, "y": y, "below": [], "above": [], "text": text,
            "standing": "competes", "mark": "", "reference": 0}  # fmt: skip


def _length(each: Glance) -> str:
    """Write up to which length a line is right; with ≥ if the largest one tried is."""
    if each.longest is None:
        return "nowhere" if each.limited else "–"
    return f"{each.longest:,}" if each.limited else f"≥{each.longest:,}"
