"""Failures on a terminal: their kinds for each backend, and the commands that say more."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from rich.console import Console
from rich.text import Text

from ..rows import frames, units
from ..views.palette import STATUS_STYLES

if TYPE_CHECKING:
    from ssmperf import Run

MOST_FAILURES = 12
MOST_REPEATS = 4
DIAGNOSED = ("wrong", "nan")
ID_LETTERS = 8  # of a case's id, enough to tell the cases of a run apart
Item = TypeVar("Item")
_NUMBERS = re.compile(r"[0-9][0-9.,e+-]*")


def print_kinds(console: Console, rows: pd.DataFrame, runs: Sequence[Run]) -> None:
    """Print one line per kind of failure, one of each backend first; refusals are in the matrix.

    Reasons that differ in numbers alone are of one kind, shown by its first case. Below a result that is
    wrong stands the command that says more about it.
    """
    failed = rows[~rows["status"].isin(["ok", "unsupported"])]
    kinds = failed["reason"].map(lambda reason: _NUMBERS.sub("", units.plain(reason)))
    groups = list(failed.groupby([failed["status"], failed["subject"], failed["backend"], kinds]))
    groups.sort(key=lambda group: (frames.SEVERITY.index(group[0][0]), -len(group[1])))
    for (status, subject, backend, _), group in _in_turns(groups, lambda group: group[0][:3])[:MOST_FAILURES]:
        reason = group["reason"].iloc[0]
        line = Text("  ").append(str(status), style=STATUS_STYLES.get(str(status), ""))
        times = f" ({len(group)} cases)" if len(group) > 1 else ""
        who = f"{units.plain(subject)} {units.plain(backend)}"
        console.print(line.append(f" {who}{times}: {units.plain(reason)}"))
        if status in DIAGNOSED:
            console.print(Text(f"    {_diagnosing(frames.records(group)[0], runs)}", style="dim"))
    if len(groups) > MOST_FAILURES:
        console.print(Text(f"  and {len(groups) - MOST_FAILURES} more kinds of failure", style="dim"))


def print_commands(console: Console, rows: pd.DataFrame, runs: Sequence[Run]) -> None:
    """Print the commands that say more about wrong results of a suite: one of each backend first."""
    wrong = [row for row in frames.records(rows) if row["status"] in DIAGNOSED]
    wrong = _in_turns(wrong, lambda row: (row["subject"], row["backend"]))
    for row in wrong[:MOST_REPEATS]:
        console.print(Text(f"  {units.plain(row['backend'])}: {_diagnosing(row, runs)}", style="dim"))
    if len(wrong) > MOST_REPEATS:
        console.print(Text(f"  and {len(wrong) - MOST_REPEATS} more wrong cases", style="dim"))


def _diagnosing(row: dict[str, Any], runs: Sequence[Run]) -> str:
    """Compose the command that repeats a case and diagnoses it."""
    path = next(
        run.path for name, run in zip(frames.run_names(runs), runs, strict=True) if name == row["run"]
    )
    return (
        f"ssmperf diagnose {units.plain(shlex.quote(str(path)))} {units.plain(row['case_id'])[:ID_LETTERS]}"
    )


def _in_turns(items: Iterable[Item], owner: Callable[[Item], Hashable]) -> list[Item]:
    """Put the first item of each owner before the second of any."""
    seen, turns = Counter[Hashable](), []
    for item in items:
        turns.append((seen[owner(item)], item))
        seen[owner(item)] += 1
    return [item for _, item in sorted(turns, key=lambda turn: turn[0])]
