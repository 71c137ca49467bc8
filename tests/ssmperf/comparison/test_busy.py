"""A run says in one line which of its cases were timed on a busy machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ssmperf.comparison.remarks import busy_cases, busy_line
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.execute.context import Context, Settings
from ssmperf.engine.machine.ceilings import measure_ceilings
from ssmperf.engine.runs.rounds import fold
from ssmperf.engine.runs.store import Run

IDLE: list[str] = []


def record(seed: int, busy: Any = None, number: int = 0) -> Record:
    case = Case("throughput", "scan", "sequential", Shape(B=1, T=8, C=2), seed=seed)
    numbers = {"latency_s": 1.0 + number, "round": number}
    return Record(case, Status.OK, None, "e", numbers if busy is None else {**numbers, "busy": busy})


def test_an_idle_machine_has_no_line() -> None:
    assert busy_line([]) is None
    assert busy_line([record(1), record(2, IDLE)]) is None


def test_one_kind_is_told_with_the_range_of_its_numbers() -> None:
    records = [
        record(1, ["others used 1.3 of 2 cores"]),
        record(2, ["others used 0.6 of 2 cores"]),
        record(3, ["others used 10.0 of 2 cores"]),
        record(4, IDLE),
        record(5),  # not timed
    ]
    assert busy_line(records) == "busy: others used 0.6 to 10.0 of 2 cores, during 3 of 4 cases"


def test_several_kinds_are_told_with_their_counts() -> None:
    clock = "SM clock at 61 % of its maximum"
    records = [
        record(1, ["1 other process uses the GPU", clock]),
        record(2, [clock]),
        record(3, IDLE),
    ]
    expected = f"busy: {clock} (2); 1 other process uses the GPU (1), during 2 of 3 cases"
    assert busy_line(records) == expected


@pytest.mark.parametrize("odd", ["text", 5, {"a": 1}, [3, None], True])
def test_what_is_no_list_of_texts_is_idle(odd: Any) -> None:
    assert busy_line([record(1, odd)]) is None
    assert busy_cases(Run(Path("run"), {}, [record(1, odd)])) == {}


def test_foreign_text_stays_on_the_line() -> None:
    line = busy_line([record(1, ["a\n\x1b[31mb"])])
    assert line is not None and line.isprintable()


def test_rounds_are_joined() -> None:
    busy = ["others used 1.3 of 2 cores"]
    folded = fold([record(1, IDLE, 0), record(1, busy, 1), record(1, busy, 2)], "latency_s")
    assert folded.numbers["busy"] == busy
    run = Run(Path("run"), {}, [folded, record(2, IDLE)])
    assert busy_cases(run) == {folded.case.id: tuple(busy)}


@pytest.mark.slow
def test_a_timed_case_says_what_happened_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context("cpu", "e", Settings(0.0, 0.002), measure_ceilings("cpu"))
    seen: list[float] = []

    def busy_since(began_s: float) -> list[str]:
        seen.append(began_s)
        return ["others used 1.3 of 2 cores"]

    monkeypatch.setattr(context.host_load, "busy_since", busy_since)
    timing = context.time(record(1).case, lambda: None, touched=(), peak_bytes=None)
    assert timing.to_json()["busy"] == ["others used 1.3 of 2 cores"] and len(seen) == 1
    assert dataclasses.replace(timing, busy=()).to_json()["busy"] == []
