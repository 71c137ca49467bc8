"""The model × backend matrix: one cell for all cases of a row (subject or topic) and a backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from ssmperf.suitekit import Section

from ..rows import frames, ranking, units


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """All cases of one row and backend: the worst status, the best speedup, the worst error.

    status: that of a case, or "wrong" or "nan" if a case of another suite or pass shows the backend to be so.
    cases, ok: how many cases there are, and how many of them ended ok. reasons: each distinct one, once.
    speedup, mean_speedup: the best one and the geometric mean, over the cases in which the backend competes,
        or over all if it competes in none.
    share: the best value of a comparison over the backend's own, where that is largest; for rows without the
        baseline.
    mark: says in words why the backend is shown beside the others in some case; empty if it is in none.
    error: the error whose ratio to its tolerance, error_ratio, is the largest.
    note: the first value of the field that the section names.
    """

    status: str
    cases: int
    ok: int
    reasons: tuple[str, ...]
    speedup: float
    mean_speedup: float
    share: float
    error: float
    error_ratio: float
    note: str = ""
    mark: str = ""

    def shows_status(self, rank: str | None) -> bool:
        """Tell whether to show the status in place of a number.

        A backend that is wrong or nan in any case has no number. One that failed otherwise has one where the
        suite ranks and another case ended ok.
        """
        if self.ok == 0 or self.status in ranking.INCORRECT:
            return True
        return rank is None and self.status not in ("ok", "unsupported")

    @property
    def shows_share(self) -> bool:
        """Whether there is a share of the fastest to show, and no speedup."""
        return units.missing(self.speedup) and not units.missing(self.share)

    @property
    def partial(self) -> bool:
        """Whether some of its cases ended ok and some did not."""
        return 0 < self.ok < self.cases


@dataclasses.dataclass(frozen=True, slots=True)
class Matrix:
    """Cells by row and backend; a pair without cases has no cell.

    backends: the baseline, then those with the most first places, the rest by name.
    elsewhere: the models on whose operands the times of a row were measured, if those are not its own.
    """

    cells: Mapping[tuple[str, str], Cell]
    backends: Sequence[str]
    elsewhere: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> list[str]:
        """List the rows' names, in alphabetical order."""
        return sorted({row for row, _ in self.cells})

    @property
    def has_shares(self) -> bool:
        """Whether some row has no baseline, but backends to compare."""
        return any(cell.shows_share for cell in self.cells.values())

    def label(self, row: str) -> str:
        """Give a row's name, and as which models it was timed: "mingru (as hgrn)"."""
        return f"{row} (as {self.elsewhere[row]})" if row in self.elsewhere else row


def matrix(table: pd.DataFrame, section: Section) -> Matrix:
    """Make the matrix of a frame that `ranked` returned, with the rows and the note that a section names."""
    table = table.assign(share=ranking.shares_of_fastest(table, section.rank))
    groups = table.groupby([section.rows, "backend"], sort=True)
    cells = {(str(row), str(name)): _cell(rows, section.note) for (row, name), rows in groups}
    wins = ranking.wins(table)
    backends = sorted(
        {name for _, name in cells}, key=lambda name: (name != frames.BASELINE, -wins.get(name, 0), name)
    )
    return Matrix(cells, backends, _elsewhere(table, section))


def _elsewhere(table: pd.DataFrame, section: Section) -> dict[str, str]:
    """Name for each row the models as which its cases were timed."""
    if "timed_as" not in table:
        return {}
    copies = table[table["timed_as"].notna()]
    return {
        str(row): ", ".join(dict.fromkeys(map(units.plain, names)))
        for row, names in copies.groupby(section.rows, sort=True)["timed_as"]
    }


def _cell(rows: pd.DataFrame, note: str | None) -> Cell:
    statuses = {*rows["status"], *(each for each in rows["standing"] if each in ranking.INCORRECT)}
    failed = [status for status in frames.SEVERITY[:-2] if status in statuses]
    status = failed[0] if failed else "ok" if "ok" in statuses else "unsupported"
    listed = frames.records(rows)
    reasons = dict.fromkeys(filter(None, map(frames.reason, listed)))
    competing = rows[rows["standing"] == "competes"]
    counted = rows if competing["speedup"].isna().all() else competing
    speedups = [float(value) for value in counted["speedup"] if not units.missing(value)]
    shares = [float(value) for value in counted["share"] if not units.missing(value)]
    beside = rows.loc[rows["standing"] == "beside", "mark"]
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else math.nan
    judged = [row for row in listed if not units.missing(row["error_ratio"])]
    worst = max(judged, key=lambda row: row["error_ratio"], default=None)
    return Cell(
        status=status,
        cases=len(rows),
        ok=int((rows["status"] == "ok").sum()),
        reasons=tuple(reasons),
        speedup=max(speedups, default=math.nan),
        mean_speedup=mean,
        share=max(shares, default=math.nan),
        error=math.nan if worst is None else float(worst["errors"][worst["worst_object"]]),
        error_ratio=math.nan if worst is None else float(worst["error_ratio"]),
        note=_first(rows, note),
        mark=max(map(units.plain, beside), key=len, default=""),
    )


def _first(rows: pd.DataFrame, field: str | None) -> str:
    """Give the first value of a field as text; empty if there is none."""
    if field is None or field not in rows:
        return ""
    return next((units.plain(value) for value in rows[field] if not units.missing(value)), "")
