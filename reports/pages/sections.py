"""A suite's part of the HTML page: its matrices, its charts, its filters and one table row per case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ssmperf.suitekit import Chart, Section

from ..rows import absent, contests, crossings, frames, units
from ..views import charts, heat, maps
from . import case_tables
from .case_tables import Column, number_cell

FILTERS = ("run", "subject", "backend", "dtype", "pass", "status")
_TICKS = {"_s": "~s", "_j": "~s", "_w": "~s", "_hz": "~s", "_bytes": "~s", "_bytes_per_s": "~s",
          "_per_s": "~s", "_fraction": "~%"}  # fmt: skip


def view(section: Section, rows: pd.DataFrame) -> dict[str, Any]:
    """Give the page's data of a suite whose rows `ranked` has sorted; the page's script reads `table`."""
    filters = _filters(rows, tuple(dict.fromkeys(("run", section.rows, *FILTERS))))
    listed = frames.records(rows)
    columns = _columns(section, rows, listed, [axis for axis, *_ in filters])
    present, left_out = absent.split(rows)
    panels = [(chart, charts.panels(chart, rows)) for chart in section.charts]
    return {
        "title": section.title,
        "question": section.question,
        "columns": [column for column in columns if column.shown],
        "table": _table(section, rows, listed, columns),
        "cases": len(rows),
        "filters": filters,
        "matrices": heat.matrices(present, section),
        "left_out": left_out,
        "matrix_rows": section.rows,
        "maps": maps.maps(rows, section),
        "rank": units.label(section.rank) if section.rank else None,
        "sums": [
            contests.statement(contest)
            for contest in contests.contests_of(rows, section.rank)
            if contest["winners"]
        ],
        "crossings": [crossing.statement for crossing in crossings.crossings(rows, section.rank)],
        "charts": [_chart(chart, rows, found) for chart, found in panels if found],
    }


def _columns(
    section: Section, rows: pd.DataFrame, listed: Sequence[Mapping[str, Any]], filtered: Sequence[str]
) -> list[Column]:
    """Give the columns that name the case, those of its numbers, the suite's conclusion, and `reason`.

    `reason` is a column if any row has both numbers and a reason. Filtered axes that are not shown come last.
    """
    numbers = frames.shown_columns(rows, section)
    if not section.rank and rows["error_ratio"].notna().any():
        numbers.append("error_ratio")
    named = (*frames.varying_axes(rows), "subject", "backend", "status", "shape", "dtype", "pass")
    empty = rows[numbers].isna().all(axis=1)
    needed = not numbers or any(
        frames.reason(row) for row, without in zip(listed, empty, strict=True) if not without
    )
    texts = [*named, *numbers, *frames.conclusion(rows, section), *(["reason"] if needed else [])]
    hidden = [axis for axis in filtered if axis not in texts]
    return [
        Column(
            name,
            units.label(name),
            [_number(row, name, section.rank) if name in numbers else _text(row, name) for row in listed],
            number=name in numbers,
            shown=name not in hidden,
        )
        for name in (*texts, *hidden)
    ]


def _table(
    section: Section, rows: pd.DataFrame, listed: Sequence[Mapping[str, Any]], columns: Sequence[Column]
) -> dict[str, Any]:
    """Give the data of a suite's table."""
    keys = frames.keys(rows)
    marks = (", ".join(filter(None, [units.plain(row["mark"]), frames.elsewhere(row)])) for row in listed)
    return case_tables.table(
        columns,
        [*map(frames.reason, listed)],
        groups=[place for place, key in enumerate(keys) if not place or key != keys[place - 1]],
        best={place: bool(row["tied"]) for place, row in enumerate(listed) if row["fastest"]},
        word="fastest" if units.is_time(section.rank) else "least",
        marks={place: mark for place, mark in enumerate(marks) if mark},
    )


def _filters(rows: pd.DataFrame, axes: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """List each axis that takes several values, with its label and these values."""
    values = {axis: sorted(set(map(units.plain, rows[axis]))) for axis in axes}
    return [(axis, units.label(axis), values[axis]) for axis in axes if len(values[axis]) > 1]


def _text(row: Mapping[str, Any], column: str) -> str:
    """Give a cell's text; reasons are in the table's `reasons`."""
    return "" if column == "reason" else units.plain(row[column])


def _number(row: Mapping[str, Any], column: str, rank: str | None) -> list[Any] | None:
    """Give the cell of a number: with its interval in the column by which the suite ranks."""
    value = row[column]
    if units.missing(value):
        return None
    text, note, tilde = units.of_row(column, row), "", False
    if column == rank and units.is_number(value):
        low, high = units.interval_names(column)
        spread = units.spread(value, row.get(low), row.get(high))
        note = " · ".join(filter(None, [spread, units.host_note(column, row)]))
        tilde = row.get("converged") is False
    return number_cell(text, float(value) if isinstance(value, (int, float)) else None, note, tilde)


def _chart(
    chart: Chart, rows: pd.DataFrame, panels: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Give the data from which the page's script draws a chart."""
    return {
        "title": chart.title or f"{units.label(chart.y)} against {units.label(chart.x)}",
        "series": chart.series,
        "x": units.axis_title(chart.x),
        "y": units.label(chart.y),
        "ticks": _TICKS.get(units.suffix(chart.y), ".0e" if chart.log else "~g"),
        "unit": units.unit(chart.y) if units.suffix(chart.y) != "_per_s" else "",
        "most": units.suffix(chart.y).endswith("_per_s"),  # is the best
        "log": chart.log,
        "log_x": chart.log or chart.log_x,
        "facet": units.label(chart.facet),
        "axes": [
            {
                "name": axis,
                "label": units.label(axis),
                "values": _values(axis, panels),
            }
            for axis in charts.selectors(chart, rows)
        ],
        "panels": [{"name": name, "lines": panel} for name, panel in panels.items()],
    }


def _values(axis: str, panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """List the values of a chart's axis: those with the longest lines first, then those in most panels."""
    longest: dict[str, int] = {}
    found: dict[str, set[str]] = {}
    for name, lines in panels.items():
        for line in lines:
            value = line["axes"][axis]
            longest[value] = max(longest.get(value, 0), len(line["x"]))
            found.setdefault(value, set()).add(name)
    return sorted(longest, key=lambda value: (-longest[value], -len(found[value]), value))
