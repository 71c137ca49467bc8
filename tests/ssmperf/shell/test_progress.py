"""The lines that a long run prints: how much is done, and how long the rest will take."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ssmperf import Case, Record, Shape, Status
from ssmperf.authors.fuzzing.session import Goal, Tally
from ssmperf.shell.terminal import display, fuzzing


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Write to a terminal, and give the task of the last bar."""
    made: list[Any] = []
    new_bar = display.new_bar
    monkeypatch.setattr(display, "sys", SimpleNamespace(stderr=Terminal()))
    monkeypatch.setattr(display, "new_bar", lambda **options: made.append(new_bar(**options)) or made[-1])
    return lambda: made[-1].tasks[0]


@pytest.mark.parametrize(("goal", "done", "total"), [(Goal(60.0, 8), 2, 8), (Goal(60.0, None), 15.0, 60.0)])
def test_a_bar_fills_with_examples_or_seconds(
    monkeypatch: pytest.MonkeyPatch, drawn: Callable[[], Any], goal: Goal, done: float, total: float
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with fuzzing.progress(7, goal) as tell:
        now[0] += 15.0
        tell("scan/blelloch", Tally(examples=2))
    assert (drawn().completed, drawn().total) == (done, total)
    assert drawn().description == "0 faults; scan/blelloch"


def test_elsewhere_fuzz_prints_lines_and_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with fuzzing.progress(7, Goal(60.0, None)) as tell:
        tell("scan/blelloch", Tally())
        tell(f"fault: scan {'B1 ' * 100}: wrong; ssmperf run --nonce 5", Tally(faults=1))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "seed 7" and len(lines) == 2 and "1 faults" in lines[1]
    assert lines[1].endswith("ssmperf run --nonce 5"), "its command is there to be repeated"


def test_a_bar_counts_the_pieces_of_claims(drawn: Callable[[], Any]) -> None:
    with display.StepBar() as steps:
        steps.count(1, 4)
        steps.say("paper:order: two: \x1b[2J half way")
    assert (drawn().completed, drawn().total) == (1, 4)
    assert drawn().description == "paper:order: two: [2J half way"
