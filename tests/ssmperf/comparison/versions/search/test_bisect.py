"""`bisect` names what it has shown, skips what cannot be judged, and leaves the user's files as they are."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.versions.bisections import Answering, Knowing, numbers, slow_from
from support.versions.repositories import PLUGIN, commit, git, state_of

from ssmperf.comparison.versions.procedure import Versions
from ssmperf.comparison.versions.search import bisection, verdicts
from ssmperf.comparison.versions.search.bisected import Bisected
from ssmperf.comparison.versions.search.bisection import bisect
from ssmperf.comparison.versions.search.candidates import Commit
from ssmperf.comparison.versions.search.looks import Ratio
from ssmperf.comparison.versions.search.verdicts import (
    BAD,
    GOOD,
    SKIP,
    CommitVerdict,
    Followed,
    MeasuringJudge,
    of_record,
)
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.errors import ExitCode, UnreadableRun, UsageError, VersionEnded, VersionFailed


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


def search(out: Path, meter: Any, **more: Any) -> Bisected:
    wanted = Versions("main~15", "main", {"suite": "throughput"}, plugins=(PLUGIN,), cases=("abc",))
    return bisect(wanted, out, meter=meter, **more)


@pytest.mark.slow(but=("1",))
@pytest.mark.parametrize("number", [1, 2, 6, 8, 11, 15])
def test_the_first_slow_commit_is_found(number: int, history: list[str], tmp_path: Path) -> None:
    meter = slow_from(history, number)
    steps: list[tuple[Commit, int, int]] = []
    found = search(tmp_path / "out", meter, on_step=lambda *step: steps.append(step))
    (first,) = found.first
    assert (
        found.named
        == first
        == Commit(history[number], "Ada", f"2026-01-{1 + number:02}T12:00:00+00:00", f"change {number}")
    )
    assert found.exit_code == ExitCode.OK and found.judgement.ratio == 1.3
    assert meter.asked[0] == (0, 15) and meter.asked[-1] == (number - 1, number)
    assert all(
        text in found.conclusion for text in (first.name, "change", "2026-01", "1.300× [1.275, 1.326]")
    )
    left = [step[1] for step in steps]
    assert left == sorted(left, reverse=True) and left[0] == 15
    assert 4 <= steps[0][2] <= 5


@pytest.mark.slow
def test_a_commit_without_the_plugin_is_skipped_and_never_judged(history: list[str], tmp_path: Path) -> None:
    """The user's own file has the plug-in, but it is not that of this commit."""
    for number in (8, 10, 11):
        meter = slow_from(history, number, {9: "cannot be measured: it has no plug-in"})
        found = search(tmp_path / str(number), meter)
        assert 9 not in meter.candidates
        assert numbers(found, history) == ([9, 10] if number == 10 else [number])
        assert found.exit_code == (ExitCode.UNSURE if number == 10 else ExitCode.OK)
        if history[9] in found.judged:
            assert found.judged[history[9]].text == f"it has no {PLUGIN}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Knowing, Answering])
def test_commits_that_cannot_be_judged_are_skipped(
    kind: type[Knowing], history: list[str], tmp_path: Path
) -> None:
    odd = dict.fromkeys((6, 7, 8), "cannot be installed")
    times = [[1.3 if each >= number else 1.0 for each in range(16)] for number in (12, 7)]
    assert numbers(search(tmp_path / "near", kind(history, times[0], odd)), history) == [12]
    found = search(tmp_path / "between", kind(history, times[1], odd))
    assert numbers(found, history) == [6, 7, 8, 9, 10]  # the tenth has no plug-in
    assert found.exit_code == ExitCode.UNSURE and "could not be judged" in found.conclusion
    assert found.conclusion.count("skip, cannot be installed") == 3 and found.named is None


@pytest.mark.parametrize(
    "status, code",
    [(Status.OK, GOOD), (Status.WRONG, BAD), (Status.NAN, BAD), (Status.CRASH, BAD),
     (Status.OOM, SKIP), (Status.TIMEOUT, SKIP), (Status.UNSUPPORTED, SKIP)],
)  # fmt: skip
def test_statuses_are_read_as_judgements(status: Status, code: int) -> None:
    case = Case(suite="correctness", recurrence="scan", backend="mine", shape=Shape(B=1, T=7, C=2))
    found = of_record(Record(case, status, "because"))
    assert found.code == code and (code == GOOD or found.text == f"{status}: because")


def test_the_users_repository_stays_as_it_is(history: list[str], repository: Path, tmp_path: Path) -> None:
    (repository / "number").write_text("changed")
    (repository / PLUGIN).write_text("# staged")
    git(repository, "add", PLUGIN)
    (repository / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\necho called > ../called\n")
    (repository / ".git" / "hooks" / "post-checkout").chmod(0o755)
    before = state_of(repository)
    search(tmp_path / "out", slow_from(history, 5))
    assert state_of(repository) == before
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "interrupted", Interrupted(history, 0))
    assert state_of(repository) == before


def test_a_search_of_the_user_goes_on_undisturbed(
    history: list[str], repository: Path, tmp_path: Path
) -> None:
    git(repository, "bisect", "start", "main~1", "main~12")
    before = git(repository, "bisect", "log"), git(repository, "rev-parse", "HEAD")
    assert numbers(search(tmp_path / "out", slow_from(history, 5)), history) == [5]
    assert (git(repository, "bisect", "log"), git(repository, "rev-parse", "HEAD")) == before


class Interrupted(Knowing):
    """Is interrupted after some measurements."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        super().__init__(names, [1.0] * 3 + [1.12] * 3 + [1.4] * 10)
        self.count = count

    def ratio(self, base: int, new: int) -> Ratio | str:
        if len(self.asked) == self.count:
            raise KeyboardInterrupt
        return super().ratio(base, new)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3, 5, 6])
def test_an_interrupted_search_goes_on(count: int, history: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = Interrupted(history, 99)
    expected = search(tmp_path / "whole", whole)
    assert len(whole.asked) == 7  # the ends, four candidates, the parent, what lies before it
    with pytest.raises(KeyboardInterrupt):
        search(out, Interrupted(history, count))
    rest = Interrupted(history, 99)
    found = search(out, rest, resume=True)
    assert found.conclusion == expected.conclusion and numbers(found, history) == [6]
    assert rest.asked == whole.asked[count:]
    with pytest.raises(UsageError, match="not empty"):
        search(out, rest)
    with pytest.raises(UsageError, match="another cases"):
        bisect(Versions("main~15", "main", {"suite": "throughput"}, plugins=(PLUGIN,), cases=("xyz",)),
               out, meter=rest, resume=True)  # fmt: skip


def test_a_search_of_an_earlier_version_is_not_continued(history: list[str], tmp_path: Path) -> None:
    """Its judgements followed another rule."""
    tmp_path /= "out"
    search(tmp_path, slow_from(history, 6), resume=True)
    file = tmp_path / "bisect.json"
    state = json.loads(file.read_text())
    del state["wanted"]["rule"]
    state["wanted"]["halfway"] = True
    file.write_text(json.dumps(state))
    with pytest.raises(
        UsageError, match="another version of ssmperf, which judged otherwise: pass another --out"
    ):
        search(tmp_path, slow_from(history, 6), resume=True)
    for text in ("", "[]", "{}", '{"wanted": {"rule": "midpoint"}}'):
        file.write_text(text)
        with pytest.raises((UnreadableRun, UsageError)) as error:
            search(tmp_path, slow_from(history, 6), resume=True)
        assert "\n" not in str(error.value)


def test_a_branch_that_was_merged_is_searched(repository: Path, tmp_path: Path) -> None:
    names = [commit(repository, number, f"# {number}") for number in range(4)]
    git(repository, "checkout", "-q", "-b", "side", names[1])
    names += [commit(repository, number, f"# {number}") for number in range(4, 7)]
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "-s", "ours", "-m", "merge", "side")
    names.append(git(repository, "rev-parse", "HEAD"))
    wanted = Versions(names[0], "main", {})
    found = bisect(wanted, tmp_path / "out", meter=Knowing(names, [1, 1, 1, 1, 1, 1.2, 1.2, 1.2]))
    assert numbers(found, names) == [5] and found.exit_code == ExitCode.OK
    meter = Knowing(names, [1, 1, 1, 1, 1, 1, 1, 1.2])  # the merge itself, which has two parents
    found = bisect(wanted, tmp_path / "merge", meter=meter)
    assert numbers(found, names) == [7] and {(3, 7), (6, 7)} <= set(meter.asked)


def test_ends_that_do_not_fit_are_refused(history: list[str], repository: Path, tmp_path: Path) -> None:
    meter = slow_from(history, 99)
    with pytest.raises(UsageError, match=r"main .* is not slower than main~15 .* by more than 5 %: same"):
        search(tmp_path / "one", meter)
    assert meter.asked == [(0, 15)]
    for base, new, text in (
        ("main", "main~3", "no ancestor"),
        ("main", "main~0", "main and main~0 are the same commit"),
        ("nothing", "main", "names no version"),
        (PLUGIN, "main", "is a plug-in"),
    ):
        with pytest.raises(UsageError, match=text):
            bisect(Versions(base, new, {}), tmp_path / "two", meter=meter)
    assert not (tmp_path / "two").exists()
    odd = slow_from(history, 12, {15: 1.04})
    with pytest.raises(bisection.Undecided, match=r"cannot be compared with main~15 .*: ambiguous 1\.040×"):
        search(tmp_path / "three", odd)
    with pytest.raises(UsageError, match=r"main .* is not slower than main~15 .*, nor wrong: ok"):
        search(tmp_path / "four", Answering(history, [1.0] * 16))


@pytest.mark.slow
def test_a_plugin_named_from_elsewhere_is_taken_from_the_trees(
    history: list[str], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all candidates would be measured with the user's own file."""
    monkeypatch.chdir(repository / "kernels")
    for number, file in enumerate((PLUGIN, "mine.py", str(repository / PLUGIN))):
        meter = slow_from(history, 12)
        bisect(Versions("main~15", "main", {}, plugins=(file,)), tmp_path / str(number), meter=meter)
        state = json.loads((tmp_path / str(number) / "bisect.json").read_text())
        assert state["wanted"]["plugins"] == [PLUGIN]


@pytest.mark.parametrize("kind", [VersionFailed, VersionEnded])
def test_a_failing_candidate_is_skipped_and_a_failing_base_ends_the_search(
    kind: type[VersionFailed | VersionEnded], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def failing(side: str) -> Any:
        def measure(*arguments: Any, **more: Any) -> Any:
            raise kind("cannot install it", side)

        return measure

    def compare(base: str) -> Ratio | str:
        return measured.compare(followed, base, "b", tmp_path, lambda at: True)

    measured = MeasuringJudge(Versions("a", "c", {}), "0")
    followed = Followed("3f2a", "throughput", "a case", True, False, 0, CommitVerdict(BAD, "slower", 1.2))
    monkeypatch.setattr(verdicts, "measure_case", failing("new"))
    assert compare("a") == "cannot be measured: cannot install it"
    monkeypatch.setattr(verdicts, "measure_case", failing("base"))
    assert compare("parent") == "cannot be measured: cannot install it"
    with pytest.raises(kind):
        compare("a")


@pytest.mark.slow
def test_skipped_commits_stay_in_the_range(history: list[str], tmp_path: Path) -> None:
    for seed in range(4):
        chance = random.Random(seed)
        odd = {number: "ambiguous" for number in range(1, 15) if chance.random() < 0.3}
        number = chance.randrange(1, 15)
        found = search(tmp_path / str(seed), slow_from(history, number, odd))
        assert number in numbers(found, history)
        assert (found.named is not None) == (len(found.first) == 1)
