"""Time that the cases of a run took, by suite, and the most expensive ones."""

from __future__ import annotations

from typing import Any

import pandas as pd

from . import frames, units

SPENT = "spent_s"
MOST_CASES = 8
OWN = "model"  # the source of a model's own operands


def costs(table: pd.DataFrame) -> dict[str, Any] | None:
    """Give the time of all cases, that of each suite and the most expensive cases; None if none has a time.

    The times are those of workers: on several devices they are more than the run took. Times of different
    runs are added.
    """
    if SPENT not in table:
        return None
    rows = [row for row in frames.records(table) if units.is_number(row[SPENT]) and row[SPENT] > 0]
    if not rows:
        return None
    total = sum(row[SPENT] for row in rows)
    suites: dict[str, float] = {}
    for row in rows:
        name = units.plain(row["suite"])
        suites[name] = suites.get(name, 0.0) + row[SPENT]
    several = table["run"].nunique() > 1
    ordered = sorted(rows, key=lambda row: (-row[SPENT], row["case_id"]))
    return {
        "total": duration(total),
        "cases": len(rows),
        "suites": [
            (name, duration(spent), _share(spent, total))
            for name, spent in sorted(suites.items(), key=lambda suite: (-suite[1], suite[0]))
        ],
        "most": [
            (
                _described(row, several),
                units.plain(row["status"]),
                duration(row[SPENT]),
                _share(row[SPENT], total),
            )
            for row in ordered[:MOST_CASES]
        ],
    }


def duration(seconds: float) -> str:
    """Write a duration with the unit that a person would take: `4.2 s`, `12 min`, `3.1 h`."""
    if seconds < 99.5:
        return units.number(SPENT, seconds)
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.1f} h"


def _share(part: float, total: float) -> str:
    return units.number("share_fraction", part / total)


def _described(row: dict[str, Any], several: bool) -> str:
    """Name a case by its distinguishing fields; its source of operands, where it is not its subject's own."""
    source = units.plain(row["operand_source"])
    subject = units.plain(row["subject"])
    names = [row["suite"], subject, row["backend"], row["shape"], row["dtype"], row["pass"]]
    run = [row["run"]] if several else []
    return " ".join(
        filter(None, map(units.plain, [*run, *names, "" if source == OWN or source in subject else source]))
    )
