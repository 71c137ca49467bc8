"""The model × backend matrix of a suite that declares its rows and the field that a failed cell names."""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports.formats import exports, tables
from ssmperf.reports.pages import html
from ssmperf.reports.rows import frames, ranking
from ssmperf.reports.views.matrix import matrix
from ssmperf.suites.correctness import SECTION
from ssmperf.suites.throughput import SECTION as THROUGHPUT

META = {"suites": {"correctness": SECTION.to_json()}}


@pytest.fixture
def run(fake: Any) -> Any:
    """Make a run: a scan under two regimes, one of which breaks a property; a closed form; a model."""
    place = {"suite": "correctness", "recurrence": "scan", "model": None, "backend": "blelloch"}
    fine = {"errors": {"output": 3e-6}, "tolerances": {"output": 4e-6}, "latency_s": None}
    broken = {**fine, "failed_property": "state_passing", "properties": {"state_passing": 0.5}}
    ok = fake.timed(1.0, numbers={**fine, "failed_property": None}, operand_source="gla/data", **place)
    wrong = fake.failed("wrong", "state_passing: relative error", operand_source="s4d/data", **place)
    wrong = type(wrong)(wrong.case, wrong.status, wrong.reason, wrong.env_id, broken)
    form = fake.timed(1.0, numbers=fine, operand_source="analytic/impulse", **place)
    model = fake.timed(1.0, numbers=fine, **{**place, "model": "lru"})
    return fake.run([ok, wrong, form, model], meta=META)


def test_regimes_share_a_row_and_closed_forms_have_their_own(run: Any) -> None:
    cells = matrix(ranking.ranked(frames.frame([run]), None), SECTION).cells
    assert set(cells) == {(row, "blelloch") for row in ("scan[regimes]", "scan[analytic]", "lru")}
    assert (cells["scan[regimes]", "blelloch"].status, cells["scan[regimes]", "blelloch"].note) == (
        "wrong",
        "state_passing",
    )
    assert cells["lru", "blelloch"].note == ""


def test_terminal_markdown_and_page_name_the_first_property_that_failed(run: Any) -> None:
    terminal, markdown, page = str(tables.table([run])), str(exports.markdown([run])), str(html.html([run]))
    (line,) = (line for line in terminal.splitlines() if "scan[regimes]" in line)
    assert "wrong* state_passing" in line
    (line,) = (line for line in markdown.splitlines() if line.startswith(r"| scan\[regimes\]"))
    assert "wrong state_passing" in line
    assert 'data-topic="scan[regimes]" data-backend="blelloch"' in page
    assert "<small>state_passing</small>" in page


def test_a_run_that_declares_nothing_keeps_its_subjects(run: Any) -> None:
    plain = {name: value for name, value in SECTION.to_json().items() if name not in ("rows", "note")}
    run.meta["suites"] = {"correctness": plain}
    assert "scan[s4d/data]" in str(tables.table([run]))


def test_backends_that_win_come_first(fake: Any) -> None:
    times = {
        "hgrn": {"sequential": 9.0, "blelloch": 5.0, "cuda": 2.0, "triton": 1.0},
        "lru": {"sequential": 9.0, "blelloch": 5.0, "cuda": 2.0, "triton": 1.0},
        "gateloop": {"sequential": 9.0, "blelloch": 5.0, "cuda": 1.0, "triton": 2.0},
    }
    records = [
        fake.timed(seconds, model=model, backend=backend)
        for model, backends in times.items()
        for backend, seconds in backends.items()
    ]
    table = ranking.ranked(frames.frame([fake.run(records)]), THROUGHPUT.rank)
    assert matrix(table, THROUGHPUT).backends == ["sequential", "triton", "cuda", "blelloch"]
    records.append(fake.failed("wrong", "off", model="lru", backend="triton", pass_="backward"))
    table = ranking.ranked(frames.frame([fake.run(records)]), THROUGHPUT.rank)
    assert matrix(table, THROUGHPUT).backends == ["sequential", "cuda", "triton", "blelloch"]


def test_backends_without_a_baseline_are_set_against_the_fastest(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is possible; a row with one backend has nothing to compare."""
    times = {"attention": {"torch_sdpa": 1.0, "chunkwise": 4.0}, "hgrn": {"sequential": 9.0, "triton": 1.0}}
    times["deltanet"] = {"chunkwise": 2.0}
    records = [
        fake.timed(seconds, model=model, backend=backend)
        for model, backends in times.items()
        for backend, seconds in backends.items()
    ]
    records.append(fake.timed(2.0, model="attention", backend="torch_sdpa", pass_="backward"))
    records.append(fake.timed(2.5, model="attention", backend="chunkwise", pass_="backward"))
    run = fake.run(records)
    cells = matrix(ranking.ranked(frames.frame([run]), THROUGHPUT.rank), THROUGHPUT).cells
    assert cells["attention", "chunkwise"].share == pytest.approx(0.8)  # the best of its cases
    assert cells["attention", "torch_sdpa"].share == 1
    shown = {key: cell.shows_share for key, cell in cells.items()}
    assert {row for (row, _), share in shown.items() if share} == {"attention"}

    monkeypatch.setattr(tables, "MOST_ROWS", 1)
    terminal, page = str(tables.table([run])), str(html.html([run]))
    for text in (terminal, page):
        assert "80 %" in text and "in rows without sequential" in text
    (line,) = (line for line in terminal.splitlines() if line.startswith(" deltanet"))
    assert "ok" in line


def test_without_such_rows_nothing_is_said_of_them(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 1)
    records = [fake.timed(seconds, backend=name) for name, seconds in (("sequential", 2.0), ("triton", 1.0))]
    records.append(fake.timed(1.0, backend="triton", pass_="backward"))
    run = fake.run(records)
    assert "in rows without" not in str(tables.table([run])) + str(html.html([run]))
