"""`bisect` judges by `ab`: it measures the plug-in of each tree, and tells whose failure ends the search."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.repositories import KERNEL, PLUGIN, commit, git, state_of

import ssmperf
from ssmperf import cli
from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.cases.shape import Shape
from ssmperf.errors import ExitCode, UsageError, VersionFailed
from ssmperf.runs.store import Writer
from ssmperf.versions import procedure
from ssmperf.versions.bisection import BAD, Judgement, bisect
from ssmperf.versions.procedure import Versions
from ssmperf.versions.sides import Side


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    monkeypatch.chdir(folder)
    return folder


class FakeProcess:
    """A side that reads the time of its case from the plug-in file of its tree instead of measuring it."""

    refusal = None
    takes_turns = False

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
    with pytest.raises(UsageError, match="that begins with"):
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
