"""The page's table of winners: T and each axis in a column, and no column in which all rows agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rows import units
from ..rows.contests import Contest, axes_that_differ
from ..views import winners

_ALWAYS = ("model", "T", "fastest", "time")
_NUMBERS = ("T", *winners.NUMBERS)


def best_table(found: Sequence[Contest]) -> dict[str, Any]:
    """Give the columns and rows of the table, what all rows share, and the remarks below it."""
    headings, rows = _split(found)
    columns = dict(zip(headings, zip(*rows, strict=True), strict=True))
    same = {name: cells[0] for name, cells in columns.items() if name not in _ALWAYS and len({*cells}) == 1}
    shown = [place for place, name in enumerate(headings) if name not in same]
    return {
        "headings": [(headings[place], headings[place] in _NUMBERS) for place in shown],
        "rows": [[row[place] for place in shown] for row in rows],
        "same": [f"{name} {text}" for name, text in same.items() if text and "\n" not in text],
        "remarks": winners.remarks(found),
    }


def _split(found: Sequence[Contest]) -> tuple[list[str], list[list[str]]]:
    """Give the columns of `winners`, with T and the axes that differ in columns of their own."""
    axes = axes_that_differ(found)
    rows = []
    for contest, cells in zip(found, winners.rows(found), strict=True):
        others = dict(contest["sizes"])
        length = f"{others.pop('T'):,}" if "T" in others else ""
        sizes = " ".join(f"{letter}{size}" for letter, size in others.items())
        values = [units.plain(contest["axes"][axis]) for axis in axes]
        rows.append(_replaced(cells, [length, sizes], [contest["hardware"], *values]))
    labels = [units.label(axis) for axis in axes]
    return _replaced(winners.HEADINGS, ["T", "other sizes"], ["where", *labels]), rows


def _replaced(cells: Sequence[str], shape: Sequence[str], where: Sequence[str]) -> list[str]:
    """Replace the columns `shape` and `where`."""
    columns = dict(zip(winners.HEADINGS, ([cell] for cell in cells), strict=True))
    columns |= {"shape": [*shape], "where": [*where]}
    return [cell for several in columns.values() for cell in several]
