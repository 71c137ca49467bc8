"""Reports draw what suites declare: lines from lists in a record, and one matrix per length."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from ssmperf.reports.formats import tables
from ssmperf.reports.formats.publishing import figures
from ssmperf.reports.pages import sections
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.views import charts, heat

from ssmperf import Case, Record, Shape, Status
from ssmperf.suitekit import Chart, Section


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


LISTS = {"lengths": [2, 4], "accuracies": [0.9, 0.4], "accuracies_low": [0.8, 0.3],
         "accuracies_high": [1.0, 0.6], "chances": [0.5, 0.5]}  # fmt: skip


def test_references_are_drawn_once_and_intervals_are_taken_apart() -> None:
    chart = Chart(x="lengths", y="accuracies", log=False, references=("chances", "nowhere"))
    rows = table(record("sequential", **LISTS), record("blelloch", **LISTS), record("chunkwise"))
    (panel,) = charts.panels(chart, rows).values()
    assert [(line["series"], line["reference"]) for line in panel] == [
        ("blelloch", 0),
        ("sequential", 0),
        ("by chance", 1),
    ]
    for line in panel[:2]:
        assert line["below"] == pytest.approx([0.1, 0.1]) and line["above"] == pytest.approx([0.1, 0.2])
    assert (panel[2]["x"], panel[2]["y"]) == ([2, 4], [0.5, 0.5]) and not panel[2]["below"]
    assert Chart.from_json(dataclasses.asdict(chart)) == chart


def test_models_can_be_lines_each_on_a_backend_of_its_own() -> None:
    chart = Chart(x="lengths", y="accuracies", series="model", facet="operand_source", log=False)
    mamba = record("triton", **LISTS)
    mamba = dataclasses.replace(mamba, case=dataclasses.replace(mamba.case, model="mamba"))
    rows = table(record("sequential", **LISTS), mamba, record("chunkwise"))
    assert charts.selectors(chart, rows) == []
    (panel,) = charts.panels(chart, rows).values()
    assert [line["series"] for line in panel] == ["hgrn", "mamba"]
    looks = charts.looks(rows, [Section("", "", (), charts=(chart,))])
    assert {"hgrn", "mamba", "sequential", "triton", "chunkwise"} <= set(looks) and "" not in looks
    backends = charts.looks(rows, [])
    assert {name: looks[name] for name in backends} == backends and looks["hgrn"] != looks["mamba"]


@pytest.mark.slow
def test_the_sentence_of_a_record_is_told(tmp_path: Path) -> None:
    section = Section("Learning", "", ("accuracy",), conclusion="verdict", charts=(
        Chart(x="lengths", y="accuracies", log=False, references=("chances",)),))  # fmt: skip
    run = SimpleNamespace(
        records=[record("sequential", accuracy=0.5, verdict="not learned", **LISTS), record("blelloch")],
        meta={"suites": {"memory": section.to_json()}},
        environments={},
        path=Path("runs/made"),
        warnings=[],
    )
    assert "  hgrn  sequential  B1 T8 C2  not learned\n" in tables.table([run], None)
    rows = ranking.ranked(frames.frame([run]), None)
    view = sections.view(section, rows)
    (column,) = [column for column in view["columns"] if column.name == "verdict"]
    assert (column.label, column.number, [*filter(None, column.cells)]) == ("verdict", False, ["not learned"])
    assert figures.figures([run], tmp_path).startswith("1 figures")
