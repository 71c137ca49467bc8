"""The winners of contests as cells of a table, and the remarks below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..rows import units
from ..rows.contests import Contest, differ, kept_out, notes, statement
from .texts.answers import differing, doubts, measured, unranked

HEADINGS = (
    "model",
    "shape",
    "dtype",
    "pass",
    "where",
    "fastest",
    "time",
    "×sequential",
    "ahead of",
    "by",
    "beside",
    "measured",
)
NUMBERS = ("time", "×sequential", "by")


def rows(found: Sequence[Contest]) -> list[list[str]]:
    """Give each contest's cells as text, in the order of HEADINGS."""
    return [_cells(contest, axes) for contest, axes in zip(found, differing(found), strict=True)]


def remarks(found: Sequence[Contest]) -> list[str]:
    """List where forward and backward have different winners, odd times, and who is kept out and why."""
    split = [each for each in found if each["winners"] and differ(*each["winners"].values())]
    return [*map(statement, split), *notes(found), *kept_out(found)]


def _cells(contest: Contest, axes: Sequence[str]) -> list[str]:
    """Give a contest's cells, one backend per line. axes: those in which the contests differ, as text."""
    winners = [each for each in contest["competitors"] if each["backend"] in contest["fastest"]]
    slower = next((each for each in contest["competitors"] if each not in winners), None)
    return [
        *(contest[name] for name in ("subject", "shape", "dtype", "pass")),
        " · ".join([contest["hardware"], *axes]),
        "\n".join(_winner(contest, each) for each in winners) or "none competes",
        "\n".join(units.number(contest["field"], each["value"]) for each in winners),
        "\n".join(units.ratio(each["speedup"]) for each in winners if each["speedup"] is not None),
        "" if slower is None else slower["backend"],
        "" if slower is None else units.ratio(slower["value"] / contest["value"]),
        "\n".join(unranked(contest, each) for each in contest["beside"]),
        "; ".join([measured(contest) + " (older)" * contest["older"], *doubts(contest)]),
    ]


def _winner(contest: Contest, entry: dict[str, Any]) -> str:
    words = ", ".join(filter(None, ["tied" * contest["tied"], entry["mark"]]))
    return f"{entry['backend']} ({words})" if words else str(entry["backend"])
