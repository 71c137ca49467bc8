"""The lines that a long run prints: how much is done, and how long the rest will take."""

from __future__ import annotations

import re

import pytest

from ssmperf import Case, Record, Shape, Status
from ssmperf.shell.terminal import display


def test_the_time_left_does_not_count_the_start_of_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first case ends after a minute, and the others take ten seconds each."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    shown = display.LineProgress()
    shown.begin(total=11, done=0)
    for number in range(4):
        now[0] += 60.0 if number == 0 else 10.0
        case = Case("throughput", "scan", "sequential", Shape(B=1, T=number + 1, C=1))
        shown.finish(Record(case, Status.OK, None, "e", {}))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert "left" not in lines[0], "one case tells nothing about the others"
    assert [re.findall(r"about (\d+) s left", line) for line in lines[1:]] == [["90"], ["80"], ["70"]]
