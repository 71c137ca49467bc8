"""The model × backend matrix: one cell for all cases of a row (subject or topic) and a backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import pandas as pd

from ssmperf import Section

from . import frames, units


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """All cases of one row and backend: the worst status, the best speedup, the worst error.

    cases, ok: how many cases there are, and how many of them ended ok. reasons: each distinct one, once.
    error: the error whose ratio to its tolerance, error_ratio, is the largest.
    note: the first value of the field that the section names.
    """

    status: str
    cases: int
    ok: int
    reasons: tuple[str, ...]
    speedup: float
    mean_speedup: float
    error: float
    error_ratio: float
    note: str = ""

    @property
    def partial(self) -> bool:
        """Whether some of its cases ended ok and some did not."""
        return 0 < self.ok < self.cases


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """Cells by row and backend; a pair without cases has no cell."""

    cells: Mapping[tuple[str, str], Cell]

    @property
    def rows(self) -> list[str]:
        """List the rows' names, in alphabetical order."""
        return sorted({row for row, _ in self.cells})

    @property
    def backends(self) -> list[str]:
        """List the backends, the baseline first."""
        return sorted({name for _, name in self.cells}, key=lambda name: (name != frames.BASELINE, name))


def matrix(table: pd.DataFrame, section: Section) -> Matrix:
    """Make the matrix of a frame that `ranked` returned, with the rows and the note that a section names."""
    groups = table.groupby([section.rows, "backend"], sort=True)
    return Matrix({(str(row), str(name)): _cell(rows, section.note) for (row, name), rows in groups})


def _cell(rows: pd.DataFrame, note: str | None) -> Cell:
    statuses = set(rows["status"])
    failed = [status for status in frames.SEVERITY[:-2] if status in statuses]
    status = failed[0] if failed else "ok" if "ok" in statuses else "unsupported"
    reasons = dict.fromkeys(units.plain(reason) for reason in rows["reason"] if not units.missing(reason))
    speedups = [float(value) for value in rows["speedup"] if not units.missing(value)]
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else math.nan
    judged = [row for row in frames.records(rows) if not units.missing(row["error_ratio"])]
    worst = max(judged, key=lambda row: row["error_ratio"], default=None)
    return Cell(
        status=status,
        cases=len(rows),
        ok=int((rows["status"] == "ok").sum()),
        reasons=tuple(reasons),
        speedup=max(speedups, default=math.nan),
        mean_speedup=mean,
        error=math.nan if worst is None else float(worst["errors"][worst["worst_object"]]),
        error_ratio=math.nan if worst is None else float(worst["error_ratio"]),
        note=_first(rows, note),
    )


def _first(rows: pd.DataFrame, field: str | None) -> str:
    """Give the first value of a field as text; empty if there is none."""
    if field is None or field not in rows:
        return ""
    return next((units.plain(value) for value in rows[field] if not units.missing(value)), "")
