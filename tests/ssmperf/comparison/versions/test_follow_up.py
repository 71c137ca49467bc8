"""The commit and the commands that a comparison names; none that cannot work."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes.command_line import caller
from support.versions.repositories import PLUGIN, commit, git

from ssmperf import Case, Record, Run, RunComparison, Shape, Status
from ssmperf.comparison.versions.follow_up import follow_up, follow_up_sides
from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.plan.command import words_that_select
from ssmperf.suitekit import compare_runs

SECTIONS = {"throughput": {"rank": "latency_s"}, "correctness": {"rank": None}}
Change = Callable[[list[str]], None]


def case(suite: str = "throughput", seed: int = 0) -> Case:
    return Case(suite, "scan", "blelloch", Shape(B=1, T=64, C=4), "hgrn", seed=seed)


def timed(seconds: float, commit_: str | None = None, *, dirty: bool = False, **place: Any) -> Record:
    samples = [seconds * (1 + 1e-4 * number) for number in range(-10, 11)]
    numbers: dict[str, Any] = {"latency_s": seconds, "samples_s": samples}
    if commit_:
        numbers["plugin"] = {"file": PLUGIN, "commit": commit_, "dirty": dirty}
    return Record(case(**place), Status.OK, None, "e", numbers)


def run(*records: Record, **meta: Any) -> Run:
    return Run(Path("runs/new"), {"suites": SECTIONS, "environments": {"e": {}}, **meta}, list(records))


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a repository with two commits of a plug-in, and stand in it."""
    git(tmp_path, "init", "-q", "-b", "main")
    monkeypatch.chdir(tmp_path)
    return [commit(tmp_path, number, f"# {number}") for number in range(2)]


def compared(base: str | None = None, new: str | None = None, *, dirty: bool = False) -> RunComparison:
    """Compare runs of which the new one is slower, and wrong in the suite that judges alone."""
    wrong = replace(timed(1.0, new, suite="correctness"), status=Status.WRONG, reason="far off", numbers={})
    old = run(timed(1.0, base, dirty=dirty), timed(1.0, base, dirty=dirty, suite="correctness"))
    return compare_runs(old, run(timed(3.0, new), wrong))


def verbs(found: RunComparison) -> list[str]:
    return [command.split()[1] for command in found.commands]


def test_a_commit_is_named_with_subject_and_author(commits: list[str]) -> None:
    found = follow_up(compared(*commits))
    assert f'since {commits[0][:10]} "change 0" (Ada)' in found.conclusion


def test_wrong_cases_are_diagnosed_and_wrong_and_slower_ones_bisected(commits: list[str]) -> None:
    found = follow_up(compared(*commits), plugins=(PLUGIN,))
    assert verbs(found) == ["diagnose", "bisect", "bisect"]
    assert found.commands[0] == f"ssmperf diagnose runs/new {case('correctness').id}"
    ends = ["--good", commits[0][:10], "--bad", commits[1][:10], "--case"]
    for command, suite in zip(found.commands[1:], ("correctness", "throughput"), strict=True):
        words = shlex.split(command)
        assert words[2:10] == [*ends, case(suite).id, "--plugin", PLUGIN]
        assert words[10:] == words_that_select(case(suite))


def test_the_words_of_a_case_select_it_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = replace(case(), cache="hot")  # as on a CPU
    code, out, err = caller(monkeypatch, capsys)("run", *words_that_select(wanted), "--dry-run")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[:-1]] == [wanted.id]


def test_a_file_from_outside_its_repository_is_bisected_by_its_path_there(commits: list[str]) -> None:
    found = follow_up(compared(*commits), plugins=(str(Path(PLUGIN).resolve()),))
    assert f"--plugin {PLUGIN} " in found.commands[-1]


@pytest.mark.parametrize(
    "name", ["no commits", "one commit", "backwards", "not here", "changed", "untracked file", "an option"]
)
def test_a_search_that_cannot_work_is_not_offered(name: str, commits: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("")
    sides: dict[str, tuple[str | None, str | None]] = {
        "no commits": (None, None),
        "one commit": (commits[0], commits[0]),
        "backwards": (commits[1], commits[0]),
        "not here": ("0123456789" * 4, commits[1]),
        "an option": ("--output=written", commits[1]),
    }
    base, new = sides.get(name, (commits[0], commits[1]))
    plugins = ("other.py",) if name == "untracked file" else (PLUGIN,)
    found = follow_up(compared(base, new, dirty=name == "changed"), plugins=plugins)
    assert verbs(found) == ["diagnose"]
    assert not (tmp_path / "written").exists()
    assert (found.since == "") is (name not in ("one commit", "backwards", "untracked file"))


def test_versions_that_are_named_come_before_those_of_the_records(commits: list[str]) -> None:
    found = follow_up(compared(), "main~1", "main", ())
    assert found.since.startswith(commits[0][:10]) and "bisect" in verbs(found)
    assert follow_up(compared(*commits), "nothing", "main").since == ""


def test_a_folder_with_changes_is_no_commit(commits: list[str]) -> None:
    base = Side("main~1", "git ref", "x", "python", commits[0])
    for changed in (False, True):
        new = Side(".", "source folder", "x", "python", commits[1], changed=changed)
        found = follow_up_sides(compared(), {"base": base, "new": new}, (PLUGIN,))
        assert found.since.startswith(commits[0][:10])
        assert ("bisect" in verbs(found)) is not changed
        assert found.versions == (base.label, new.label)


def test_without_a_repository_the_versions_label_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = compared("0123456789" * 4, "1123456789" * 4)
    found = follow_up(replace(found, versions=("wheel a.whl", "wheel b.whl")))
    assert "since wheel a.whl" in found.conclusion and verbs(found) == ["diagnose"]


def test_a_case_that_cannot_be_repeated_here_is_not_diagnosed(commits: list[str]) -> None:
    found = compared(*commits)
    for plugins, repeated in (([str(Path(PLUGIN).resolve())], True), (["gone.py"], False), ("text", False)):
        found.new.meta["plugins"] = plugins
        assert ("diagnose" in verbs(follow_up(found, plugins=()))) is repeated
    crashed = replace(found.new.records[1], status=Status.CRASH)
    crash = compare_runs(found.base, run(crashed))
    assert "diagnose" not in verbs(follow_up(crash, plugins=()))
