"""The protocol of suites, and the data with which a suite describes its part of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from ssmperf.engine.cases.case import JSON_NAMES, Case, axes
from ssmperf.engine.cases.record import Record
from ssmperf.engine.cases.shape import DIMENSIONS
from ssmperf.errors import UnknownName, UnreadableRun, UsageError

if TYPE_CHECKING:
    from ssmperf.engine.execute.context import Context
    from ssmperf.engine.plan.selection import Selection

ROWS = ("subject", "topic")
# types of the fields below, as their annotations name them
_SCALARS: dict[Any, Any] = {"str": str, "bool": bool, "str | None": str | None}
_ITEMS: dict[Any, Any] = {"tuple[str, ...]": str, "tuple[Chart, ...]": Mapping}


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart: one panel per value of `facet`, one line per value of `series`.

    x, y: record fields. If both hold lists of equal length, each record is a line of its own.
    log: whether the axes are logarithmic. log_x: whether x alone is.
    title: defaults to "y against x".
    references: record fields, lists as long as x's, that are drawn as faint lines: what y is to be compared
        with, such as the accuracy of guessing.
    """

    x: str
    y: str
    series: str = "backend"
    facet: str = "model"
    log: bool = True
    title: str = ""
    references: tuple[str, ...] = ()
    log_x: bool = False

    @classmethod
    def from_json(cls, data: Any) -> Chart:
        """Undo `to_json` of a section for one chart; see `Section.from_json`."""
        return cls(**_fields(cls, data, "a chart"))


@dataclass(frozen=True, slots=True)
class Section:
    """A suite's part of a report, as data: reports draw it without knowing the suite.

    columns: record fields that its table shows, in order, beside model, backend, shape, dtype and pass. A
        number beside which the record has a text `NAME_reason` is shown as a lower bound.
    rank: the field whose least value marks the fastest, among `ok` records of backends that compete; None if
        nothing is ranked. A suite that ranks nothing asks whether backends are right: one that is wrong there
        competes nowhere for the same subject, dtype and device.
    split: axes, or dimensions of the shape. The model × backend matrix is also shown per value of these.
    rows: the matrix has one row per "subject", or per "topic", which joins a recurrence's regimes.
    note: the field whose first value a cell of the matrix names, if one of its cases did not end ok.
    conclusion: the field with a sentence that sums up a record. The terminal lists these sentences.
    envelope: fields, or dimensions of the shape, in whose growth backends break. Each backend then has an
        envelope, up to which it is right, and competes in no suite beyond it; see `ssmperf.Envelope`. Reports
        show one line per subject and backend, with the worst value of each of `columns`.
    map: (rows, columns, colour) of a map per subject, backend and dtype: an axis, a field and a field whose
        logarithm is the colour.
    coverage: axes, or dimensions of the shape, whose values were drawn at random. Reports count the cases of
        each value, and those that are wrong.
    lengths: whether T is what the suite asks about, so that a T that is named is always its T.

    Raises:
        UsageError: `rows` or `split` names something that no report can group by.
    """

    title: str
    question: str
    columns: tuple[str, ...]
    rank: str | None = None
    charts: tuple[Chart, ...] = ()
    split: tuple[str, ...] = ("pass", "dtype")
    rows: str = "subject"
    note: str | None = None
    conclusion: str | None = None
    envelope: tuple[str, ...] = ()
    map: tuple[str, ...] = ()
    coverage: tuple[str, ...] = ()
    lengths: bool = False

    def __post_init__(self) -> None:
        if self.rows not in ROWS:
            raise UnknownName("kind of rows", self.rows, ROWS)
        if len(self.map) not in (0, 3):
            raise UsageError(f"a map has rows, columns and a colour, got {len(self.map)} names")
        legal = {*(JSON_NAMES.get(name, name) for name in axes()), *DIMENSIONS}
        for name in self.split:
            if name not in legal:
                raise UnknownName("axis to split by", name, legal)

    @property
    def judges(self) -> bool:
        """Whether the suite asks if backends are right, at lengths that break kernels.

        A gate does not narrow these to the length whose time it compares; see `Selection.handed_to`.
        """
        return self.rank is None and not self.lengths

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Section:
        """Undo `to_json`. Unknown keys are ignored; a missing key takes its default, if it has one.

        Raises:
            UnreadableRun: a key without a default is missing, or a value cannot be what it should be.
        """
        fields = _fields(cls, data, "a section")
        fields["charts"] = tuple(map(Chart.from_json, fields.get("charts", ())))
        try:
            return cls(**fields)
        except UsageError as error:
            raise UnreadableRun(f"a damaged section: {error}") from error


def _fields(cls: type, data: Any, what: str) -> dict[str, Any]:
    """Read the fields of a dataclass of texts, truth values and tuples from an object.

    Raises:
        UnreadableRun: a field without a default is missing, or a value has the wrong type.
    """
    if not isinstance(data, Mapping):
        raise UnreadableRun(f"{what} is not an object: {data!r:.80}")
    found = {}
    for field in fields(cls):
        if field.name in data:
            found[field.name] = _value(field, data[field.name], what)
        elif field.default is MISSING:
            raise UnreadableRun(f"{what} has no {field.name}")
    return found


def _value(field: Field[Any], value: Any, what: str) -> Any:
    """Check a value against the field's type; a list becomes a tuple."""
    if field.type in _SCALARS:
        valid = isinstance(value, _SCALARS[field.type])
    else:
        items = _ITEMS[field.type]
        valid = isinstance(value, list | tuple) and all(isinstance(item, items) for item in value)
    if not valid:
        raise UnreadableRun(f"{what} is damaged: {field.name} is {value!r:.80}")
    return tuple(value) if field.type in _ITEMS else value


class Suite(Protocol):
    """A suite turns a selection into cases, and a case into a record.

    It may also have `forecast_s(case, training)`, the seconds of a case, None where the usual forecast holds;
    and `left_out(case, selection)`, the reason why a case is not run to save time, None if it is run.

    fresh_process: types of devices on which each case runs in a process that has run no other.
    """

    name: str
    section: Section
    fresh_process: tuple[str, ...]
    levels: tuple[str, ...]
    passes: tuple[str, ...]
    sources: tuple[str, ...]
    same_operands: bool
    compiles_ahead: bool
    continues: bool
    shares_device: bool
    case_s: Mapping[str, float]
    case_calls: int

    def cases(self, selection: Selection) -> Iterable[Case]:
        """List the cases of a selection, including those that a backend will refuse."""
        ...

    def measure(self, case: Case, context: Context) -> Record:
        """Run one case in a worker. Exceptions become `crash`, `oom` or `unsupported` records."""
        ...
