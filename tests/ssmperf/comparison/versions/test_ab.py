"""`ab`: pairs of rounds in random order, a second stage of fresh rounds, resuming, and a real comparison."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.processes.quick_processes import command
from support.versions.repositories import KERNEL

from ssmperf.comparison.versions import procedure
from ssmperf.comparison.versions.measured import load_comparison
from ssmperf.comparison.versions.procedure import Versions, compare_versions
from ssmperf.comparison.versions.sides import Side
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.run import Silent
from ssmperf.engine.runs.store import Writer
from ssmperf.errors import UnreadableRun, UsageError

Seconds = Callable[[str, str, int], float | None]  # of a side, a case and a round; None: it is wrong


def case(seed: int) -> Case:
    shape = Shape({"B": 1, "T": 64, "C": 4})
    return Case(suite="throughput", recurrence="scan", backend="blelloch", shape=shape, seed=seed)


class FakeSide:
    """A side that writes records with made-up times into its run folder."""

    asked: ClassVar[list[tuple[str, int, tuple[str, ...]]]] = []
    seconds: ClassVar[Seconds]
    count = 6
    refusal = None
    takes_turns = False
    rank: ClassVar[str | None] = "latency_s"

    def __init__(self, name: str, side: Side, run_folder: Path, *ignored: Any) -> None:
        self.name, self.run_folder = name, run_folder
        self.cases = {each.id: each for each in map(case, range(self.count))}
        meta = {
            "created": "2026-01-01",
            "suites": {"throughput": {"title": "T", "question": "", "columns": [], "rank": self.rank}},
        }
        self.writer, run = Writer.resume(self.run_folder, meta)
        self.done = {
            (record.case.id, record.numbers["round"]) for each in run.rounds.values() for record in each
        }

    def prepare(self, number: int, ids: Sequence[str]) -> None: ...

    def wait_until_prepared(self) -> None: ...

    def run_round(self, number: int, ids: Sequence[str]) -> int:
        self.asked.append((self.name, number, tuple(ids)))
        missing = [id_ for id_ in ids if (id_, number) not in self.done]
        for id_ in missing:
            seconds = type(self).seconds(self.name, id_, number)
            numbers = {"round": number, "latency_s": seconds, "samples_s": [seconds]}
            record = (
                Record(self.cases[id_], Status.OK, None, None, numbers)
                if seconds
                else Record(self.cases[id_], Status.WRONG, "because", None, {"round": number})
            )
            self.writer.append(record)
        return len(missing)

    def close(self) -> None:
        self.writer.close()

    def kill(self) -> None: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeSide]:
    monkeypatch.setattr(procedure, "SideProcess", FakeSide)

    def install(text: str, name: str, plugins: Sequence[str]) -> Side:
        return Side(text, "plug-in", str(tmp_path), "python")

    monkeypatch.setattr(procedure, "install", install)
    monkeypatch.setattr(FakeSide, "asked", [])
    monkeypatch.setattr(FakeSide, "rank", "latency_s")
    monkeypatch.setattr(FakeSide, "seconds", noisy({}), raising=False)
    return FakeSide


def noisy(slower: Mapping[int, float], noise: float = 0.005) -> Seconds:
    """Make times with noise between rounds; `slower` has factors of the new side by the seed of a case."""
    factors = {case(seed).id: factor for seed, factor in slower.items()}

    def seconds(name: str, id_: str, number: int) -> float:
        scatter = random.Random(f"{name} {id_} {number}").gauss(0, noise)
        return (1 + scatter) * (factors.get(id_, 1.0) if name == "new" else 1.0)

    return seconds


VERSIONS = Versions("a", "b", {"suite": "throughput", "axis": ()})


def test_a_slower_case_is_found_and_the_others_are_the_same(fake: type[FakeSide], tmp_path: Path) -> None:
    fake.seconds = staticmethod(noisy({2: 1.15}))
    found = compare_versions(VERSIONS, tmp_path / "ab")
    verdicts = {pair.case.seed: pair.verdict for pair in found.pairs}
    assert verdicts == {seed: "slower" if seed == 2 else "same" for seed in range(6)}
    assert found.exit_code == 1
    slower = next(pair for pair in found.pairs if pair.verdict == "slower")
    assert slower.ratio == pytest.approx(1.15, rel=0.01)


def test_a_comparison_knows_its_versions_and_any_threshold(fake: type[FakeSide], tmp_path: Path) -> None:
    found = compare_versions(Versions("a", "b", {}, threshold=3.0), tmp_path / "ab")
    assert found.threshold == 3.0 and found.exit_code == 0
    assert {name: origin.version for name, origin in found.origins.items()} == {
        "base": "plug-in a",
        "new": "plug-in b",
    }


def test_an_answer_that_means_nothing_is_refused_before_anything_is_measured(
    fake: type[FakeSide], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="--unsure"):
        compare_versions(VERSIONS, tmp_path / "ab", unsure="maybe")
    assert fake.asked == [] and not (tmp_path / "ab").exists()


def test_the_second_stage_measures_screened_cases_alone(fake: type[FakeSide], tmp_path: Path) -> None:
    fake.seconds = staticmethod(noisy({2: 1.15}))
    compare_versions(VERSIONS, tmp_path / "ab")
    first = [each for each in fake.asked if each[1] < 5]
    fresh = [each for each in fake.asked if each[1] >= 5]
    assert len(first) == 10 and all(len(ids) == 6 for _, _, ids in first)
    assert len(fresh) == 14 and {ids for _, _, ids in fresh} == {(case(2).id,)}
    state = json.loads((tmp_path / "ab" / "ab.json").read_text())
    assert state["screened"] == [case(2).id] and state["fresh_pairs"] == 7


@pytest.mark.parametrize("slower", [{2: 1.15}, {}])
def test_the_folder_gives_the_same_comparison_again(
    fake: type[FakeSide], tmp_path: Path, slower: dict[int, float]
) -> None:
    fake.seconds = staticmethod(noisy(slower))
    arguments = {"suite": "throughput", "axis": {"T": [64, 256]}, "dtype": "bf16", "seed": 0}
    wanted = Versions("a", "b", arguments, ("p.py",), threshold=0.03, fresh=8)
    found = compare_versions(wanted, tmp_path / "ab", unsure="pass")
    again = load_comparison(tmp_path / "ab")
    assert again.to_json() == found.to_json()
    command = "--suite throughput --axis T=64,256 --dtype bf16 --plugin p.py --threshold 0.03 --pairs 5+8"
    assert again.repeat == f"ssmperf ab --base a --new b {command}"


def test_each_round_is_a_pair_in_random_order(fake: type[FakeSide], tmp_path: Path) -> None:
    for number in range(4):
        compare_versions(VERSIONS, tmp_path / f"ab{number}")
    order = [name for name, _, _ in fake.asked]
    pairs = [tuple(order[i : i + 2]) for i in range(0, len(order), 2)]
    assert set(pairs) == {("base", "new"), ("new", "base")}


def test_no_second_stage_where_nothing_stands_out(fake: type[FakeSide], tmp_path: Path) -> None:
    fake.seconds = staticmethod(noisy({}, noise=0.001))
    found = compare_versions(VERSIONS, tmp_path / "ab")
    assert max(number for _, number, _ in fake.asked) == 4
    assert found.exit_code == 0


def test_a_wrong_round_makes_the_case_wrong(fake: type[FakeSide], tmp_path: Path) -> None:
    good = noisy({})
    bad = case(3).id
    fake.seconds = staticmethod(
        lambda name, id_, number: None if (name, id_, number) == ("new", bad, 2) else good(name, id_, number)
    )
    found = compare_versions(VERSIONS, tmp_path / "ab")
    assert {pair.case.seed for pair in found.pairs if pair.verdict == "wrong"} == {3}
    assert found.exit_code == 3


def test_an_interrupted_comparison_goes_on(fake: type[FakeSide], tmp_path: Path) -> None:
    fake.seconds = staticmethod(noisy({2: 1.15}))
    measured = fake.run_round

    def interrupted(self: FakeSide, number: int, ids: Sequence[str]) -> int:
        if number == 6:
            raise KeyboardInterrupt
        return measured(self, number, ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake, "run_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare_versions(VERSIONS, tmp_path / "ab")
    before = (tmp_path / "ab" / "base" / "records.jsonl").read_text()
    found = compare_versions(VERSIONS, tmp_path / "ab", resume=True)
    assert (tmp_path / "ab" / "base" / "records.jsonl").read_text().startswith(before)
    assert found.exit_code == 1
    with pytest.raises(UsageError, match="not empty"):
        compare_versions(VERSIONS, tmp_path / "ab")
    other = Versions("a", "c", {"suite": "throughput", "axis": ()})
    with pytest.raises(UsageError, match="another new"):
        compare_versions(other, tmp_path / "ab", resume=True)
    state = json.loads((tmp_path / "ab" / "ab.json").read_text())
    state["sides"]["new"]["commit"] = "moved"
    (tmp_path / "ab" / "ab.json").write_text(json.dumps(state))
    with pytest.raises(UsageError, match="new: another commit"):
        compare_versions(VERSIONS, tmp_path / "ab", resume=True)
    (tmp_path / "ab" / "ab.json").write_text("[]")
    with pytest.raises(UnreadableRun, match="damaged"):
        compare_versions(VERSIONS, tmp_path / "ab", resume=True)


def test_cases_that_nothing_ranks_are_measured_once(fake: type[FakeSide], tmp_path: Path) -> None:
    fake.rank = None
    found = compare_versions(VERSIONS, tmp_path / "ab")
    assert [number for _, number, _ in fake.asked] == [0, 0]
    assert {pair.verdict for pair in found.pairs} == {"same"}


def test_a_version_that_does_not_exist_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no version"):
        compare_versions(Versions("no-such-ref", "b", {}), tmp_path / "ab")
    assert not (tmp_path / "ab").exists()


def test_cases_restrict_the_comparison(fake: type[FakeSide], tmp_path: Path) -> None:
    chosen = (case(1).id, case(4).id[:6])
    found = compare_versions(Versions("a", "b", {}, cases=chosen), tmp_path / "ab")
    assert {pair.case.seed for pair in found.pairs} == {1, 4}
    asked = len(fake.asked)
    with pytest.raises(UsageError, match="begins with 'zzz'"):
        compare_versions(Versions("a", "b", {}, cases=(case(1).id, "zzz")), tmp_path / "other")
    assert len(fake.asked) == asked, "what cannot be compared is not measured first"


def test_progress_counts_to_its_total(fake: type[FakeSide], tmp_path: Path) -> None:
    class Counting(Silent):
        total = dropped = 0

        def begin(self, total: int, done: int) -> None:
            self.total = total

        def drop(self, count: int) -> None:
            self.total -= count

    fake.seconds = staticmethod(noisy({2: 1.15}))
    progress = Counting()
    compare_versions(VERSIONS, tmp_path / "ab", progress=progress)
    assert progress.total == 2 * (5 * 6 + 7 * 1)


@pytest.mark.parametrize(("first", "fresh"), [(1, 7), (5, 4), (5, 1000)])
def test_too_few_or_too_many_pairs_are_refused(first: int, fresh: int) -> None:
    with pytest.raises(UsageError, match="stage needs"):
        Versions("a", "b", {}, first=first, fresh=fresh)


# Makes a kernel log its calls.
LOGGED = """
inner, log = time.sleep, open({calls!r}, "a", buffering=1)

def sleep(seconds):
    log.write("{name}\\n")
    inner(seconds)

time = type("time", (), dict(sleep=staticmethod(sleep)))
"""


@pytest.mark.slow
def test_two_plugin_files_by_the_command_line(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    for name, seconds in (("base", 0.002), ("new", 0.004)):
        text = KERNEL.replace("{seconds}", str(seconds))
        (tmp_path / f"{name}.py").write_text(text + LOGGED.format(name=name, calls=str(calls)))
    words = (
        "ab", "--base", str(tmp_path / "base.py"), "--new", str(tmp_path / "new.py"), "--suite", "throughput",
        "--models", "hgrn", "--backends", "mine", "--axis", "T=8", "--axis", "C=2", "--pass", "forward",
        "--device", "cpu", "--time", "0.1", "--pairs", "2+5", "--out", str(tmp_path / "ab"), "--json",
        "--html", str(tmp_path / "ab.html"),
    )  # fmt: skip
    done = command(*words, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout[: done.stdout.rindex("}") + 1])
    (pair,) = report["cases"]
    assert pair["verdict"] == "slower" and 1.3 < pair["ratio"] < 2.2
    assert "mine" in (tmp_path / "ab.html").read_text()
    changes = sum(before != after for before, after in itertools.pairwise(calls.read_text().split()))
    assert changes >= 3 * 7  # case by case, there were at most two in each of the seven rounds
