"""Runs in folders: what cannot be read there is left out with the reason; what is named must be readable."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from support.processes.command_line import Call, caller
from support.results.histories import write, write_run

import ssmperf
from ssmperf.engine.runs.folders import load_all
from ssmperf.engine.runs.shards import shards_of
from ssmperf.errors import UnreadableRun

READERS = ("best", "history")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process; return its exit code, stdout and stderr."""
    return caller(monkeypatch, capsys)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Make a folder with three runs of four cases."""
    folder = tmp_path / "runs"
    write(folder, runs=3, count=4)
    return folder


@pytest.mark.parametrize("verb", READERS)
def test_a_damaged_run_is_left_out_unless_it_is_named(verb: str, runs: Path, call: Call) -> None:
    bad = runs / "run-001"
    (bad / "run.json").write_text("{")
    code, out, err = call(verb, runs)
    assert code == 0 and f"left out: {bad}" in " ".join((out + err).split())
    for named in ((runs, bad), (runs / "run-000", bad)):
        code, out, err = call(verb, *named)
        assert code == 2 and not out and str(bad) in err


def test_python_warns_of_a_run_that_is_left_out(runs: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ssmperf.best(runs)
    (runs / "run-001" / "run.json").write_text("{")
    with pytest.warns(UserWarning, match=r"left out: .*run-001"):
        assert ssmperf.best(runs)


def shard(folder: Path, index: int, plan: str, day: int = 5) -> Path:
    """Write one of two shards of a plan."""
    facts = {"index": index, "count": 2, "plan": plan * 16, "cases": 4}
    return write_run(folder / f"{plan}-{index}-{day}", day, [0.0] * 4, shard=facts)


@pytest.mark.parametrize("verb", READERS)
def test_shards_that_cannot_be_joined_are_left_out_unless_they_are_named(
    verb: str, runs: Path, call: Call
) -> None:
    parts = [shard(runs, index, plan) for index, plan in ((1, "a"), (2, "b"), (1, "c"), (2, "c"))]
    code, out, err = call(verb, runs)
    said = " ".join((out + err).split())
    assert code == 0 and all((str(path) in said) == (path in parts[:2]) for path in parts), said
    assert "different plans" in said
    assert call(verb, runs, parts[0])[0] == 2
    assert call(verb, *parts[2:], runs)[0] == 0


def test_shards_of_each_night_are_a_run_of_that_night(tmp_path: Path, call: Call) -> None:
    for day in range(3):
        shard(tmp_path, 1 + day % 2, "a", day), shard(tmp_path, 2 - day % 2, "a", day)
    runs, left_out = load_all([tmp_path])
    assert [run.meta["created"] for run in runs] == sorted({run.meta["created"] for run in runs})
    assert len(runs) == 3 and not left_out and all(shards_of(run) for run in runs)
    late = shard(tmp_path, 2, "a", 3)
    runs, left_out = load_all([tmp_path])
    assert len(runs) == 3 and len(left_out) == 1 and str(late) in left_out[0]
    shard(tmp_path, 2, "a", -1)
    with pytest.raises(UnreadableRun, match="is there twice"):
        load_all([tmp_path])


def test_shards_of_two_nights_are_not_mixed(tmp_path: Path) -> None:
    for day, index in ((0, 2), (1, 1), (1, 2), (2, 1)):
        shard(tmp_path, index, "a", day)
    with pytest.raises(UnreadableRun, match="is there twice"):
        load_all([tmp_path])
