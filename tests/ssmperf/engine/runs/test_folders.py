"""Runs in folders: what cannot be read there is left out with the reason; what is named must be readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.command_line import Call, caller
from support.results.histories import write, write_run

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


def shard(folder: Path, index: int, plan: str) -> Path:
    """Write one of two shards of a plan."""
    facts = {"index": index, "count": 2, "plan": plan * 16, "cases": 4}
    return write_run(folder / f"{plan}-{index}", 5, [0.0] * 4, shard=facts)


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
