"""Reports draw what suites declare: lines from lists in a record, and one matrix per length."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from ssmperf.reports import charts, frames, heat, ranking

from ssmperf import Case, Chart, Record, Section, Shape, Status


def record(backend: str, T: int = 8, **numbers: object) -> Record:
    case = Case(suite="memory", recurrence="scan", model="hgrn", backend=backend, shape=Shape(B=1, T=T, C=2))
    return Record(case, Status.OK, numbers=numbers)


def table(*records: Record):
    run = SimpleNamespace(records=list(records), meta={}, environments={}, path=Path("runs/made"))
    return ranking.ranked(frames.frame([run]), None)


def test_a_record_of_lists_is_a_line() -> None:
    rows = table(
        record("sequential", lengths=[2, 4, 8], peaks_bytes=[10, 20, 40]),
        record("blelloch", lengths=[2, 4, 8], peaks_bytes=[30, None, 90]),
        record("chunkwise"),
    )
    (panel,) = charts.panels(Chart(x="lengths", y="peaks_bytes"), rows).values()
    lines = {line["series"]: (line["x"], line["y"]) for line in panel}
    assert lines == {"sequential": ([2, 4, 8], [10, 20, 40]), "blelloch": ([2, 8], [30, 90])}


def test_there_is_a_matrix_per_value_of_the_axes_of_the_section() -> None:
    rows = table(record("sequential", 8), record("sequential", 64), record("blelloch", 8))
    section = Section("Memory", "", (), split=("dtype", "T"))
    labels = [view["label"] for view in heat.matrices(rows, section)]
    assert labels == ["all cases", "float32, T8", "float32, T64"]
