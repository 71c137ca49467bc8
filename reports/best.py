"""The fastest backend that is right, per model, shape, dtype and pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from ssmperf import report

from . import units
from .contests import Contest, contests, kept_out, notes, rank_by_a_time, statement
from .exports import deliver
from .tables import terminal_text

if TYPE_CHECKING:
    from ssmperf import Run

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
)
MOST_REMARKS = 40
NUMBERS = ("time", "×sequential", "by")


@report("best")
def best(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show one line per comparison: the fastest backend, its time, and the next one that is slower.

    "Fastest" is a claim about a backend: it competes only if it is wrong in no pass of that place, nor in
    correctness. One that is approximate by declaration or computes another function stands beside, marked;
    those whose intervals overlap the winner's share the place. A time with more around the native call than
    a change of layout has that added; one beyond the machine's limit never wins. Where forward and backward
    have different winners, a line has their sum.
    """
    found = contests(runs)
    if not found:
        none = "no timed case of these runs is ok"
        if not rank_by_a_time(runs):
            none = "no suite of these runs ranks by a time (ssmperf run --suite throughput does)"
        return deliver(f"{none}\n", destination)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in HEADINGS:
        justify: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        grid.add_column(heading, no_wrap=heading != "beside", overflow="fold", justify=justify)
    for first, *rest in rows(found):
        grid.add_row(Text(first, style="cyan"), *map(Text, rest))
    below = [Text(text, style="dim") for text in remarks(found)]
    if len(below) > MOST_REMARKS:
        more = Text(f"and {len(below) - MOST_REMARKS} more remarks: --json has them all", style="dim")
        below[MOST_REMARKS:] = [more]
    return deliver(terminal_text([grid, *below], plain=destination is not None), destination)


@report("best_json")
def best_json(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Give the contests as JSON, a list of objects; `ssmperf.best` gives the same list."""
    return deliver(json.dumps(units.as_json(contests(runs)), indent=2, allow_nan=False) + "\n", destination)


def rows(found: Sequence[Contest]) -> list[list[str]]:
    """Give each contest's cells as text, in the order of HEADINGS."""
    places = [{"run": each["run"], **each["axes"]} for each in found]
    varying = [axis for axis in places[0] if len({str(place[axis]) for place in places}) > 1]
    return [
        _cells(contest, [f"{units.label(axis)} {units.plain(place[axis])}" for axis in varying])
        for contest, place in zip(found, places, strict=True)
    ]


def remarks(found: Sequence[Contest]) -> list[str]:
    """List where forward and backward have different winners, odd times, and who is kept out and why."""
    return [*(statement(contest) for contest in found if contest["winners"]), *notes(found), *kept_out(found)]


def _cells(contest: Contest, axes: Sequence[str]) -> list[str]:
    """Give a contest's cells, one backend per line. axes: those in which the contests differ, as text."""
    winners = [each for each in contest["competitors"] if each["backend"] in contest["fastest"]]
    slower = next((each for each in contest["competitors"] if each not in winners), None)
    return [
        *(contest[name] for name in ("subject", "shape", "dtype", "pass")),
        " · ".join([contest["where"], *axes]),
        "\n".join(_winner(contest, each) for each in winners) or "none competes",
        "\n".join(units.number(contest["field"], each["value"]) for each in winners),
        "\n".join(units.ratio(each["speedup"]) for each in winners if each["speedup"] is not None),
        "" if slower is None else slower["backend"],
        "" if slower is None else units.ratio(slower["value"] / contest["value"]),
        "\n".join(_beside(contest, each) for each in contest["beside"]),
    ]


def _winner(contest: Contest, entry: dict[str, Any]) -> str:
    words = ", ".join(filter(None, ["tied" * contest["tied"], entry["mark"]]))
    return f"{entry['backend']} ({words})" if words else str(entry["backend"])


def _beside(contest: Contest, entry: dict[str, Any]) -> str:
    return f"{entry['backend']} {units.number(contest['field'], entry['value'])} ({entry['mark']})"
