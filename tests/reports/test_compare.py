"""Comparisons as text, Markdown and JUnit; winners; hostile names in them."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from ssmperf import registry
from ssmperf.runs.comparison import compare_runs
from ssmperf.runs.outcome import RunComparison

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
        assert "1 slower, 1 wrong, 1 same" in text
        assert "exit 3" in text


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
    assert lines[1].startswith("slower ") and not any(line.startswith("missing ") for line in lines)
    assert "missing: 6 cases of backend triton (gla, hgrn, lru, mingru, …)" in lines
    assert "wrong: 6 cases of backend fft (gla, hgrn, lru, mingru, …): crash: boom" in lines
    assert "1 slower, 6 wrong, 6 missing" in lines[-1]
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
