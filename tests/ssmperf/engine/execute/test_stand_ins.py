"""Stand-ins: what is the same to a kernel is measured once, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ssmperf
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.request import Request, select
from ssmperf.engine.execute.run import Silent, execute
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.operands.build import build_operands
from ssmperf.engine.plan.plan import make_plan
from ssmperf.engine.runs import store

FEW: dict[str, Any] = {"backends": "overlap_add", "axis": ["T=8", "B=2"], "pass_": "forward"}
FAST: dict[str, Any] = {**FEW, "device": "cpu", "time": 0.002}


def stand_ins(**choices: Any) -> StandIns:
    selection, _ = select(device="cpu", **choices)
    return StandIns(make_plan(selection, ["throughput"]), selection)


@pytest.fixture(scope="module")
def of_all() -> StandIns:
    return stand_ins(backends="sequential", axis=["T=5", "B=3"], dtype="bfloat16", pass_="forward")


def test_their_operands_are_the_same_to_a_kernel(of_all: StandIns) -> None:
    """Drawn for real, at sizes other than those of the comparison."""
    assert len(of_all.leaders) >= 15
    for follower in (case for cases in of_all.followers.values() for case in cases):
        leader = of_all.leaders[follower.id]
        assert (leader.backend, leader.shape, leader.pass_) == (
            follower.backend,
            follower.shape,
            follower.pass_,
        )
        mine, theirs = build_operands(follower), build_operands(leader)
        assert mine.keys() == theirs.keys(), (follower, leader)
        for name, value in mine.items():
            if isinstance(value, torch.Tensor):
                assert (value.shape, value.dtype) == (theirs[name].shape, theirs[name].dtype), (
                    follower,
                    name,
                )
            else:
                assert value == theirs[name], (follower, name)


def test_models_that_are_named_stand_for_themselves() -> None:
    assert stand_ins(**FEW) and not stand_ins(**FEW, models="dss_exp,dss_softmax")
    selection, _ = select(device="cpu", **FEW)
    assert not StandIns(make_plan(selection, ["correctness"]), selection)  # each model has to be right


@pytest.mark.slow
def test_a_backend_from_outside_is_always_measured(own_registrations: None) -> None:
    @ssmperf.backend("scan", name="outside")
    def outside(log_a, b, initial_state=None, *, phase=None):  # type: ignore[no-untyped-def]
        return b, b[:, -1]

    outside.__module__ = "elsewhere"
    assert not stand_ins(backends="outside")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    ssmperf.run("throughput", out=out, **FAST)
    return out


@pytest.mark.slow
def test_each_case_has_a_record_under_its_own_name(folder: Path) -> None:
    run = ssmperf.load(folder)
    records = {record.case.id: record for record in run.records}
    assert set(records) == set(run.meta["plan"]["case_ids"])
    copies = [record for record in run.records if record.numbers.get("timed_as")]
    assert copies and len(copies) == len(stand_ins(**FEW).leaders)
    for copy in copies:
        (source,) = [
            record
            for record in run.records
            if record.case.model == copy.numbers["timed_as"] and record.case.shape == copy.case.shape
        ]
        assert copy.status is Status.OK and not source.numbers.get("timed_as")
        assert copy.numbers["latency_s"] == source.numbers["latency_s"]
        assert copy.numbers["spent_s"] == 0 < source.numbers["spent_s"]
        assert f"--models {copy.case.model} " in copy.numbers["command"] + " "


@pytest.mark.slow
def test_progress_counts_what_is_measured(tmp_path: Path) -> None:
    """Records that take no time would make the rest seem short."""
    finished: list[Record] = []
    totals: list[int] = []

    class Counted(Silent):
        def begin(self, total: int, done: int) -> None:
            totals.append(total)

        def drop(self, count: int) -> None:
            totals.append(totals[-1] - count)

        def finish(self, record: Record) -> None:
            finished.append(record)

    run = execute(Request.of("throughput", out=tmp_path / "run", **FAST), Counted())
    assert len(finished) == totals[-1] < len(run.records)
    assert not any(record.numbers.get("timed_as") for record in finished)


@pytest.mark.slow
def test_reports_say_as_which_model_it_was_timed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ssmperf.load(folder)
    copy = next(record for record in run.records if record.numbers.get("timed_as"))
    from ssmperf.shell.terminal import display

    display.table([run])
    assert f"as {copy.numbers['timed_as']}" in capsys.readouterr().out


@pytest.mark.slow
def test_copies_that_a_killed_run_lacks_are_made_when_it_is_resumed(folder: Path, tmp_path: Path) -> None:
    file = folder / "records.jsonl"
    lines = file.read_text().splitlines()
    kept = [line for line in lines if not json.loads(line).get("timed_as")]
    out = tmp_path / "killed"
    out.mkdir()
    (out / "run.json").write_bytes((folder / "run.json").read_bytes())
    (out / "records.jsonl").write_text("\n".join(kept) + "\n")
    resumed = ssmperf.run("throughput", out=out, resume=True, **FAST)
    assert len(kept) < len(lines) == len(resumed.records)
    assert (out / "records.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert {r.to_line() for r in resumed.records} == {r.to_line() for r in store.load(folder).records}


def test_a_stand_in_that_is_not_ok_stands_in_for_nobody(of_all: StandIns) -> None:
    found = of_all
    leader = next(iter(found.leaders.values()))
    followers = found.followers[leader.id]
    wrong = Record(leader, Status.WRONG, "because", None, {})
    assert found.copies(wrong, ()) == []
    assert found.left([leader, *followers], {leader.id}) == followers
    assert found.left([leader, *followers], set()) == []
    assert [copy.case for copy in found.copies(Record(leader, Status.OK), ())] == followers
