"""Comparisons as text, Markdown and JUnit; winners; hostile names in them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ssmperf.comparison.comparison import compare_runs
from ssmperf.comparison.outcome import RunComparison
from ssmperf.suitekit import registry

HOSTILE = "<img src=x onerror=alert(1)>|`\x1b[2J"


@pytest.fixture
def found(fake: Any) -> RunComparison:
    base = fake.run([fake.timed(1e-3), fake.timed(1e-3, seed=1), fake.timed(1e-3, model=HOSTILE, seed=2)])
    new = fake.run(
        [fake.timed(2e-3), fake.timed(1e-3, seed=1), fake.failed("wrong", HOSTILE, model=HOSTILE, seed=2)]
    )
    return compare_runs(base, new)


def test_every_form_begins_with_the_same_verdict(found: RunComparison) -> None:
    for name in ("table", "summary"):
        first = registry.report(name, "comparison")(found, None).splitlines()[0]
        assert "1 slower, 1 wrong, 1 same" in first and "(exit 3)" in first


def test_junit_fails_where_the_check_fails(found: RunComparison) -> None:
    suite = ElementTree.fromstring(registry.report("junit", "comparison")(found, None))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "0")
    assert sorted(each.get("type", "") for each in suite.iter("failure")) == ["slower", "wrong"]


def test_names_from_outside_stay_text(found: RunComparison) -> None:
    for name in ("table", "summary", "junit", "html"):
        text = registry.report(name, "comparison")(found, None)
        assert "\x1b" not in text
    for name in ("summary", "html"):
        assert "<img" not in registry.report(name, "comparison")(found, None)


def test_junit_says_each_verdict_once(found: RunComparison) -> None:
    suite = ElementTree.fromstring(registry.report("junit", "comparison")(found, None))
    messages = sorted(each.get("message", "") for each in suite.iter("failure"))
    assert messages[0].startswith("slower: sequential forward of mingru") and ": 2.000× [" in messages[0]
    assert messages[1].startswith("wrong: sequential forward of <img") and messages[1].count("wrong") == 1


class TestSummary:
    """Required contents of a pull request's page."""

    def lines(self, found: RunComparison, destination: Path | None = None) -> list[str]:
        text = registry.report("summary", "comparison")(found, destination)
        return (destination.read_text() if destination else text).splitlines()

    def test_it_says_what_was_measured_where_and_when(self, fake: Any) -> None:
        commits = {"env1": {"hardware": {"gpu": {"name": "A GPU"}}, "versions": {"ssmperf": "9.9"},
                            "git": {"commit": "c3e85d8a" * 5, "dirty": True}}}  # fmt: skip
        base = fake.run([fake.timed(1e-3)], meta={"tag": "nightly", "created": "2026-01-01"})
        new = fake.run([fake.timed(1e-3)], environments=commits, meta={"plugins": ["/a/mine.py"]})
        lines = self.lines(compare_runs(base, new, force=True))
        assert "| base | nightly; ssmperf (c3e85d8a) | Example GPU | 2026-01-01 |" in lines
        (row,) = [line for line in lines if line.startswith("| new |")]
        assert "ssmperf 9.9 (c3e85d8ac3 with changes); plug-in mine.py | A GPU |" in row
        measured = replace(compare_runs(base, new), versions=("git ref main (1a2b)", "git ref *x*|y"))
        lines = self.lines(measured)
        assert any(line.startswith("| base | git ref main (1a2b) | Example GPU |") for line in lines)
        assert any(line.startswith("| new | git ref \\*x\\*\\|y | A GPU |") for line in lines)

    @pytest.mark.parametrize("damaged", [{}, {"hardware": 3}, {"hardware": {"cpu": None}}, "text", None])
    def test_a_run_that_does_not_say_leaves_the_cells_empty(self, fake: Any, damaged: Any) -> None:
        runs = [
            fake.run([fake.timed(1e-3)], environments={"env1": damaged}, meta={"created": 7, "tag": [1]})
            for _ in range(2)
        ]
        assert "| base |  |  |  |" in self.lines(compare_runs(*runs))

    def test_the_mean_comes_before_the_cases_and_slower_before_wrong(self, found: RunComparison) -> None:
        lines = self.lines(found)
        places = [
            next(place for place, line in enumerate(lines) if line.startswith(start))
            for start in ("## ssmperf: wrong: sequential", "| base |", "- throughput: geometric mean",
                          "| slower | throughput", "| wrong | throughput", "| slower | 1 |", "| same | 1 |",
                          "- a case is slower if it is worse by more than 5 %")
        ]  # fmt: skip
        assert places == sorted(places)
        assert "0 no regression, 1 a regression, 3 wrong, lost or missing cases, 4 cannot tell" in lines[-1]

    def test_every_row_of_a_table_has_as_many_cells(self, found: RunComparison) -> None:
        """Hostile names make no cell."""
        tables = "\n".join(self.lines(found)).split("\n\n")
        for rows in (table.splitlines() for table in tables if table.startswith("|")):
            assert len({row.replace("\\|", "").count("|") for row in rows}) == 1

    def test_it_links_to_the_page(self, found: RunComparison, tmp_path: Path) -> None:
        destination = tmp_path / "gate" / "summary.md"
        destination.parent.mkdir()
        text = "The page with all cases and charts"
        assert not any(text in line for line in self.lines(found))
        addresses = {
            str(tmp_path / "gate" / "index.html"): "index.html",
            str(tmp_path / "a (b)" / "page.html"): "../a%20%28b%29/page.html",
            "https://ci/job/7/page?a=1&b=2#top": "https://ci/job/7/page?a=1&b=2#top",
            "https://ci/x) [click](https://evil": "https://ci/x%29%20%5Bclick%5D%28https://evil",
        }
        for page, address in addresses.items():
            assert self.lines(replace(found, page=page), destination)[-1] == f"[{text}]({address})"


def many(fake: Any) -> RunComparison:
    """Compare runs of which one backend is missing, one crashes, and one case in three is slower."""
    models = ("gla", "hgrn", "lru", "mingru", "s5", "tnl")
    places = [
        {"model": model, "backend": backend} for model in models for backend in ("triton", "fft", "blelloch")
    ]
    base = fake.run([fake.timed(1e-3, **place) for place in places])
    new = [fake.failed("crash", "boom", **place) for place in places if place["backend"] == "fft"]
    new += [fake.timed(2e-3 if place["model"] == "gla" else 1e-3, **place)
            for place in places if place["backend"] == "blelloch"]  # fmt: skip
    return compare_runs(base, fake.run(new))


def test_slower_comes_first_and_broken_cases_are_summed_up_by_backend(fake: Any) -> None:
    found = many(fake)
    lines = registry.report("table", "comparison")(found, None).splitlines()
    assert lines[2].startswith("slower ") and not any(line.startswith("missing ") for line in lines)
    assert "missing: 6 cases of backend triton (gla, hgrn, lru, mingru, …)" in lines
    assert "wrong: 6 cases of backend fft (gla, hgrn, lru, mingru, …): crash: boom" in lines
    assert "1 slower, 6 wrong, 6 missing" in lines[0]
    text = registry.report("summary", "comparison")(found, None)
    assert "- missing: 6 cases of backend triton" in text and "| slower |" in text


def test_few_wrong_cases_have_a_row_each(found: RunComparison) -> None:
    text = registry.report("table", "comparison")(found, None)
    assert any(line.startswith("wrong ") for line in text.splitlines())


def test_cases_that_cannot_be_told_are_summed_up_unless_they_lie_beyond_the_threshold(fake: Any) -> None:
    wide = {"latency_low_s": 0.5e-3, "latency_high_s": 2e-3}
    seconds = [1e-3, 1.01e-3, 1.02e-3, 1.03e-3, 1.3e-3]
    base = fake.run([fake.timed(1e-3, seed=i, numbers=wide) for i in range(len(seconds))])
    new = fake.run([fake.timed(each, seed=i, numbers={**wide, "n": 1}) for i, each in enumerate(seconds)])
    lines = registry.report("table", "comparison")(compare_runs(base, new), None).splitlines()
    (row,) = [line for line in lines if line.startswith("ambiguous ")]
    assert "1.300" in row and "beyond the threshold but within its noise" in row
    assert any(line.startswith("ambiguous: 4 cases within the threshold, whose noise") for line in lines)


def test_another_environment_is_one_line(fake: Any) -> None:
    records = [fake.timed(1e-3, seed=seed) for seed in range(5)]
    base, new = fake.run(records), fake.run(records, meta={"measurement": 2})
    text = registry.report("table", "comparison")(compare_runs(base, new), None)
    assert "ambiguous: 5 cases: another environment (measurement: 1 and 2)" in text
    assert "environments differ: measurement: 1 and 2" in text


def test_means_stand_in_every_format(fake: Any) -> None:
    records = [fake.timed(1e-3, seed=seed) for seed in range(4)]
    twice = [fake.timed(2e-3, seed=seed) for seed in range(4)]
    found = compare_runs(fake.run(records), fake.run(twice))
    for name in ("table", "summary", "junit"):
        text = registry.report(name, "comparison")(found, None)
        assert "throughput: geometric mean of new / base 2.000 (time, 4 cases)" in text


def test_comparison_formats_are_no_formats_of_runs() -> None:
    assert "junit" not in registry.reports()
    assert {"html", "junit", "summary", "table"} <= set(registry.reports("comparison"))


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
