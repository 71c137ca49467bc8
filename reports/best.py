"""The fastest backend that is right, per model, shape, dtype and pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from ssmperf import report

from . import frames, ranking, units
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
)


@report("best")
def best(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show one line per contest: the winner, its time, the speedup over sequential, and the runner-up."""
    found = contests(runs)
    if not found:
        return deliver("no timed case of these runs is ok\n", destination)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in HEADINGS:
        grid.add_column(heading, no_wrap=True, justify="right" if heading in ("time", "by") else "left")
    for contest in found:
        first, *rest = cells(contest)
        grid.add_row(Text(first, style="cyan"), *map(Text, rest))
    return deliver(terminal_text([grid], plain=destination is not None), destination)


@report("best_json")
def best_json(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Give the contests as JSON, a list of objects."""
    return deliver(json.dumps(contests(runs), indent=2, allow_nan=False) + "\n", destination)


def contests(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """List the contests of suites that rank by a time: one per comparison key, among its `ok` records.

    In each, `tied` says whether the intervals of winner and runner-up overlap, so that either may be faster.
    """
    table = frames.frame(runs)
    found: list[dict[str, Any]] = []
    for name, section in frames.sections(runs, table).items():
        rank = section.rank
        if not rank or units.suffix(rank) != "_s":
            continue
        rows = ranking.ranked(table[table["suite"] == name], rank)
        groups: dict[Any, list[dict[str, Any]]] = {}
        for key, row in zip(frames.keys(rows), frames.records(rows), strict=True):
            if row["status"] == "ok" and not units.missing(row.get(rank)):
                groups.setdefault(key, []).append(row)
        found += [_contest(members, rank) for members in groups.values()]
    return found


def cells(contest: dict[str, Any]) -> list[str]:
    """Give a contest's cells as text, in the order of HEADINGS."""
    rival = contest["runner_up"]
    ahead = units.ratio(contest["runner_up_ratio"]) if rival else ""
    return [
        *(units.plain(contest[name]) for name in ("subject", "shape", "dtype", "pass", "where", "backend")),
        units.number(contest["field"], contest["value"]),
        "" if contest["speedup"] is None else units.ratio(contest["speedup"]),
        units.plain(rival),
        f"{ahead} (tied)" if contest["tied"] else ahead,
    ]


def _contest(members: list[dict[str, Any]], rank: str) -> dict[str, Any]:
    """Describe a contest whose members are in the order of their times."""
    winner, *others = members
    rival = others[0] if others else None
    low, high = units.interval_names(rank)
    slowest, fastest = winner.get(high), rival and rival.get(low)
    tied = slowest is not None and fastest is not None and bool(fastest <= slowest)
    return {
        **{
            name: units.plain(winner[name])
            for name in ("suite", "subject", "shape", "dtype", "pass", "backend")
        },
        "where": units.plain(winner["environment"] or winner["device"]),
        "run": units.plain(winner["run"]),
        "field": rank,
        "value": float(winner[rank]),
        "speedup": None if units.missing(winner["speedup"]) else float(winner["speedup"]),
        "runner_up": None if rival is None else units.plain(rival["backend"]),
        "runner_up_ratio": None if rival is None else float(rival[rank]) / float(winner[rank]),
        "tied": tied,
    }
