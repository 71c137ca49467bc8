"""`bisect` measures the plug-in of each tree, follows one case, and tells whose failure ends the search."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.versions.repositories import KERNEL, PLUGIN, commit, git, state_of

import ssmperf
from ssmperf.comparison.versions import procedure
from ssmperf.comparison.versions.search import verdicts
from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.runs.rounds import round_of
from ssmperf.engine.runs.store import Writer
from ssmperf.errors import ExitCode, UsageError, VersionFailed
from ssmperf.shell import cli


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    monkeypatch.chdir(folder)
    return folder


class FakeProcess:
    """A side that reads its cases from the plug-in file of its tree instead of measuring them.

    A word is the time of a throughput case, or the bytes of a memory case, or the answer of a correctness
    case. Cases are told apart by their number of channels.
    """

    rounds: ClassVar[list[tuple[str, str, int]]] = []  # name of the side, case and number of each round

    refusal = None
    takes_turns = False

    def __init__(self, name: str, side: Side, run_folder: Path, *ignored: Any) -> None:
        (file,) = side.plugins
        assert Path(file).is_relative_to(side.folder)
        text = Path(file).read_text()
        if "broken" in text:
            raise VersionFailed(f"{name}: plug-in {file}: it is broken", name)
        self.name, self.run_folder = name, run_folder
        self.texts: dict[str, str] = {}
        self.cases = {}
        for channels, each in enumerate(text.split(), 1):
            case = the_case(channels, suite_of(each))
            self.cases[case.id], self.texts[case.id] = case, each
        section = {"title": "T", "question": "", "columns": []}
        ranks = {"throughput": "latency_s", "memory": "peak_bytes"}
        suites = {name: {**section, "rank": ranks.get(name)} for name in (*ranks, "correctness")}
        self.writer, run = Writer.resume(run_folder, {"created": "2026-01-01", "suites": suites})
        self.done = {(each.case.id, round_of(each)) for found in run.rounds.values() for each in found}

    def prepare(self, number: int, ids: Sequence[str]) -> None: ...

    def wait_until_prepared(self) -> None: ...

    def run_round(self, number: int, ids: Sequence[str]) -> int:
        for id_ in ids:
            if (id_, number) in self.done:
                continue
            self.rounds.append((self.name, id_, number))
            text, case = self.texts[id_], self.cases[id_]
            if case.suite == "correctness":
                reason = None if text == "ok" else "by 3.0"
                record = Record(case, Status(text), reason, None, {"round": number})
            elif case.suite == "memory":
                record = Record(case, Status.OK, None, None, {"round": number, "peak_bytes": int(text[:-1])})
            else:
                noise = random.Random(f"{self.name} {text} {number}").gauss(0, 0.003)
                seconds = float(text) * (1 + noise)
                record = Record(case, Status.OK, None, None, {"round": number, "latency_s": seconds})
            self.writer.append(record)
        return len(ids)

    def close(self) -> None:
        self.writer.close()

    def kill(self) -> None: ...


def suite_of(word: str) -> str:
    return "memory" if word.endswith("B") else "throughput" if word[0].isdigit() else "correctness"


def the_case(channels: int, suite: str = "throughput") -> Case:
    return Case(suite=suite, recurrence="scan", backend="mine", shape=Shape(B=1, T=8, C=channels))


@pytest.fixture
def fake_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(procedure, "SideProcess", FakeProcess)
    monkeypatch.setattr(verdicts, "SideProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "rounds", [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_each_candidate_is_measured_with_the_plugin_of_its_tree(
    repository: Path, tmp_path: Path, fake_processes: None
) -> None:
    """The case drifts by 6 % before it becomes 30 % slower: the midpoint is crossed there."""
    texts = ["0.001", "0.001", "broken", "0.00106", "0.00106", "0.0013", "0.0013", "broken", "0.0013"]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    (repository / PLUGIN).write_text("0.5")  # the user's own file, which nobody measures
    found = ssmperf.bisect(names[0], "main", case="", plugin=PLUGIN, out=tmp_path / "out")
    assert [each.name for each in found.first] == [names[5]] and found.exit_code == 0
    assert 1.25 < (found.judgement.low or 0) < 1.3 < (found.judgement.high or 0) < 1.35
    assert found.followed.midpoint == pytest.approx(1.3**0.5, rel=0.01)
    (direct,) = found.direct
    assert direct.base.name == names[4] and direct.found.ratio == pytest.approx(1.3 / 1.06, rel=0.01)
    before = found.further[0]
    assert before.shown and before.found.ratio == pytest.approx(1.06, rel=0.01)
    folder = tmp_path / "out" / f"{names[4][:10]}..{names[5][:10]}"
    assert json.loads((folder / "ab.json").read_text())["base"] == names[4]  # by fresh pairs


@pytest.mark.slow
def test_a_commit_that_does_not_build_stays_in_the_range(
    repository: Path, tmp_path: Path, fake_processes: None
) -> None:
    texts = ["0.001", "0.001", "broken", "0.0013", "0.0013"]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    found = ssmperf.bisect(names[0], "main", case="", plugin=PLUGIN, out=tmp_path / "out")
    assert [each.name for each in found.first] == names[2:4] and found.exit_code == ExitCode.UNSURE
    assert found.judged[names[2]].word == "skip" and "it is broken" in found.judged[names[2]].text
    assert f"{names[3][:10]} is slower than {names[1][:10]}: 1.3" in found.conclusion


@pytest.mark.slow
def test_one_case_is_followed_throughout(repository: Path, tmp_path: Path, fake_processes: None) -> None:
    """Others become slower elsewhere by less, or faster, or are slower for a while only."""
    lines = [(10, 10, 10), (10, 12, 15), (10, 12, 10), (14, 12, 10), (14, 12, 8)]
    texts = ["\n".join(f"{time}e-3" for time in times) for times in lines]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    found = ssmperf.bisect(names[0], "main", case="", plugin=PLUGIN, out=tmp_path / "out")
    assert found.followed.case_id == the_case(1).id and [each.name for each in found.first] == [names[3]]
    assert "1 other case is slower at main: name it by --case" in found.conclusion
    candidates = json.loads((tmp_path / "out" / names[2][:10] / "ab.json").read_text())
    assert candidates["cases"] == [the_case(1).id]
    second = ssmperf.bisect(names[0], "main", case=the_case(2).id, plugin=PLUGIN, out=tmp_path / "second")
    assert [each.name for each in second.first] == [names[1]]


def test_bytes_have_no_noise(repository: Path, tmp_path: Path, fake_processes: None) -> None:
    """Two pairs are enough for each commit."""
    names = [commit(repository, number, f"{size}B") for number, size in enumerate((100, 101, 101, 120, 121))]
    found = ssmperf.bisect(names[0], "main", case="", suite="memory", plugin=PLUGIN, out=tmp_path / "out")
    assert [each.name for each in found.first] == [names[3]] and found.exit_code == 0
    assert found.direct[0].found.change == "1.188× [1.188, 1.188]"
    assert [each.pairs for each in found.judged.values() if each.pairs] == [2] * (len(found.judged) - 1)


@pytest.mark.slow(but=("None-wrong",))
@pytest.mark.parametrize("bad", ["wrong", "nan", "crash"])
@pytest.mark.parametrize("suite", ["correctness", None])
def test_a_wrong_answer_is_judged_once_per_commit(
    bad: str, suite: str | None, repository: Path, tmp_path: Path, fake_processes: None
) -> None:
    """The case is found without its suite, too, and a slower case does not distract."""
    texts = ["ok 0.001", "ok 0.001", "timeout 0.001", "broken", "ok 0.001", f"{bad} 0.001", f"{bad} 0.002"]
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    case = the_case(1, "correctness").id
    found = ssmperf.bisect(names[0], "main", case=case, suite=suite, plugin=PLUGIN, out=tmp_path / "out")
    assert found.exit_code == 0 and found.named is not None and found.named.name == names[5]
    assert f"is the first wrong commit: {bad}: by 3.0" in found.conclusion
    words = {number: found.judged[name].word for number, name in enumerate(names) if name in found.judged}
    assert words.items() >= {4: "good", 5: "bad"}.items() and set(words) <= {0, 3, 2, 4, 5, 6}
    rounds = [(side, number) for side, id_, number in FakeProcess.rounds if id_ == case]
    assert rounds.count(("base", 0)) == 1 and {number for _, number in rounds} == {0}
    assert [each for each in found.judged[names[5]].to_json().values() if isinstance(each, float)] == []


def test_ends_whose_answers_do_not_fit_are_refused_in_one_line(
    repository: Path, tmp_path: Path, fake_processes: None
) -> None:
    names = [
        commit(repository, number, text) for number, text in enumerate(("wrong", "wrong\n", "ok", "ok\n"))
    ]
    for good, bad, text in (
        (0, 1, r"is not right at the good commit already \(wrong: by 3.0\): pass an earlier --good"),
        (2, 3, r"is not slower than .*, nor wrong: same"),
        (0, 3, r"is not slower than .*, nor wrong: mended"),
    ):
        with pytest.raises(UsageError, match=text) as error:
            ssmperf.bisect(
                names[good],
                names[bad],
                case="",
                suite="correctness",
                plugin=PLUGIN,
                out=tmp_path / f"{good}{bad}",
            )
        assert "\n" not in str(error.value)


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


@pytest.mark.slow
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
    assert "bisecting: 3 commits left" in err and f"{names[1][:10]} is good: below the midpoint" in err
    code, out, _ = call("--out", str(tmp_path / "out"), "--resume", "--json")
    assert code == 0 and [each["name"] for each in json.loads(out)["first"]] == [names[2]]
    assert call("--out", str(tmp_path / "out"))[0] == 2  # it is not empty
    assert call("--out", str(tmp_path / "high"), "--threshold", "90%")[0] == 2


@pytest.mark.slow
def test_a_broken_gradient_is_found_by_real_processes(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At odd T alone. The third commit does not import."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    right = KERNEL.replace("time.sleep({seconds})", "")
    broken = right.replace("h = a_t * h + b_t", "h = a_t * h + (b_t.detach() if b.shape[1] % 2 else b_t)")
    texts = (right, f"{right}# the same", "import nothing", f"{right}# again", broken)
    names = [commit(repository, number, text) for number, text in enumerate(texts)]
    before = state_of(repository)
    words = "bisect --good main~4 --bad main --suite correctness --models hgrn --backends mine --device cpu"
    more = [
        "--case",
        "",
        "--axis",
        "T=7",
        "--axis",
        "C=2",
        "--plugin",
        PLUGIN,
        "--out",
        str(tmp_path / "out"),
    ]
    monkeypatch.setattr(sys, "argv", ["ssmperf", *words.split(), *more, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and found["named"]["name"] == names[4]
    assert (
        "gradient" in found["judged"][names[4]]["text"] and "is the first wrong commit" in found["conclusion"]
    )
    assert found["followed"]["suite"] == "correctness" and not found["followed"]["timed"]
    skipped = found["judged"][names[2]]
    assert skipped["code"] == 125 and "No module named 'nothing'" in skipped["text"]
    assert state_of(repository) == before
