"""One line per subject and backend: up to where it is right, and the worst of each of a suite's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssmperf.suitekit import Envelope, Section, envelope_of

from . import frames, units

BY_DTYPE = "error_"  # begins the names of fields that depend on the dtype above all
EARLIEST = "first_"  # begins the names of fields whose least value is the worst


@dataclass(frozen=True, slots=True)
class Line:
    """All cases of a subject and a backend.

    right_to: the envelope's limits by field, as text; by dtype, if they differ between dtypes.
    counts: how many cases there are, by status.
    worst: the worst value by field, as text; errors by dtype, such as `1.2e-06 / 3.4e-03`. Fields without a
        value are left out.
    """

    subject: str
    backend: str
    right_to: Mapping[str, str]
    counts: Mapping[str, int]
    worst: Mapping[str, str]


def lines(rows: pd.DataFrame, section: Section) -> list[Line]:
    """Make the lines of a frame; the cases of a recurrence under its regimes share one."""
    owners = rows["model"].where(rows["model"].notna(), rows["recurrence"])
    several = rows["run"].nunique() > 1
    keys = [owners, rows["backend"], *([rows["run"]] if several else [])]
    made = []
    for (owner, backend, *run), members in rows.groupby(keys, sort=True):
        made.append(
            Line(
                " ".join(map(units.plain, [owner, *run])),
                units.plain(backend),
                _right_to(members, section.envelope),
                frames.status_counts(members),
                {name: text for name in section.columns if (text := _worst(members, name))},
            )
        )
    return made


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


def _right_to(rows: pd.DataFrame, fields: Sequence[str]) -> dict[str, str]:
    """Write the envelope's limits by field: one per dtype, as `8,192 / 512`, or one if they are the same."""
    each_dtype = [found(frames.records(members), fields) for _, members in rows.groupby("dtype", sort=False)]
    texts = {name: [limit(envelope, name) for envelope in each_dtype] for name in fields}
    return {name: each[0] if len(set(each)) == 1 else " / ".join(each) for name, each in texts.items()}


def reached(rows: pd.DataFrame, fields: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], Envelope, str]]:
    """Find up to where each backend is right, by model or recurrence, hardware, dtype and backend.

    Gives the first row of each, its envelope, and the limits as text; nothing where nothing was tried.
    """
    owners = rows["model"].where(rows["model"].notna(), rows["recurrence"])
    places = rows["environment"].where(rows["environment"].astype(bool), rows["device"])
    for _, members in rows.groupby([owners, places, rows["dtype"], rows["backend"]], sort=False):
        tried = frames.records(members)
        envelope = found(tried, fields)
        if envelope.tried:
            limits = ", ".join(f"{units.label(name)} {limit(envelope, name)}" for name in fields)
            yield tried[0], envelope, limits if envelope.largest else "nowhere"


def found(rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> Envelope:
    """Find the envelope of a backend from the rows of its cases; see `ssmperf.envelope_of`."""
    return envelope_of([(str(row["status"]), row) for row in rows], fields)


def limit(envelope: Envelope, name: str) -> str:
    """Write the limit in one field; with ≥ if no wrong result limits it."""
    value = envelope.largest.get(name)
    if value is None:
        return "nowhere" if envelope.tried else "–"
    text = f"{value:,.0f}" if value >= 1000 or value.is_integer() else f"{value:.3g}"
    return text if name in envelope.limited else f"≥{text}"
