"""How all suites at a glance look: the cells of their table, their charts, and their block on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import units
from .joined import Glance

HEADINGS = ("time", "memory", "error / tolerance", "right to T", "envelope", "learned")
TEXTS = ("envelope", "learned")  # headings of cells that hold no number
PLACE = ("model", "dtype", "where")
CHARTS = (("memory", "memory over the least"), ("error", "error / tolerance"))  # against the time
FRONT = "front of these two"


def cells(each: Glance) -> tuple[str, ...]:
    """Give a line's cells as text, in the order of HEADINGS."""
    return (
        units.ratio(each.slowness),
        units.ratio(each.memory),
        "–" if each.error is None else f"{each.error:.2g}",
        _length(each),
        "; ".join(each.envelopes) or "–",
        "; ".join(f"{task}: {text}" for task, text in each.learned.items()) or "–",
    )


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


def charts(found: Sequence[Glance]) -> list[dict[str, Any]]:
    """Give the data of scatters of memory and error against time, one panel per model."""
    return [chart for field, title in CHARTS if (chart := _scatter(found, field, title))["panels"]]


def _scatter(found: Sequence[Glance], field: str, title: str) -> dict[str, Any]:
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
        "ticks": "~s",
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
    values = f"time {units.ratio(each.slowness)}, {title} {getattr(each, field):.3g}"
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
