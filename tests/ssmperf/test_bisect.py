"""`bisect` finds the planted commit, skips what cannot be judged, and leaves the user's files as they are."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.repositories import PLUGIN, commit, git, state_of

from ssmperf.errors import ExitCode, UsageError, VersionEnded, VersionFailed
from ssmperf.versions import bisection
from ssmperf.versions.bisection import BAD, GIT_CODES, GOOD, SKIP, Judgement, Measured, bisect
from ssmperf.versions.candidates import Commit
from ssmperf.versions.procedure import Versions


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Make a repository with sixteen commits; the plug-in file is missing at the tenth."""
    folder = tmp_path_factory.mktemp("sixteen")
    git(folder, "init", "-q", "-b", "main")
    texts = (None if number == 9 else f"# {number}" for number in range(16))
    return folder, [commit(folder, number, text) for number, text in enumerate(texts)]


@pytest.fixture
def history(repository: Path, sixteen: tuple[Path, list[str]]) -> list[str]:
    """Put the sixteen commits into the repository."""
    folder, names = sixteen
    shutil.copytree(folder, repository, dirs_exist_ok=True)
    git(repository, "reset", "-q")
    return names


class Judging:
    """A judge that knows from which commit on it is slow, and which ones cannot be judged."""

    def __init__(
        self, history: list[str], slow_from: int, odd: Mapping[int, Judgement] | None = None
    ) -> None:
        self.history, self.slow_from, self.odd = history, slow_from, odd or {}
        self.asked: list[int] = []

    def __call__(self, good: str, candidate: str, folder: Path, threshold: float) -> Judgement:
        number = self.history.index(candidate)
        assert good == self.history[0] and number not in self.asked
        self.asked.append(number)
        if number in self.odd:
            return self.odd[number]
        slow = number >= self.slow_from
        return Judgement(BAD if slow else GOOD, "slower" if slow else "same", 1.3 if slow else 1.01, 1.2, 1.4)


def search(out: Path, judge: Any, **more: Any) -> bisection.Bisected:
    wanted = Versions("main~15", "main", {"suite": "throughput"}, plugins=(PLUGIN,), cases=("abc",))
    return bisect(wanted, out, judge=judge, **more)


@pytest.mark.parametrize("slow_from", [1, 2, 6, 8, 11, 15])
def test_the_first_slow_commit_is_found(slow_from: int, history: list[str], tmp_path: Path) -> None:
    judge = Judging(history, slow_from)
    steps: list[tuple[Commit, int, int]] = []
    found = search(tmp_path / "out", judge, on_step=lambda *step: steps.append(step))
    (first,) = found.first
    assert first == Commit(
        history[slow_from], "Ada", f"2026-01-{1 + slow_from:02}T12:00:00+00:00", f"change {slow_from}"
    )
    assert found.exit_code == ExitCode.OK and found.judgement.ratio == 1.3
    assert judge.asked[0] == 15 and len(judge.asked) <= 6
    assert all(
        text in found.conclusion for text in (first.name, "change", "2026-01", "1.300× [1.200, 1.400]")
    )
    left = [step[1] for step in steps]
    assert left == sorted(left, reverse=True) and left[0] == 15
    assert 4 <= steps[0][2] <= 5


def test_a_commit_without_the_plugin_is_skipped_and_never_judged(history: list[str], tmp_path: Path) -> None:
    """The user's own file has the plug-in, but it is not that of this commit."""
    for slow_from in (8, 10, 11):
        judge = Judging(history, slow_from)
        found = search(tmp_path / str(slow_from), judge)
        assert 9 not in judge.asked
        names = [each.name for each in found.first]
        assert names == ([history[9], history[10]] if slow_from == 10 else [history[slow_from]])
        assert found.exit_code == (ExitCode.UNSURE if slow_from == 10 else ExitCode.OK)
        if history[9] in found.judged:
            assert found.judged[history[9]].text == f"it has no {PLUGIN}"


def test_commits_that_cannot_be_judged_are_skipped(history: list[str], tmp_path: Path) -> None:
    odd = {number: Judgement(SKIP, "ambiguous") for number in (6, 7, 8)}
    found = search(tmp_path / "near", Judging(history, 12, odd))
    assert [each.name for each in found.first] == [history[12]]
    found = search(tmp_path / "between", Judging(history, 7, odd))
    assert {each.name for each in found.first} >= {history[6], history[7], history[8]}
    assert found.exit_code == ExitCode.UNSURE and "could not be judged" in found.conclusion


def test_the_users_repository_stays_as_it_is(history: list[str], repository: Path, tmp_path: Path) -> None:
    (repository / "number").write_text("changed")
    (repository / PLUGIN).write_text("# staged")
    git(repository, "add", PLUGIN)
    (repository / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\necho called > ../called\n")
    (repository / ".git" / "hooks" / "post-checkout").chmod(0o755)
    before = state_of(repository)
    search(tmp_path / "out", Judging(history, 5))
    assert state_of(repository) == before
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "interrupted", interrupted_after(0, history))
    assert state_of(repository) == before


def test_a_search_of_the_user_goes_on_undisturbed(
    history: list[str], repository: Path, tmp_path: Path
) -> None:
    git(repository, "bisect", "start", "main~1", "main~12")
    before = git(repository, "bisect", "log"), git(repository, "rev-parse", "HEAD")
    found = search(tmp_path / "out", Judging(history, 5))
    assert [each.name for each in found.first] == [history[5]]
    assert (git(repository, "bisect", "log"), git(repository, "rev-parse", "HEAD")) == before


def interrupted_after(count: int, history: list[str]) -> Callable[..., Judgement]:
    inner = Judging(history, 6)

    def judge(good: str, candidate: str, folder: Path, threshold: float) -> Judgement:
        if len(inner.asked) == count:
            raise KeyboardInterrupt
        return inner(good, candidate, folder, threshold)

    return judge


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_interrupted_search_goes_on(count: int, history: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        search(out, interrupted_after(count, history))
    whole = Judging(history, 6)
    search(tmp_path / "whole", whole)
    rest = Judging(history, 6)
    found = search(out, rest, resume=True)
    assert [each.name for each in found.first] == [history[6]]
    assert rest.asked == whole.asked[count:]
    with pytest.raises(UsageError, match="not empty"):
        search(out, rest)
    with pytest.raises(UsageError, match="another cases"):
        bisect(Versions("main~15", "main", {"suite": "throughput"}, plugins=(PLUGIN,), cases=("xyz",)),
               out, judge=rest, resume=True)  # fmt: skip


def test_a_branch_that_was_merged_is_searched(repository: Path, tmp_path: Path) -> None:
    names = [commit(repository, number, f"# {number}") for number in range(4)]
    git(repository, "checkout", "-q", "-b", "side", names[1])
    names += [commit(repository, number, f"# {number}") for number in range(4, 7)]
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "-s", "ours", "-m", "merge", "side")
    names.append(git(repository, "rev-parse", "HEAD"))
    slow = {names[5], names[6], names[7]}

    def judge(good: str, candidate: str, folder: Path, threshold: float) -> Judgement:
        return Judgement(BAD if candidate in slow else GOOD, "", 1.2)

    wanted = Versions(names[0], "main", {})
    assert [each.name for each in bisect(wanted, tmp_path / "out", judge=judge).first] == [names[5]]


def test_ends_that_do_not_fit_are_refused(history: list[str], repository: Path, tmp_path: Path) -> None:
    judge = Judging(history, 99)
    with pytest.raises(UsageError, match=r"main .* is not slower than main~15 .* by more than 5 %: same"):
        search(tmp_path / "one", judge)
    assert judge.asked == [15]
    for base, new, text in (
        ("main", "main~3", "no ancestor"),
        ("main", "main~0", "main and main~0 are the same commit"),
        ("nothing", "main", "names no version"),
        (PLUGIN, "main", "is a plug-in"),
    ):
        with pytest.raises(UsageError, match=text):
            bisect(Versions(base, new, {}), tmp_path / "two", judge=judge)
    assert not (tmp_path / "two").exists()
    odd = Judging(history, 12, {15: Judgement(SKIP, "ambiguous", 1.04)})
    with pytest.raises(bisection.Undecided, match=r"cannot be compared with main~15 .*: ambiguous 1\.040×"):
        search(tmp_path / "three", odd)


def test_a_plugin_named_from_elsewhere_is_taken_from_the_trees(
    history: list[str], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all candidates would be measured with the user's own file."""
    monkeypatch.chdir(repository / "kernels")
    for number, file in enumerate((PLUGIN, "mine.py", str(repository / PLUGIN))):
        judge = Judging(history, 12)
        bisect(Versions("main~15", "main", {}, plugins=(file,)), tmp_path / str(number), judge=judge)
        state = json.loads((tmp_path / str(number) / "bisect.json").read_text())
        assert state["wanted"]["plugins"] == [PLUGIN]


def test_exit_codes_are_read_as_git_does() -> None:
    assert {int(code): GIT_CODES[code] for code in GIT_CODES} == {0: 0, 1: 1, 2: 128, 3: 125, 4: 125}


@pytest.mark.parametrize("kind", [VersionFailed, VersionEnded])
def test_a_failing_candidate_is_skipped_and_a_failing_base_ends_the_search(
    kind: type[VersionFailed | VersionEnded], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(side: str) -> Callable[..., Any]:
        def compare(*arguments: Any, **more: Any) -> Any:
            raise kind("cannot install it", side)

        return compare

    measured = Measured(Versions("a", "b", {}))
    monkeypatch.setattr(bisection, "compare_versions", failing("new"))
    found = measured("a", "b", tmp_path, 0.1)
    assert found.code == SKIP and "cannot install it" in found.text
    monkeypatch.setattr(bisection, "compare_versions", failing("base"))
    with pytest.raises(kind):
        measured("a", "b", tmp_path, 0.1)


def test_noise_in_the_verdicts_of_skipped_commits_does_not_matter(history: list[str], tmp_path: Path) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        odd = {number: Judgement(SKIP, "ambiguous") for number in range(1, 15) if chance.random() < 0.3}
        slow_from = chance.randrange(1, 15)
        found = search(tmp_path / str(seed), Judging(history, slow_from, odd))
        assert history[slow_from] in [each.name for each in found.first]
