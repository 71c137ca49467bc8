"""Maps of a suite on the page: rows by columns, with the logarithm of a number as the colour."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ssmperf.suitekit import Section

from ..rows import frames, units

LOWEST, HIGHEST = 1e-8, 1.0  # the values at both ends of the colours


def maps(rows: pd.DataFrame, section: Section) -> list[dict[str, Any]]:
    """Give the maps of a suite, one per run, subject and dtype, with the backends side by side.

    A subject is a model, or a recurrence with all its regimes. Backends that were refused by the plan in all
    cases are left out. Maps with values in one row, as of a model without decay, come last, since the page
    shows the first.
    """
    if not section.map or any(name not in rows for name in section.map):
        return []
    down, across, colour = section.map
    owners = rows["model"].where(rows["model"].notna(), rows["recurrence"])
    keys = {"owner": owners, "dtype": rows["dtype"]}
    if rows["run"].nunique() > 1:
        keys["run"] = rows["run"]
    found = []
    for values, members in rows.groupby(list(keys.values()), sort=True):
        tried = _tried(members, colour)
        if len(tried) > 1:
            label = " · ".join(map(units.plain, values))
            found.append({"label": label, **_map(tried, down, across, colour, section.envelope[:1])})
    return sorted(found, key=lambda each: sum(any(map(_has_value, cells)) for _, cells in each["rows"]) < 2)


def _has_value(cell: Mapping[str, Any] | None) -> bool:
    return cell is not None and cell["kind"] == "level"


def _tried(rows: pd.DataFrame, colour: str) -> pd.DataFrame:
    """Select the rows of backends that gave a value, or failed, in any case."""
    told = rows[rows[colour].notna() | (rows["status"] != "unsupported")]
    return rows[rows["backend"].isin(told["backend"])]


def _map(rows: pd.DataFrame, down: str, across: str, colour: str, order: tuple[str, ...]) -> dict[str, Any]:
    """Give one map: its backends, the columns of each, and its rows in the order of a field, if there is one.

    Rows in which the field has no value, such as the decay span of resets, come last.
    """
    backends = sorted(set(rows["backend"]), key=lambda name: (name != frames.BASELINE, name))
    columns = sorted(set(rows[across].dropna()))
    means = {
        name: members[order[0]].astype(float).mean() if order and order[0] in members else math.nan
        for name, members in rows.groupby(down)
    }
    names = sorted(means, key=lambda name: (math.isnan(means[name]), means[name], str(name)))
    cells = {(row["backend"], row[down], row[across]): row for row in frames.records(rows)}
    return {
        "across": units.label(across),
        "down": units.label(down),
        "colour": units.label(colour),
        "backends": [*map(units.plain, backends)],
        "columns": [f"{value:,.0f}" if units.is_number(value) else units.plain(value) for value in columns],
        "rows": [
            (
                units.plain(name),
                [
                    _cell(cells.get((backend, name, value)), colour)
                    for backend in backends
                    for value in columns
                ],
            )
            for name in names
        ],
    }


def _cell(row: Mapping[str, Any] | None, colour: str) -> dict[str, Any] | None:
    """Give a cell's text, kind, strength from 0 to 1 on a logarithmic scale, and text shown on hover."""
    if row is None:
        return None
    value, status = row.get(colour), units.plain(row["status"])
    hover = " · ".join(filter(None, [f"{units.plain(row['backend'])} {row['shape']}", frames.reason(row)]))
    if status == "unsupported":
        return {"text": "–", "kind": "none", "strength": 0, "hover": hover}
    if status != "ok" or value is None or not units.is_number(value):
        text = units.number(colour, value) if units.is_number(value) else status
        return {"text": text, "kind": "broken", "strength": 1, "hover": f"{status}: {hover}"}
    return {"text": units.number(colour, value), "kind": "level", "strength": level(value), "hover": hover}


def level(value: float) -> float:
    """Place a value between the ends of the colours, by its logarithm."""
    if value <= LOWEST:
        return 0.0
    return round(min(1.0, math.log(value / LOWEST) / math.log(HIGHEST / LOWEST)), 3)
