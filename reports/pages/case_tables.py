"""The tables of cases as the pages' script `table.js` draws them: by columns, each fact once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = 7  # of a number to sort by


@dataclass(frozen=True, slots=True)
class Column:
    """A column. cells: per row a text; None is a number that is missing.

    A number is a list of its text and, as far as it has them, the value to sort by, a note, and whether its
    interval did not settle. A column that only filters use is not `shown`.
    """

    name: str
    label: str
    cells: Sequence[Any]
    number: bool = False
    shown: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "cells": self.cells, "number": self.number, "shown": self.shown}


def number_cell(text: str, value: float | None = None, note: str = "", tilde: bool = False) -> list[Any]:
    """Give the cell of a number."""
    rounded = None if value is None else float(f"{value:.{_DIGITS}g}")
    if tilde:
        return [text, rounded, note, True]
    if note:
        return [text, rounded, note]
    return [text] if rounded is None else [text, rounded]


def table(
    columns: Sequence[Column],
    reasons: Sequence[str],
    *,
    groups: Sequence[int] = (),
    best: Mapping[int, bool] | None = None,
    word: str = "",
    marks: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Give a table's data. A row of which all numbers are missing shows its reason in their place.

    reasons: one per row, also those that no column shows. groups: the first rows of comparisons. best: the
    rows in the first place, and whether they share it. word: the table's word for them. marks: texts beside
    a backend.
    """
    return {
        "columns": [column.to_json() for column in columns],
        "reasons": {place: reason for place, reason in enumerate(reasons) if reason},
        "groups": list(groups),
        "best": best or {},
        "word": word,
        "marks": marks or {},
    }


def details(listed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give the details of the rows. listed: per row its `fields`, and other facts by name.

    A field is a name, a text, and the exact number or an empty text. Empty values are left out; those
    that all rows share are written once.
    """
    return {
        "fields": _fields([facts["fields"] for facts in listed]),
        "rows": [
            {name: value for name, value in facts.items() if value and name != "fields"} for facts in listed
        ],
    }


def _fields(listed: Sequence[Sequence[Sequence[str]]]) -> list[dict[str, Any]]:
    """Turn the fields of each row into columns; a name that a row has twice has two columns."""
    columns: dict[tuple[str, int], list[Any]] = {}
    for place, fields in enumerate(listed):
        seen: dict[str, int] = {}
        for name, text, exact in fields:
            seen[name] = seen.get(name, 0) + 1
            column = columns.setdefault((name, seen[name]), [None] * len(listed))
            column[place] = [text, exact] if exact else text
    return [
        {"name": name, "same": cells[0]}
        if all(cell == cells[0] for cell in cells)
        else {"name": name, "rows": cells}
        for (name, _), cells in columns.items()
    ]
