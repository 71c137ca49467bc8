"""Comparisons as text, Markdown, JUnit and HTML; winners; hostile names in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ssmperf import registry
from ssmperf.runs.comparison import RunComparison, compare_runs

HOSTILE = "<img src=x onerror=alert(1)>|`\x1b[2J"


@pytest.fixture
def found(fake: Any) -> RunComparison:
    base = fake.run([fake.timed(1e-3), fake.timed(1e-3, seed=1), fake.timed(1e-3, model=HOSTILE, seed=2)])
    new = fake.run(
        [fake.timed(2e-3), fake.timed(1e-3, seed=1), fake.failed("wrong", HOSTILE, model=HOSTILE, seed=2)]
    )
    return compare_runs(base, new)


def test_every_form_ends_with_the_same_verdict(found: RunComparison) -> None:
    for name in ("table", "summary"):
        text = registry.report(name, "comparison")(found, None)
        assert "1 wrong, 1 slower, 1 same" in text
        assert "exit 3" in text


def test_junit_fails_where_the_check_fails(found: RunComparison) -> None:
    suite = ElementTree.fromstring(registry.report("junit", "comparison")(found, None))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "0")
    assert sorted(each.get("type", "") for each in suite.iter("failure")) == ["slower", "wrong"]


def test_names_from_outside_stay_text(found: RunComparison, tmp_path: Path) -> None:
    for name in ("table", "summary", "junit"):
        text = registry.report(name, "comparison")(found, None)
        assert "\x1b" not in text
    assert "<img" not in registry.report("summary", "comparison")(found, None)
    page = tmp_path / "page.html"
    registry.report("html")([found.base, found.new], page)
    html = page.read_text()
    assert 'id="comparison"' in html
    assert "<img" not in html


def test_one_run_has_no_comparison(fake: Any) -> None:
    assert 'id="comparison"' not in registry.report("html")([fake.run([fake.timed(1e-3)])], None)


def test_comparison_formats_are_no_formats_of_runs() -> None:
    assert "junit" not in registry.reports()
    assert {"junit", "summary", "table"} <= set(registry.reports("comparison"))


def test_the_best_is_the_fastest_that_is_right(fake: Any) -> None:
    run = fake.run([
        fake.timed(4e-3, backend="sequential"),
        fake.timed(2e-3, backend="chunkwise"),
        fake.timed(2.01e-3, backend="triton"),
        fake.failed("wrong", "fast and wrong", backend="blelloch"),
    ])  # fmt: skip
    (contest,) = json.loads(registry.report("best_json")([run], None))
    assert (contest["backend"], contest["runner_up"], contest["tied"]) == ("chunkwise", "triton", True)
    assert contest["speedup"] == 2.0
    assert "chunkwise" in registry.report("best")([run], None)


def test_nothing_timed_has_no_best(fake: Any) -> None:
    assert "no timed case" in registry.report("best")([fake.run([fake.failed("oom", "too big")])], None)
