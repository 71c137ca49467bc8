"""`bisect` finds the planted commit, skips what cannot be judged, and leaves the user's files as they are."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf import cli
from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.cases.shape import Shape
from ssmperf.errors import ExitCode, UsageError, VersionEnded, VersionFailed
from ssmperf.runs.store import Writer
from ssmperf.versions import bisection, procedure
from ssmperf.versions.bisection import BAD, GIT_CODES, GOOD, SKIP, Judgement, Measured, bisect
from ssmperf.versions.candidates import Commit
from ssmperf.versions.procedure import Versions
from ssmperf.versions.sides import Side

PLUGIN = "kernels/mine.py"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, number: int, text: str | None) -> str:
    """Commit a plug-in file with this text, or without one, and give the commit's name."""
    file = folder / PLUGIN
    file.parent.mkdir(exist_ok=True)
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    (folder / "number").write_text(str(number))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"change {number}", "--date", f"2026-01-{1 + number:02}T12:00:00+00:00")
    return git(folder, "rev-parse", "HEAD")


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


def state_of(repository: Path) -> dict[str, str]:
    """Give all that a search must not change."""
    return {
        "head": (repository / ".git" / "HEAD").read_text(),
        "index": (repository / ".git" / "index").read_bytes().hex(),
        "status": git(repository, "status", "--porcelain"),
        "refs": git(repository, "for-each-ref"),
        "worktrees": git(repository, "worktree", "list", "--porcelain"),
        "files": str(sorted(str(file) for file in repository.rglob("*") if ".git" not in file.parts)),
        "number": (repository / "number").read_text(),
    }


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
        ("main", "main", "no ancestor"),
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


KERNEL = """
import time
import torch
import ssmperf

@ssmperf.backend("scan", name="mine")
def mine(log_a, b, initial_state=None, *, phase=None):
    h = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(log_a.exp().expand_as(b).unbind(1), b.unbind(1)):
        h = a_t * h + b_t
        states.append(h)
    time.sleep({seconds})
    return torch.stack(states, 1), h
"""


class FakeProcess:
    """A side that reads the time of its case from the plug-in file of its tree instead of measuring it."""

    refusal = None

    def __init__(self, name: str, side: Side, run_folder: Path, *ignored: Any) -> None:
        (file,) = side.plugins
        assert Path(file).is_relative_to(side.folder)
        text = Path(file).read_text()
        if "broken" in text:
            raise VersionFailed(f"{name}: plug-in {file}: it is broken", name)
        self.name, self.seconds, self.run_folder = name, float(text), run_folder
        shape = Shape(B=1, T=8, C=2)
        case = Case(suite="throughput", recurrence="scan", backend="mine", shape=shape)
        self.cases = {case.id: case}
        section = {"title": "T", "question": "", "columns": [], "rank": "latency_s"}
        meta = {"created": "2026-01-01", "suites": {"throughput": section}}
        self.writer, _ = Writer.resume(run_folder, meta)

    def prepare(self, number: int, ids: Sequence[str]) -> None: ...

    def wait_until_prepared(self) -> None: ...

    def run_round(self, number: int, ids: Sequence[str]) -> int:
        for id_ in ids:
            noise = random.Random(f"{self.name} {self.seconds} {number}").gauss(0, 0.003)
            numbers = {"round": number, "latency_s": self.seconds * (1 + noise)}
            self.writer.append(Record(self.cases[id_], Status.OK, None, None, numbers))
        return len(ids)

    def close(self) -> None:
        self.writer.close()

    def kill(self) -> None: ...


@pytest.fixture
def fake_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(procedure, "SideProcess", FakeProcess)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_each_candidate_is_measured_with_the_plugin_of_its_tree(
    repository: Path, tmp_path: Path, fake_processes: None
) -> None:
    """The case drifts by 6 % before it becomes 30 % slower: half of the way is crossed there."""
    texts = ["0.001", "0.001", "broken", "0.00106", "0.00106", "0.0013", "0.0013", "broken", "0.0013"]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    (repository / PLUGIN).write_text("0.5")  # the user's own file, which nobody measures
    found = ssmperf.bisect(names[0], "main", case="", plugin=PLUGIN, out=tmp_path / "out")
    assert [each.name for each in found.first] == [names[5]] and found.exit_code == 0
    assert 1.25 < (found.judgement.low or 0) < 1.3 < (found.judgement.high or 0) < 1.35
    folders = [tmp_path / "out" / names[number][:10] for number in (8, 5)]
    thresholds = [json.loads((folder / "ab.json").read_text())["threshold"] for folder in folders]
    assert thresholds == [0.05, pytest.approx(0.14, abs=0.01)]
    strict = ssmperf.bisect(names[0], "main", case="", plugin=PLUGIN, out=tmp_path / "strict", threshold="2%")
    assert {each.name for each in strict.first} == {names[2], names[3]}
    assert strict.judged[names[2]].word == "skip" and "it is broken" in strict.judged[names[2]].text


def test_a_wrong_request_ends_the_search(repository: Path, tmp_path: Path, fake_processes: None) -> None:
    for number, text in enumerate(("0.001", "0.002")):
        commit(repository, number, text)
    with pytest.raises(UsageError, match="no case in common"):
        ssmperf.bisect("main~1", "main", case="zzz", plugin=PLUGIN, out=tmp_path / "out")
    with pytest.raises(UsageError, match="no plug-in file other"):
        ssmperf.bisect("main~1", "main", case="", plugin="other.py", out=tmp_path / "other")
    commit(repository, 2, "broken")
    with pytest.raises(UsageError, match=r"base: plug-in .* it is broken"):
        commit(repository, 3, "0.002")
        ssmperf.bisect("main~1", "main", case="", plugin=PLUGIN, out=tmp_path / "base")


def test_by_the_command_line(
    repository: Path,
    tmp_path: Path,
    fake_processes: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = ["0.001", "0.001", "0.0014", "0.0014"]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    words = ["bisect", "--good", names[0], "--bad", "main", "--case", "", "--plugin", PLUGIN]

    def call(*more: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ssmperf", *words, *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    code, out, err = call("--out", str(tmp_path / "out"))
    assert code == 0 and f"{names[2]} is the first slow commit: 1." in out
    assert "2026-01-03T12:00:00+00:00  Ada" in out and "    change 2\n" in out
    assert "bisecting: 3 commits left" in err and f"{names[1][:10]} is good: same" in err
    code, out, _ = call("--out", str(tmp_path / "out"), "--resume", "--json")
    assert code == 0 and [each["name"] for each in json.loads(out)["first"]] == [names[2]]
    assert call("--out", str(tmp_path / "out"))[0] == 2  # it is not empty
    assert call("--out", str(tmp_path / "high"), "--threshold", "90%")[0] == 2


def test_real_processes_of_four_commits(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made up but the comparison of the ends. The third commit does not import."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fast, slow = (KERNEL.replace("{seconds}", seconds) for seconds in ("0.002", "0.02"))
    texts = (fast, f"{fast}# the same", "import nothing", slow)
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    before = state_of(repository)
    choices = {"models": "hgrn", "backends": "mine", "axis": ["T=8", "C=2"], "pass_": "forward",
               "device": "cpu", "time": 0.05}  # fmt: skip
    wanted = Versions.of(names[0], "main", "throughput", choices, [PLUGIN], "", "2+5", 0.05)

    def ends(good: str, candidate: str, folder: Path, threshold: float) -> Judgement:
        if candidate == names[3]:
            return Judgement(BAD, "slower", 7.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bisect(wanted, tmp_path / "out", judge=ends)
    found = bisect(wanted, tmp_path / "out", resume=True)
    words = {number: found.judged[name].word for number, name in enumerate(names) if name in found.judged}
    assert words[1] in ("good", "skip"), found.judged  # two pairs are ambiguous on a busy machine
    assert words[2] == "skip" and found.exit_code == ExitCode.UNSURE
    assert {each.name for each in found.first} == {*names[2:], *([names[1]] if words[1] == "skip" else [])}
    assert "No module named 'nothing'" in found.judged[names[2]].text
    assert (tmp_path / "out" / names[1][:10] / "new" / "records.jsonl").read_text().count("latency_s") >= 2
    assert state_of(repository) == before
