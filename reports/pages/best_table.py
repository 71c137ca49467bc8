"""The page's table of winners: T as a number, and no column in which all rows agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rows.contests import Contest
from ..views import winners

_ALWAYS = ("model", "T", "fastest", "time")
_NUMBERS = ("T", *winners.NUMBERS)


def best_table(found: Sequence[Contest]) -> dict[str, Any]:
    """Give the columns and rows of the table, what all rows share, and the remarks below it."""
    headings, rows = _with_lengths(found)
    columns = dict(zip(headings, zip(*rows, strict=True), strict=True))
    same = {name: cells[0] for name, cells in columns.items() if name not in _ALWAYS and len({*cells}) == 1}
    shown = [place for place, name in enumerate(headings) if name not in same]
    return {
        "headings": [(headings[place], headings[place] in _NUMBERS) for place in shown],
        "rows": [[row[place] for place in shown] for row in rows],
        "same": [f"{name} {text}" for name, text in same.items() if text and "\n" not in text],
        "remarks": winners.remarks(found),
    }


def _with_lengths(found: Sequence[Contest]) -> tuple[list[str], list[list[str]]]:
    """Split the shape of each row into T and the other sizes."""
    place = winners.HEADINGS.index("shape")
    rows = []
    for contest, cells in zip(found, winners.rows(found), strict=True):
        others = dict(contest["sizes"])
        length = f"{others.pop('T'):,}" if "T" in others else ""
        sizes = " ".join(f"{letter}{size}" for letter, size in others.items())
        rows.append([*cells[:place], length, sizes, *cells[place + 1 :]])
    return [*winners.HEADINGS[:place], "T", "other sizes", *winners.HEADINGS[place + 1 :]], rows
