"""Rounds: one record per case and round, fresh processes with shared references, and the fold of records."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute import executor
from ssmperf.engine.execute.request import Request
from ssmperf.engine.plan.parts.groups import groups_of
from ssmperf.engine.runs import store
from ssmperf.engine.runs.rounds import by_case, fold, round_of
from ssmperf.errors import UsageError

SMALL: dict[str, Any] = {
    "models": "hgrn,mingru", "backends": "blelloch,hillis_steele", "pass_": "forward", "device": "cpu",
    "axis": ["T=8", "C=2"], "time": 0.002,
}  # fmt: skip


def case(**changes: Any) -> Case:
    shape = Shape({"B": 1, "T": 64, "C": 4})
    return Case(
        **{"suite": "throughput", "recurrence": "scan", "backend": "blelloch", "shape": shape, **changes}
    )


def timed(number: int, seconds: float, **numbers: Any) -> Record:
    found = {"latency_s": seconds, "latency_low_s": seconds, "latency_high_s": seconds, "round": number}
    return Record(case(), Status.OK, None, "e", {**found, "samples_s": [seconds], **numbers})


def ended(number: int, status: str) -> Record:
    return Record(case(), Status(status), "because", "e", {"round": number})


def test_the_fold_is_the_median_over_rounds() -> None:
    rounds = [timed(i, seconds, doubts=[]) for i, seconds in enumerate([1.0, 4.0, 2.0, 8.0, 100.0])]
    folded = fold(rounds, "latency_s")
    assert folded.numbers["latency_s"] == 4.0
    assert folded.numbers["samples_s"] == [4.0]  # of the round with the middle value
    assert (folded.numbers["latency_low_s"], folded.numbers["latency_high_s"]) == (1.0, 100.0)
    assert folded.numbers["rounds"] == 5 and folded.numbers["round_values"] == [1.0, 4.0, 2.0, 8.0, 100.0]
    assert "round" not in folded.numbers


def test_between_two_middle_rounds_lies_their_geometric_mean() -> None:
    folded = fold([timed(0, 1.0), timed(1, 4.0)], "latency_s")
    assert folded.numbers["latency_s"] == pytest.approx(2.0)
    assert folded.numbers["latency_low_s"] is None  # two rounds give no interval


@pytest.mark.parametrize("status", ["wrong", "nan", "crash", "oom", "timeout"])
def test_one_bad_round_makes_the_case_bad(status: str) -> None:
    folded = fold([timed(0, 1.0), ended(1, status), timed(2, 1.0)], "latency_s")
    assert folded.status == status
    assert folded.reason == "because (round 2 of 3)"
    assert folded.numbers.get("latency_s") is None


def test_wrong_is_worse_than_any_other_end() -> None:
    folded = fold([ended(0, "oom"), ended(1, "wrong"), ended(2, "timeout")], "latency_s")
    assert folded.status is Status.WRONG


def test_doubts_of_any_round_stay() -> None:
    folded = fold(
        [timed(0, 1.0, doubts=["a"]), timed(1, 1.0, doubts=[]), timed(2, 2.0, doubts=["b"])], "latency_s"
    )
    assert folded.numbers["doubts"] == ["a", "b"]


def test_a_suite_without_rank_folds_statuses_alone() -> None:
    fine = [Record(case(), Status.OK, None, "e", {"round": i, "errors": {"output": i}}) for i in range(2)]
    assert fold(fine, None).status is Status.OK
    assert fold([*fine, ended(2, "wrong")], None).status is Status.WRONG


def test_a_repeated_round_replaces_the_earlier_one() -> None:
    found = by_case([timed(0, 1.0), timed(1, 2.0), timed(1, 3.0)])
    assert [record.numbers["latency_s"] for record in found[case().id]] == [1.0, 3.0]


@dataclass(frozen=True)
class Measured:
    """A run of three rounds, its folder, and the kinds of processes that were started for it, in order."""

    run: ssmperf.Run
    folder: Path
    started: list[str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Measure three rounds once for all tests, which must leave the folder as it is."""
    folder = tmp_path_factory.mktemp("rounds") / "run"
    started: list[str] = []
    made = executor.Nursery.__init__

    def nursery(self: Any, *args: Any) -> None:
        started.append("nursery")
        made(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("judge", "worker"):
            original = getattr(executor.LaneProcesses, name)

            def counting(self: Any, *args: Any, _made: Any = original, _name: str = name) -> Any:
                started.append(_name)
                return _made(self, *args)

            patch.setattr(executor.LaneProcesses, name, counting)
        patch.setattr(executor.Nursery, "__init__", nursery)
        run = ssmperf.run("throughput", rounds=3, out=folder, **SMALL)
    return Measured(run, folder, started)


@pytest.mark.slow
def test_a_run_with_rounds(measured: Measured) -> None:
    run = measured.run
    lines = [json.loads(line) for line in (measured.folder / "records.jsonl").read_text().splitlines()]
    assert len(run.records) == 4 and len(lines) == 12
    assert all(sorted(map(round_of, rounds)) == [0, 1, 2] for rounds in run.rounds.values())
    for record in run.records:
        values = [each.numbers["latency_s"] for each in run.rounds[record.case.id]]
        assert record.status is Status.OK
        assert record.numbers["latency_s"] == pytest.approx(sorted(values)[1])
    orders = [tuple(line["case_id"] for line in lines if line["round"] == number) for number in range(3)]
    assert len(set(map(frozenset, orders))) == 1
    assert run.meta["rounds"] == 3 and run.meta["sampling"]["max_time_s"] == 0.002
    assert len(run.frame()) == 4
    assert all("--time 0.002" in record.numbers["command"] for record in run.records)


@pytest.mark.slow
def test_rounds_have_fresh_workers_and_one_judge(measured: Measured) -> None:
    assert measured.started.count("judge") == 1
    assert measured.started.count("worker") == 3
    assert (
        measured.started.count("nursery") == 3
    )  # forks of one nursery have their memory at the same addresses


@pytest.mark.slow
def test_rounds_are_resumed_where_they_ended(measured: Measured, tmp_path: Path) -> None:
    path = Path(shutil.copytree(measured.folder, tmp_path / "run"))
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    (path / "records.jsonl").write_text("".join(lines[:9]))
    run = ssmperf.run("throughput", out=path, resume=True, **SMALL)
    assert (path / "records.jsonl").read_text().splitlines(keepends=True)[:9] == lines[:9]
    assert [len(rounds) for rounds in run.rounds.values()] == [3] * 4
    more = ssmperf.run("throughput", out=path, resume=True, rounds=4, **SMALL)
    assert [len(rounds) for rounds in more.rounds.values()] == [4] * 4


@pytest.mark.slow
def test_a_case_that_is_not_ok_is_not_measured_again(tmp_path: Path, own_registrations: None) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text(
        "import ssmperf\n\n@ssmperf.backend('scan', name='broken')\n"
        "def broken(log_a, b, initial_state=None, *, phase=None):\n    raise RuntimeError('no')\n"
    )
    selection = {**SMALL, "models": "hgrn", "backends": "broken,blelloch"}
    run = ssmperf.run("throughput", rounds=2, plugin=plugin, out=tmp_path / "run", **selection)
    counts = {record.case.backend: len(run.rounds[record.case.id]) for record in run.records}
    assert counts == {"broken": 1, "blelloch": 2}


def test_shuffled_cases_keep_together_what_must() -> None:
    cases = [case(backend=backend, seed=seed) for seed in range(6) for backend in ("blelloch", "sequential")]
    groups = list(groups_of(cases, random.Random(1)))
    assert sorted(each.id for group in groups for each in group) == sorted(each.id for each in cases)
    assert all(len({each.operand_key for each in group}) == 1 for group in groups)
    assert len(groups) == 6
    orders = {tuple(each.id for group in groups_of(cases, random.Random(i)) for each in group)
              for i in range(5)}  # fmt: skip
    assert len(orders) == 5


@pytest.mark.parametrize(
    ("option", "value"),
    [("rounds", 0), ("rounds", 10**6), ("time", 0.0), ("time", math.inf), ("samples", 0), ("precision", "5"),
     ("precision", "-1%"), ("precision", "x")],
)  # fmt: skip
def test_impossible_numbers_are_refused(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=option):
        Request.of("throughput", device="cpu", **{option: value})


def test_precision_takes_a_percentage_or_a_share() -> None:
    for value in ("2%", "0.02", 0.02):
        request = Request.of("throughput", device="cpu", precision=value, samples=20, time=3)
        assert request.scale.relative_width == pytest.approx(0.02)
        assert (request.scale.min_samples, request.scale.max_time_s) == (20, 3)


@pytest.mark.slow
def test_a_run_from_before_rounds_is_read_as_one(tmp_path: Path) -> None:
    run = ssmperf.run("throughput", out=tmp_path / "run", **{**SMALL, "models": "hgrn"})
    assert all("round" not in record.numbers for record in run.records)
    loaded = store.load(tmp_path / "run")
    assert [len(rounds) for rounds in loaded.rounds.values()] == [1, 1]
