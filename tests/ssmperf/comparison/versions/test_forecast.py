"""`--dry-run` of `ab` and `bisect`: what would be measured, and for how long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import Call, caller
from support.versions.repositories import PLUGIN, commit, git

from ssmperf import Case, Shape
from ssmperf.comparison.versions import procedure
from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.plan.estimate import expected_s
from ssmperf.shell.terminal.forecast import Forecast, forecast, forecast_search

CASES = [
    Case(suite, "scan", backend, Shape(B=1, T=64, C=4), "hgrn", cache="hot")
    for suite in ("throughput", "correctness")
    for backend in ("blelloch", "known_elsewhere")
]


class Listing:
    """A side that lists its cases, and fails if it is asked to measure."""

    refusal = None

    def __init__(self, name: str, side: Side, run_folder: Path, *ignored: Any) -> None:
        assert run_folder.parent.is_dir()
        self.cases = {case.id: case for case in CASES}

    def close(self) -> None: ...


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand in a repository of nine commits, whose versions list the cases above."""

    def install(text: str, name: str, plugins: Sequence[str]) -> Side:
        assert list(plugins) == [PLUGIN]
        return Side(text, "git ref", str(tmp_path), "python", "1234567890abcdef")

    monkeypatch.setattr(procedure, "SideProcess", Listing)
    monkeypatch.setattr(procedure, "install", install)
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for number in range(9):
        commit(folder, number, f"# {number}")
    monkeypatch.chdir(folder)
    return folder


def of(pairs: str | None = None, cases: str = "") -> Versions:
    return Versions.of("main~8", "main", "throughput", {}, (PLUGIN,), cases, pairs, 0.05)


def test_a_comparison_takes_its_rounds_on_both_sides(listed: Path) -> None:
    found = forecast(of())
    ranked, once = CASES[:2], CASES[2:]
    assert (found.cases, found.compared, found.pairs, found.fresh_pairs) == (4, 2, 5, 7)
    assert found.least_s == 2 * (expected_s(ranked, rounds=5) + expected_s(once))
    assert found.most_s == 2 * (expected_s(ranked, rounds=12) + expected_s(once))
    assert forecast(of("20+30")).most_s > found.most_s
    assert forecast(of(cases=CASES[0].id[:8])).cases == 1


@pytest.mark.parametrize(("good", "commits", "steps"), [("main~1", 1, 2), ("main~2", 2, 3), ("main~8", 8, 5)])
def test_a_search_takes_as_many_comparisons_as_halvings(
    good: str, commits: int, steps: int, listed: Path
) -> None:
    one = forecast(of())
    found = forecast_search(Versions(good, "main", {}, (PLUGIN,)))
    assert (found.commits, found.comparisons) == (commits, steps)
    assert found.least_s == pytest.approx(steps * one.least_s)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(monkeypatch, capsys)


@pytest.mark.parametrize("verb", ["ab", "bisect"])
def test_the_command_says_it_and_leaves_nothing_behind(verb: str, listed: Path, call: Call) -> None:
    ends = ("--base", "--new") if verb == "ab" else ("--good", "--bad", "--case", CASES[0].id[:8])
    words = (
        ends[0],
        "main~8",
        ends[1],
        "main",
        *ends[2:],
        "--plugin",
        PLUGIN,
        "--out",
        listed / "out",
        "--dry-run",
    )
    code, out, err = call(verb, *words)
    assert code == 0, err
    last = out.splitlines()[-1]
    assert last.startswith("takes about ") and "if all cases stand out" in last
    assert "base: git ref main~8 (1234567890)" in out and ("in 5 pairs of rounds" in out)
    assert ("8 commits: about 5 comparisons" in out) is (verb == "bisect")
    code, out, _ = call(verb, *words, "--json")
    assert code == 0 and json.loads(out).keys() == set(Forecast.__dataclass_fields__)
    assert git(listed, "status", "--porcelain") == ""


def test_ends_that_a_search_cannot_take_are_refused(listed: Path, call: Call) -> None:
    for good, bad in (("main", "main~8"), ("main", "main"), (PLUGIN, "main")):
        code, _, err = call("bisect", "--good", good, "--bad", bad, "--case", "a", "--dry-run")
        assert code == 2 and "an ancestor of the bad one" in err and len(err.splitlines()) == 1
