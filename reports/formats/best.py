"""The fastest backend that is right, per model, shape, dtype and pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from ssmperf.suitekit import report

from ..delivery import deliver
from ..rows import units
from ..rows.contests import contests, rank_by_a_time
from ..views.winners import HEADINGS, NUMBERS, remarks, rows
from .tables import terminal_text

if TYPE_CHECKING:
    from ssmperf import Run

MOST_REMARKS = 40


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
