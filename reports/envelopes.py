"""One line per subject and backend: up to where it is right, and the worst of each of a suite's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssmperf import Section, envelope_of

from . import frames, units

BY_DTYPE = "error_"  # begins the names of fields that depend on the dtype above all
EARLIEST = "first_"  # begins the names of fields whose least value is the worst


@dataclass(frozen=True, slots=True)
class Line:
    """All cases of a subject and a backend.

    right_to: the envelope as text; by dtype, if it differs between dtypes.
    counts: how many cases there are, by status.
    worst: the worst value by field, as text; errors by dtype, such as `1.2e-06 / 3.4e-03`. Fields without a
        value are left out.
    """

    subject: str
    backend: str
    right_to: str
    counts: Mapping[str, int]
    worst: Mapping[str, str]


def lines(rows: pd.DataFrame, section: Section) -> list[Line]:
    """Make the lines of a frame; the cases of a recurrence under its regimes share one."""
    owners = rows["model"].where(rows["model"].notna(), rows["recurrence"])
    several = rows["run"].nunique() > 1
    keys = [owners, rows["backend"], *([rows["run"]] if several else [])]
    found = []
    for (owner, backend, *run), members in rows.groupby(keys, sort=True):
        found.append(
            Line(
                " ".join(map(units.plain, [owner, *run])),
                units.plain(backend),
                _right_to(members, section.envelope),
                frames.status_counts(members),
                {name: text for name in section.columns if (text := _worst(members, name))},
            )
        )
    return found


def _worst(rows: pd.DataFrame, name: str) -> str:
    """Write the worst value of a field, for errors that of each dtype; empty if there is none."""
    if name not in rows or worst(name, rows[name]) is None:
        return ""
    groups = [rows]
    if name.startswith(BY_DTYPE):
        groups = [members for _, members in rows.groupby("dtype", sort=False)]
    return " / ".join(units.number(name, worst(name, members[name])) for members in groups)


def worst(name: str, values: Iterable[Any]) -> Any:
    """Give the worst of a field's values: the earliest step, whether all are true, or the largest number."""
    known = [value for value in values if not units.missing(value)]
    if not known:
        return None
    if all(isinstance(value, bool) for value in known):
        return all(known)
    numbers = [float(value) for value in known if units.is_number(value)]
    if not numbers:
        return None
    return min(numbers) if name.startswith(EARLIEST) else max(numbers)


def _right_to(rows: pd.DataFrame, fields: Sequence[str]) -> str:
    """Write the envelope of each dtype; once, if it is the same for all."""
    texts = {
        str(dtype): envelope_of([(str(row["status"]), row) for row in frames.records(members)], fields)
        for dtype, members in rows.groupby("dtype", sort=False)
    }
    shown = {dtype: envelope.limits or str(envelope) for dtype, envelope in texts.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return " · ".join(f"{dtype}: {text}" for dtype, text in shown.items())
