"""Results in a cell of a notebook: short, escaped, and the same answer as on the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.results.histories import write

import ssmperf
from ssmperf.suitekit import registry

MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path: Path) -> list[ssmperf.Run]:
    write(tmp_path, shifts={}, count=3)
    return [ssmperf.load(file.parent) for file in sorted(tmp_path.glob("*/run.json"))[:2]]


def test_a_run_shows_its_winners_and_its_failures(fake: Any) -> None:
    run = fake.run([fake.timed(1.0, backend=MARKUP), fake.failed("wrong", MARKUP, backend="other")])
    shown = registry.report("cell")([run], None)
    assert "1 wrong, 1 ok" in shown or "1 ok, 1 wrong" in shown
    assert MARKUP not in shown and shown.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2


def test_a_run_answers_as_best_does(runs: list[ssmperf.Run]) -> None:
    run = runs[0]
    model = run.records[0].case.owner
    assert run.best(model) == ssmperf.best(run, models=model) != []
    assert run.best(model)._repr_html_().count("<p>") == len(repr(run.best(model)).splitlines())
    assert "<table>" in run.best()._repr_html_()
    assert "<th>fastest</th>" in run._repr_html_()


def test_a_comparison_begins_with_its_conclusion(runs: list[ssmperf.Run]) -> None:
    found = ssmperf.compare(*runs)
    shown = found._repr_html_()
    assert shown.startswith(f"<p><b>{found.conclusion}</b></p>") and "<th>verdict</th>" in shown
    assert MARKUP not in replace(found, alarms=(MARKUP,))._repr_html_()


def test_a_cell_is_bounded(fake: Any) -> None:
    run = fake.run([fake.failed("crash", "gone", seed=seed) for seed in range(50)])
    shown = registry.report("cell")([run], None)
    assert shown.count("<tr>") == 31 and "and 20 more rows" in shown
