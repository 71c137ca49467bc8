"""The interface of a suite, and the data with which it describes its part of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ssmperf.cases.case import Case
from ssmperf.cases.record import Record

if TYPE_CHECKING:
    from ssmperf.execute.context import Context
    from ssmperf.plan.selection import Selection


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart: one panel for each `facet` value, one line for each `series` value.

    x, y: record fields; of lists of equal lengths, each record is a line.
    """

    x: str
    y: str
    series: str = "backend"
    facet: str = "model"
    log: bool = True
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A suite's part of a report, as data: reports draw it without knowing the suite.

    columns: record fields that its table shows, in order, beside model, backend, shape, dtype, pass.
    rank: the field whose least value, among `ok` records, marks the fastest (or None).
    split: axes for whose values the model × backend matrix is shown apart too.
    rows: what the matrix has rows for: "subject", or "topic", which puts a recurrence's regimes together.
    note: the field whose first value a cell of the matrix names, where a case did not end ok.
    """

    title: str
    question: str
    columns: tuple[str, ...]
    rank: str | None = None
    charts: tuple[Chart, ...] = ()
    split: tuple[str, ...] = ("pass", "dtype")
    rows: str = "subject"
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Suite(Protocol):
    """Turns a selection into cases, and a case into a record."""

    name: str
    section: Section
    fresh_process: bool
    levels: tuple[str, ...]
    passes: tuple[str, ...]
    sources: tuple[str, ...]

    def cases(self, selection: Selection) -> Iterable[Case]:
        """The cases of a selection, refusals included: the plan asks each backend what it refuses."""
        ...

    def measure(self, case: Case, context: Context) -> Record:
        """Run one case in a worker. Exceptions become `crash`, `oom` or `unsupported` records."""
        ...
