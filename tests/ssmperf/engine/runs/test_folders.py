"""Runs in folders: what cannot be read there is left out with the reason; what is named must be readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.command_line import Call, caller
from support.results.histories import write

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
