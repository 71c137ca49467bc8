"""Shards: disjoint parts of a plan that take about equally long, read together as one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ssmperf
from ssmperf import Run, UnreadableRun, UsageError
from ssmperf.engine.execute.request import select
from ssmperf.engine.execute.stand_ins import StandIns
from ssmperf.engine.plan.estimate import work_s
from ssmperf.engine.plan.parts import shards
from ssmperf.engine.plan.plan import Plan, make_plan
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.runs.shards import joined
from ssmperf.engine.runs.store import planned

ASKED: dict[str, Any] = {
    "models": "mingru,gla",
    "backends": "sequential,blelloch",
    "pass_": "forward",
    "axis": ["T=8,16"],
    "device": "cpu",
    "time": 0.01,
}


def whole() -> tuple[Plan, Selection]:
    selection, _ = select(device="cpu", preset="smoke")
    return make_plan(selection, ["throughput"]), selection


PLAN, SELECTION = whole()
LEADERS = StandIns(PLAN, SELECTION).leaders


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_parts_are_disjoint_and_together_the_plan(count: int) -> None:
    parts = [shards.part(PLAN, f"{number}/{count}", LEADERS) for number in range(1, count + 1)]
    ids = [each.case.id for part in parts for each in part.cases]
    assert sorted(ids) == sorted(each.case.id for each in PLAN.cases)
    where = {each.case.id: number for number, part in enumerate(parts) for each in part.cases}
    assert all(where[follower] == where[leader.id] for follower, leader in LEADERS.items())
    operands: dict[Any, set[int]] = {}
    for each in PLAN.cases:
        operands.setdefault((each.case.owner, each.case.operand_key), set()).add(where[each.case.id])
    assert all(len(numbers) == 1 for numbers in operands.values())


@pytest.mark.parametrize("count", [2, 3, 4])
def test_parts_take_about_equally_long(count: int) -> None:
    """Within the longest group of cases that stay together, which is short beside a part."""
    spent = []
    for number in range(1, count + 1):
        part = shards.part(PLAN, f"{number}/{count}", LEADERS)
        spent.append(work_s([case for case in part.to_run if case.id not in LEADERS]))
    assert min(spent) > 0.9 * max(spent) > 0


def test_an_unknown_part_is_refused() -> None:
    for wrong in ("0/4", "5/4", "1", "a/b", "1/0", "-1/2", "1/99999"):
        with pytest.raises(UsageError, match="--shard takes I/N"):
            ssmperf.run("throughput", shard=wrong, **ASKED)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Measure two shards of a plan, in folders beside each other."""
    folder = tmp_path_factory.mktemp("shards")
    for number in (1, 2):
        ssmperf.run("throughput", shard=f"{number}/2", out=folder / f"{number}", **ASKED)
    return [folder / "1", folder / "2"]


def edited(run: Path, to: Path, **changes: Any) -> Run:
    """Copy a run with other facts about its shard."""
    to.mkdir()
    meta = json.loads((run / "run.json").read_text())
    meta["environments"] = changes.pop("environments", meta["environments"])
    meta["shard"] |= changes
    (to / "run.json").write_text(json.dumps(meta))
    (to / "records.jsonl").write_text((run / "records.jsonl").read_text())
    return ssmperf.load(to)


def test_shards_are_read_as_the_whole_run(measured: list[Path]) -> None:
    selection, _ = select(**{name: value for name, value in ASKED.items() if name != "time"})
    ids = {each.case.id for each in make_plan(selection, ["throughput"]).cases}
    parts = [ssmperf.load(path) for path in measured]
    assert all(part.records for part in parts)
    (one,) = joined(parts)
    of_folder = ssmperf.load(measured[0].parent)
    for run in (one, of_folder):
        assert {record.case.id for record in run.records} == {*planned(run.meta)} == ids
        assert len(run.records) == len(ids) and not run.warnings
        assert {record.env_id for record in run.records} <= {*run.environments}
    assert ssmperf.compare(one, of_folder).conclusion
    assert len(ssmperf.best(measured)) == len(ssmperf.best(one)) > 0


def test_a_missing_shard_is_named(measured: list[Path]) -> None:
    (one,) = joined([ssmperf.load(measured[1])])
    assert len(one.warnings) == 1 and "shard 1/2 is missing, with" in one.warnings[0]


def test_what_does_not_belong_together_is_refused(measured: list[Path], tmp_path: Path) -> None:
    first, second = map(ssmperf.load, measured)
    with pytest.raises(UnreadableRun, match="1/2 is there twice"):
        joined([first, second, edited(measured[0], tmp_path / "again")])
    with pytest.raises(UnreadableRun, match="shards of different plans"):
        joined([first, edited(measured[1], tmp_path / "other", plan="0" * 16)])
    environments = {id_: {"hardware": {"gpu": {"name": "NVIDIA X"}}} for id_ in second.environments}
    elsewhere = edited(measured[1], tmp_path / "elsewhere", environments=environments)
    with pytest.raises(UnreadableRun, match=r"different devices, pass --force .*NVIDIA X"):
        joined([first, elsewhere])
    assert len(joined([first, elsewhere], force=True)) == 1
    odd = edited(measured[1], tmp_path / "odd", count=[2], index={})
    assert joined([odd]) == [odd], "a damaged shard is a run of its own"


def test_a_shard_goes_on_as_the_same_one(measured: list[Path]) -> None:
    before = (measured[0] / "records.jsonl").read_text()
    with pytest.raises(UsageError, match=r"is of 1/2, not of --shard 2/2"):
        ssmperf.run("throughput", shard="2/2", out=measured[0], resume=True, **ASKED)
    ssmperf.run("throughput", out=measured[0], resume=True, **ASKED)
    assert (measured[0] / "records.jsonl").read_text() == before
