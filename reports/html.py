"""One self-contained page: everything inlined, nothing fetched, all text from outside escaped."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import compare_runs, report

from . import best, charts, compare, details, frames, heat, palette, units
from .exports import deliver

if TYPE_CHECKING:
    from ssmperf import Run

TEMPLATES = Path(__file__).parent / "templates"
FILTERS = ("run", "subject", "backend", "dtype", "pass", "status")
_DATA = ("details", "charts", "looks")  # for the page's scripts
_TICKS = {"_s": "~s", "_j": "~s", "_w": "~s", "_hz": "~s", "_bytes": "~s", "_bytes_per_s": "~s",
          "_per_s": "~s", "_fraction": "~%"}  # fmt: skip


@report("html")
def html(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """The page as text, or into a file. The same runs give the same bytes."""
    return deliver(_render(_page(runs)), destination)


def _render(page: Mapping[str, Any]) -> str:
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [(TEMPLATES / name).read_text() for name in ("table.js", "charts.js")]
    if page["charts"]:
        from plotly.offline import get_plotlyjs

        scripts.insert(0, get_plotlyjs())
    return environment.get_template("page.html").render(
        **{name: value for name, value in page.items() if name not in _DATA},
        data={name: markupsafe.Markup(script_json(page[name])) for name in _DATA},
        style=markupsafe.Markup((TEMPLATES / "page.css").read_text()),
        scripts=[markupsafe.Markup(script) for script in scripts],
    )


def script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in; beyond ASCII everything is escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(runs: Sequence[Run]) -> dict[str, Any]:
    table = frames.frame(runs)
    parts = {
        name: (section, frames.ranked(table[table["suite"] == name], section["rank"]))
        for name, section in frames.sections(runs, table).items()
    }
    ordered = [index for _, rows in parts.values() for index in rows.index]
    places = {index: place for place, index in enumerate(ordered)}
    drawn: list[dict[str, Any]] = []
    views = [
        _section(name, section, rows, places, drawn, number)
        for number, (name, (section, rows)) in enumerate(parts.items(), 1)
    ]
    names = [str(name) for name in table["backend"]]
    looks = palette.marks(names, frames.BASELINE)
    winners = best.contests(runs)
    return {
        "title": " · ".join(frames.run_names(runs)) or "no runs",
        "comparison": compare.view(compare_runs(*runs)) if len(runs) == 2 else None,
        "best": {"headings": best.HEADINGS, "rows": list(map(best.cells, winners))} if winners else None,
        "runs": _runs(runs, table),
        "summary": _summary(table, list(parts.values())),
        "sections": views,
        "problems": details.problems(table),
        "environments": details.environments(runs),
        "looks": {
            name: {"colour": colour, "mark": looks[name][0]}
            for name, colour in palette.colours(names, frames.BASELINE).items()
        },
        "details": details.rows(rows for _, rows in parts.values()),
        "charts": drawn,
    }


def _runs(runs: Sequence[Run], table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "path": str(run.path),
            "created": units.plain(run.meta.get("created")),
            "command": _command(run.meta),
            "hardware": _hardware(table[table["run"] == name]),
            "cases": len(run.records),
            "planned": (run.meta.get("plan") or {}).get("cases"),
        }
        for name, run in zip(frames.run_names(runs), runs, strict=True)
    ]


def _command(meta: Mapping[str, Any]) -> str:
    """The command line that made a run; empty for one made from Python."""
    argv = [str(word) for word in meta.get("argv") or ()]
    return units.plain(meta.get("command")) or units.plain(shlex.join(["ssmperf", *argv]) if argv else "")


def _hardware(rows: pd.DataFrame) -> str:
    names = rows["hardware"].where(rows["hardware"].notna(), rows["device"])
    return ", ".join(dict.fromkeys(map(units.plain, names)))


def _summary(table: pd.DataFrame, parts: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> dict[str, Any]:
    contested = [(section, rows) for section, rows in parts if section["rank"]]
    timed = [part for part in contested if units.suffix(part[0]["rank"]) == "_s"] or contested
    wins: dict[str, int] = {}
    for _, rows in timed:
        for name, count in frames.wins(rows).items():
            wins[name] = wins.get(name, 0) + count
    unsettled = int((table["converged"] == False).sum()) if "converged" in table else 0  # noqa: E712
    return {
        "cases": len(table),
        "statuses": frames.status_counts(table),
        "models": sorted({str(name) for name in table["model"].dropna()}) or sorted(set(table["subject"])),
        "backends": sorted(set(table["backend"])),
        "wins": sorted(wins.items(), key=lambda win: (-win[1], win[0])),
        "contests": sum(wins.values()),
        "unsettled": unsettled,
    }


def _section(
    name: str,
    section: dict[str, Any],
    rows: pd.DataFrame,
    places: Mapping[Any, int],
    drawn: list[dict[str, Any]],
    number: int,
) -> dict[str, Any]:
    numbers = frames.shown_columns(rows, section)
    if not section["rank"] and rows["error_ratio"].notna().any():
        numbers.append("error_ratio")
    axes = frames.varying_axes(rows)
    filters = tuple(dict.fromkeys(("run", section["rows"], *FILTERS)))
    named = [*axes, "subject", "backend", "status", "shape", "dtype", "pass"]
    empty = rows[numbers].isna().all(axis=1)
    # a row without numbers says its reason in their place; only others need a column for it
    reason = ["reason"] if rows.loc[~empty, "reason"].notna().any() or not numbers else []
    columns = [*named, *numbers, *reason]
    group = None
    lines = []
    for index, key, row in zip(rows.index, frames.keys(rows), frames.records(rows), strict=True):
        shown = named if empty[index] and numbers else columns
        lines.append({
            "place": places[index],
            "first": key != group,
            "fastest": row["fastest"] and row["rivals"] > 1,
            "filters": {axis: units.plain(row[axis]) for axis in filters},
            "cells": [_cell(row, column, section["rank"], column in numbers) for column in shown],
            "reason": units.plain(row["reason"]) if shown is named else None,
        })  # fmt: skip
        group = key
    first = len(drawn)
    for chart in section["charts"]:
        drawn.append(_chart(chart, rows))
    return {
        "id": f"suite-{number}",
        "name": name,
        "title": section["title"],
        "question": section["question"],
        "span": len(numbers) + len(reason),
        "columns": [(column, units.label(column), column in numbers) for column in columns],
        "rows": lines,
        "filters": [
            (axis, units.label(axis), values)
            for axis in filters
            if len(values := sorted({line["filters"][axis] for line in lines})) > 1
        ],
        "matrices": heat.matrices(rows, section["rank"], section["split"], section["rows"], section["note"]),
        "matrix_rows": section["rows"],
        "rank": units.label(section["rank"]) if section["rank"] else None,
        "charts": [(i, drawn[i]) for i in range(first, len(drawn)) if drawn[i]["panels"]],
        "statuses": frames.status_counts(rows),
        "wins": list(frames.wins(rows).items()),
    }


def _cell(row: Mapping[str, Any], column: str, rank: str | None, is_number: bool) -> dict[str, Any]:
    """What a table cell shows, and `sort`: its number in full where it has one."""
    value = row[column]
    cell = {"name": column, "number": is_number, "sort": None, "note": "", "tilde": False}
    if not is_number:
        return {**cell, "text": units.plain(value)}
    if isinstance(value, (int, float)) and not units.missing(value):
        cell["sort"] = repr(float(value))
    if column == rank and not units.missing(value):
        low, high = units.interval_names(column)
        cell["note"] = units.spread(value, row.get(low), row.get(high))
        cell["tilde"] = row.get("converged") is False
    return {**cell, "text": units.number(column, value)}


def _chart(chart: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    panels = charts.panels(chart, rows)
    axes = charts.selectors(chart, rows)
    lines = [line for panel in panels.values() for line in panel]
    return {
        "title": chart["title"] or f"{units.label(chart['y'])} against {units.label(chart['x'])}",
        "series": chart["series"],
        "x": units.axis_title(chart["x"]),
        "y": units.label(chart["y"]),
        "ticks": _TICKS.get(units.suffix(chart["y"]), "~g" if not chart["log"] else ".0e"),
        "unit": units.unit(chart["y"]) if units.suffix(chart["y"]) != "_per_s" else "",
        "log": bool(chart["log"]),
        "facet": units.label(chart["facet"]),
        "axes": [
            {
                "name": axis,
                "label": units.label(axis),
                "values": sorted({line["axes"][axis] for line in lines}),
            }
            for axis in axes
        ],
        "panels": [{"name": name, "lines": panel} for name, panel in panels.items()],
    }
