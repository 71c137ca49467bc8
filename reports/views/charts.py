"""The lines of a suite's charts, as plain data that matplotlib and the page's script draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, Chart, Section

from ..rows import frames, units
from . import palette

Look = tuple[str, tuple[str, str]]  # a colour, and a mark by its names in plotly and in matplotlib
STANDINGS = ("competes", "beside", "wrong")  # in the order in which lines are listed
_DIGITS, _SPREAD_DIGITS = 6, 3  # of a number and of its distance to the ends of its interval, on a page
_FACETS = {"model": "subject"}  # a bare recurrence has no model but a subject


def panels(chart: Chart, rows: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """List the lines of each panel (each value of the chart's facet), in alphabetical order.

    The cases of a line agree in the series and in every axis but x: no line joins cases that differ in two
    things. Lengths with the same number of tokens agree in that instead of in the batch. A case timed as
    another model is drawn there. A line has `series`, `axes` (values of the axes that have a selector),
    `rest` (the other shape dimensions), `x`, `y`, `below` and `above` (distances to the ends of the interval,
    empty without one), `text` (shown on hover), `standing` and `mark`. The last two are those of the point
    whose backend is furthest from competing, and lines that compete come first. Last come the chart's
    references, once per panel and choice of axes; their `reference` is their place, from 1 on; that of other
    lines is 0.
    """
    x, y = chart.x, chart.y
    facet, series = (_FACETS.get(name, name) for name in (chart.facet, chart.series))
    if any(name not in rows for name in (x, y, facet, series)):
        return {}
    drawn = _drawn(chart, rows, facet)
    axes = selectors(chart, rows)
    letters = [letter for letter in DIMENSIONS if letter != x]
    by_tokens = _same_tokens(drawn, facet) if x == "T" else set()
    found: dict[str, dict[tuple[Any, ...], list[dict[str, Any]]]] = {}
    for row in frames.records(drawn.sort_values([x], kind="stable")):
        sizes = {letter: row[letter] for letter in letters if not units.missing(row[letter])}
        tokens = f"{row['B'] * row['T']:,.0f} tokens" if _text(row[facet]) in by_tokens else ""
        if tokens:
            del sizes["B"]
        texts = (f"{letter}{size:.0f}" for letter, size in sizes.items())
        rest = " ".join(filter(None, [tokens, *texts]))
        if x == "shape":
            rest = ""
        # subjects that have no selector are lines of their own
        split = () if "subject" in (facet, series, x) else (_text(row["subject"]),)
        values = tuple(_text(row[axis]) for axis in axes)
        line = (_text(row[series]), values, rest, split)
        found.setdefault(_text(row[facet]), {}).setdefault(line, []).append(row)
    return {
        name: sorted(
            (_line(key, members, chart, axes) for key, members in sorted(found[name].items())),
            key=lambda line: STANDINGS.index(line["standing"]),
        )
        + _references(found[name], chart, axes)
        for name in sorted(found)
    }


def _drawn(chart: Chart, rows: pd.DataFrame, facet: str) -> pd.DataFrame:
    """Select the points of a chart, one per row."""
    shown = (rows["status"] == "ok") & rows[facet].notna()
    if "timed_as" in rows:
        shown &= rows["timed_as"].isna()
    found = _points(rows[shown], chart)
    return found[found[chart.y] > 0] if chart.log else found


def drawn(chart: Chart, rows: pd.DataFrame, panel: str, axes: Mapping[str, str]) -> list[dict[str, Any]]:
    """List the rows that are drawn in a panel at these values of the axes that have a selector."""
    facet = _FACETS.get(chart.facet, chart.facet)
    wanted = {facet: panel, **axes}
    return [
        row
        for row in frames.records(_drawn(chart, rows, facet))
        if all(_text(row[name]) == value for name, value in wanted.items())
    ]


def _same_tokens(rows: pd.DataFrame, facet: str) -> set[str]:
    """Name the panels whose cases differ less in their number of tokens than in their batch."""
    known = rows[rows["B"].notna() & rows["T"].notna()]
    return {
        _text(name)
        for name, part in known.groupby(facet)
        if (part["B"] * part["T"]).nunique() < part["B"].nunique()
    }


def _references(
    lines: Mapping[tuple[Any, ...], list[dict[str, Any]]], chart: Chart, axes: list[str]
) -> list[dict[str, Any]]:
    """List the references of a panel: those of the first record per choice of axes and rest."""
    firsts: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for key, rows in sorted(lines.items()):
        firsts.setdefault(key[1:], rows)
    found = []
    for name in chart.references:
        told = replace(chart, y=name)
        for others, rows in firsts.items():
            members = [row for row in rows if units.is_number(row.get(name))]
            if members:
                line = _line((units.label(name), *others), members, told, axes)
                texts = [f"{units.label(name)}: {units.number(name, row[name])}" for row in members]
                plain = {"standing": STANDINGS[0], "mark": "", "text": texts}
                found.append({**line, **plain, "reference": 1 + chart.references.index(name)})
    return found


def _points(rows: pd.DataFrame, chart: Chart) -> pd.DataFrame:
    """Select the rows that have x and y; a record that holds lists of them gives one row per pair.

    Intervals and references that are lists of the same length are taken apart with them.
    """
    x, y = chart.x, chart.y
    rows = rows[rows[x].notna() & rows[y].notna()]
    if rows[x].map(lambda value: isinstance(value, list)).any():
        lengths = rows[x].map(_length)
        beside = dict.fromkeys((*units.interval_names(y), *chart.references))
        parallel = [name for name in beside if name in rows and (rows[name].map(_length) == lengths).all()]
        rows = rows.explode([x, y, *parallel])
        rows = rows[rows[x].notna() & rows[y].notna()].infer_objects()
    return rows


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1


def looks(table: pd.DataFrame, sections: Iterable[Section]) -> dict[str, Look]:
    """Give a look to each backend, and to each line of the charts that draw something else than backends."""
    found: dict[str, Look] = {}
    others = {_FACETS.get(chart.series, chart.series) for section in sections for chart in section.charts}
    for column in (*sorted((others - {"backend"}) & set(table)), "backend"):
        names = [_text(name) for name in table[column].dropna().unique()]
        baseline = frames.BASELINE if column == "backend" else ""
        marks = palette.marks(names, baseline)
        colours = palette.colours(names, baseline)
        found |= {name: (colour, marks[name]) for name, colour in colours.items() if name}
    return found


def selectors(chart: Chart, rows: pd.DataFrame) -> list[str]:
    """List the axes that vary beside x, series, facet and shape: the reader picks a value of each."""
    used = {_FACETS.get(name, name) for name in (chart.x, chart.series, chart.facet)}
    if chart.series != "backend":  # each series may be on a backend of its own
        rows = rows[rows[chart.x].notna() & rows[chart.y].notna()]
        if rows.groupby(_FACETS.get(chart.series, chart.series))["backend"].nunique().le(1).all():
            used.add("backend")
    if rows.groupby("subject")["operand_source"].nunique().le(1).all():
        used.add("operand_source")  # already part of a bare recurrence's name
    candidates = ["run", "environment", "device", "pass", "dtype", *frames.AXES]
    skipped = {"suite", "model", "recurrence", "shape", *used}
    return [
        axis
        for axis in dict.fromkeys(candidates)
        if axis not in skipped and rows[axis].nunique(dropna=False) > 1
    ]


def _line(key: tuple[Any, ...], rows: list[dict[str, Any]], chart: Chart, axes: list[str]) -> dict[str, Any]:
    series, values, rest, split = key
    y = chart.y
    low, high = units.interval_names(y)
    worst = max(rows, key=lambda row: STANDINGS.index(_standing(row)))
    bounded = all(units.is_number(row.get(low)) and units.is_number(row.get(high)) for row in rows)
    return {
        "series": series,
        "axes": dict(zip(axes, values, strict=True)),
        "rest": " ".join(filter(None, [rest, *split])),
        "x": [_plain_number(row[chart.x]) for row in rows],
        "y": [_plain_number(row[y]) for row in rows],
        "below": [max(0.0, row[y] - row[low]) for row in rows] if bounded else [],
        "above": [max(0.0, row[high] - row[y]) for row in rows] if bounded else [],
        "text": [_hover(row, y) for row in rows],
        "standing": _standing(worst),
        "mark": _text(worst["mark"]),
        "reference": 0,
    }


def _standing(row: Mapping[str, Any]) -> str:
    """Say how a point's backend stands: one of STANDINGS."""
    return row["standing"] if row["standing"] in STANDINGS else STANDINGS[-1]


def _hover(row: Mapping[str, Any], y: str) -> str:
    """Describe a point in lines of text: its value with unit and interval, its case, its speedup."""
    low, high = (row.get(name) for name in units.interval_names(y))
    interval = f"  [{units.number(y, low)}, {units.number(y, high)}]" if units.is_number(low) else ""
    unsettled = " (did not settle)" if row.get("converged") is False else ""
    against = row.get("speedup")
    lines = [
        f"{frames.named(row)}: {units.number(y, row[y])}{interval}{unsettled}",
        f"{units.plain(row['subject'])} · {row['shape']} · {row['dtype']} · {row['pass']}",
        "" if units.missing(against) else f"{units.ratio(against)} against {frames.BASELINE}",
        units.plain(row["standing_reason"]),
    ]
    return "\n".join(filter(None, lines))


def lean(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a chart's data for a page: rounded, and with what all points of a line say in `tail` instead."""
    panels = [{**panel, "lines": [_lean(line) for line in panel["lines"]]} for panel in chart["panels"]]
    return {**chart, "panels": panels}


def _lean(line: Mapping[str, Any]) -> dict[str, Any]:
    told = [text.split("\n") for text in line["text"]]
    least = min(map(len, told), default=1)
    same = 0
    while same < least - 1 and len({lines[-1 - same] for lines in told}) == 1:
        same += 1
    rounded = {
        name: [_rounded(value, _DIGITS if name == "y" else _SPREAD_DIGITS) for value in line[name]]
        for name in ("y", "below", "above")
    }
    heads = ["\n".join(lines[: len(lines) - same]) for lines in told]
    return {
        **line,
        **rounded,
        "text": heads,
        "tail": "\n".join(told[0][len(told[0]) - same :]) if told else "",
    }


def _rounded(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _text(value: Any) -> str:
    return units.plain(value)


def _plain_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _text(value)
    return int(value) if float(value).is_integer() else float(value)
