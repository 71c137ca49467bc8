"""A suite's part of the HTML page: its matrices, its charts, its filters and one table row per case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssmperf import Chart, Section

from . import absent, charts, contests, crossings, frames, heat, maps, ranking, units

FILTERS = ("run", "subject", "backend", "dtype", "pass", "status")
_TICKS = {"_s": "~s", "_j": "~s", "_w": "~s", "_hz": "~s", "_bytes": "~s", "_bytes_per_s": "~s",
          "_per_s": "~s", "_fraction": "~%"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a suite's table: those that name the case, those with its numbers, and those with texts.

    texts: the suite's conclusion, and `reason`, where there are any.
    """

    named: tuple[str, ...]
    numbers: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.named, *self.numbers, *self.texts)


def view(section: Section, rows: pd.DataFrame, first_place: int) -> dict[str, Any]:
    """Give the page's data of a suite whose rows `ranked` has sorted.

    first_place: the place of the suite's first row among all rows of the page.
    """
    columns = _columns_of(section, rows)
    present, left_out = absent.split(rows)
    filters = tuple(dict.fromkeys(("run", section.rows, *FILTERS)))
    drawn = [_chart(chart, rows) for chart in section.charts]
    return {
        "title": section.title,
        "question": section.question,
        "reason_columns": len(columns.numbers) + len(columns.texts),
        "columns": [(name, units.label(name), name in columns.numbers) for name in columns.all],
        "rows": _table_rows(section, rows, first_place, columns, filters),
        "filters": _filters(rows, filters),
        "matrices": heat.matrices(present, section),
        "left_out": left_out,
        "matrix_rows": section.rows,
        "maps": maps.maps(rows, section),
        "rank": units.label(section.rank) if section.rank else None,
        "first": "fastest" if units.suffix(section.rank or "") == "_s" else "least",
        "sums": [
            contests.statement(contest)
            for contest in contests.contests_of(rows, section.rank)
            if contest["winners"]
        ],
        "crossings": [crossing.statement for crossing in crossings.crossings(rows, section.rank)],
        "charts": [chart for chart in drawn if chart["panels"]],
        "statuses": frames.status_counts(rows),
        "wins": list(ranking.wins(rows).items()),
    }


def _columns_of(section: Section, rows: pd.DataFrame) -> _Columns:
    numbers = frames.shown_columns(rows, section)
    if not section.rank and rows["error_ratio"].notna().any():
        numbers.append("error_ratio")
    named = (*frames.varying_axes(rows), "subject", "backend", "status", "shape", "dtype", "pass")
    # a row without numbers shows its reason in their place; other rows with a reason need a column for it
    empty = rows[numbers].isna().all(axis=1)
    needed = not numbers or any(map(frames.reason, frames.records(rows[~empty])))
    texts = [*frames.conclusion(rows, section), *(["reason"] if needed else [])]
    return _Columns(named, tuple(numbers), tuple(texts))


def _table_rows(
    section: Section, rows: pd.DataFrame, first_place: int, columns: _Columns, filters: Sequence[str]
) -> list[dict[str, Any]]:
    """Give each case its cells; `first` marks the first row of each comparison."""
    lines = []
    group = None
    numbers = columns.numbers
    keyed = zip(frames.keys(rows), frames.records(rows), strict=True)
    for place, (key, row) in enumerate(keyed, first_place):
        without_numbers = bool(numbers) and all(units.missing(row[name]) for name in numbers)
        shown = columns.named if without_numbers else columns.all
        lines.append({
            "place": place,
            "first": key != group,
            "fastest": row["fastest"],
            "tied": row["tied"],
            "mark": ", ".join(filter(None, [units.plain(row["mark"]), frames.elsewhere(row)])),
            "why": frames.reason(row),
            "filters": {axis: units.plain(row[axis]) for axis in filters},
            "cells": [_cell(row, name, section.rank, name in numbers) for name in shown],
            "reason": frames.reason(row) if without_numbers else None,
        })  # fmt: skip
        group = key
    return lines


def _filters(rows: pd.DataFrame, axes: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """List each axis that takes several values, with its label and these values."""
    values = {axis: sorted(set(map(units.plain, rows[axis]))) for axis in axes}
    return [(axis, units.label(axis), values[axis]) for axis in axes if len(values[axis]) > 1]


def _cell(row: Mapping[str, Any], column: str, rank: str | None, is_number: bool) -> dict[str, Any]:
    """Give a table cell's text, and its unrounded number to sort by, if it has one."""
    value = row[column]
    cell = {"name": column, "number": is_number, "sort": None, "note": "", "tilde": False}
    if not is_number:
        return {**cell, "text": frames.reason(row) if column == "reason" else units.plain(value)}
    if isinstance(value, (int, float)) and not units.missing(value):
        cell["sort"] = repr(float(value))
    if column == rank and units.is_number(value):
        low, high = units.interval_names(column)
        spread = units.spread(value, row.get(low), row.get(high))
        cell["note"] = " · ".join(filter(None, [spread, units.host_note(column, row)]))
        cell["tilde"] = row.get("converged") is False
    return {**cell, "text": units.number(column, value)}


def _chart(chart: Chart, rows: pd.DataFrame) -> dict[str, Any]:
    """Give the data from which the page's script draws a chart."""
    panels = charts.panels(chart, rows)
    lines = [line for panel in panels.values() for line in panel]
    return {
        "title": chart.title or f"{units.label(chart.y)} against {units.label(chart.x)}",
        "series": chart.series,
        "x": units.axis_title(chart.x),
        "y": units.label(chart.y),
        "ticks": _TICKS.get(units.suffix(chart.y), ".0e" if chart.log else "~g"),
        "unit": units.unit(chart.y) if units.suffix(chart.y) != "_per_s" else "",
        "log": chart.log,
        "log_x": chart.log or chart.log_x,
        "facet": units.label(chart.facet),
        "axes": [
            {
                "name": axis,
                "label": units.label(axis),
                "values": _values(axis, lines),
            }
            for axis in charts.selectors(chart, rows)
        ],
        "panels": [{"name": name, "lines": panel} for name, panel in panels.items()],
    }


def _values(axis: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the values of a chart's axis: those with the longest lines first, then in alphabetical order."""
    longest: dict[str, int] = {}
    for line in lines:
        value = line["axes"][axis]
        longest[value] = max(longest.get(value, 0), len(line["x"]))
    return sorted(longest, key=lambda value: (-longest[value], value))
