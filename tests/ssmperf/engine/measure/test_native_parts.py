"""The time of `prepare` and `finish` counts where it is more than a change of layout, and only once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes.in_process import records_of

import ssmperf
from ssmperf import Case, Record, Run, Shape, Status
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.suitekit import with_native_parts

CASE = Case("throughput", "scan", "native", Shape(B=2, T=9, C=3), operand_source="sigmoid/data")
META = {
    "schema_version": 1,
    "suites": {"throughput": {"title": "", "question": "", "columns": [], "rank": "latency_s"}},
}
PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "around_native.py"  # not imported: it registers
WORK_S = 0.012  # of its backends that hide work
HIDING = ("in_prepare", "in_finish", "in_both")
PASSES = ("forward", "backward", "forward_backward")


def timed(latency: float, *, case: Case = CASE, **numbers: Any) -> Record:
    """Time a native call. A copy of its operands and results takes 1 ms."""
    interval = {"latency_low_s": 0.9 * latency, "latency_high_s": 1.1 * latency}
    copy = {"copy_fraction": 0.5e-3 / latency}
    return Record(case, Status.OK, None, "env", {"latency_s": latency, **interval, **copy, **numbers})


def latency(record: Record) -> float:
    return float(with_native_parts(record).numbers["latency_s"])


@pytest.mark.parametrize(
    ("parts", "added"),
    [
        ({"prepare_s": 3e-3}, 0.0),
        ({"prepare_s": 2e-3, "finish_s": 1.9e-3}, 0.0),
        ({"prepare_s": 2e-3, "finish_s": 2.1e-3}, 4.1e-3),
        ({"prepare_s": None, "finish_s": 5e-3}, 5e-3),
        ({"prepare_s": 5e-3, "finish_s": float("nan")}, 5e-3),
        ({"prepare_s": 5e-3, "finish_s": -5e-3}, 5e-3),
        ({"prepare_s": 1e-3, "copy_fraction": None}, 1e-3),
        ({}, 0.0),
    ],
)
def test_both_parts_together_are_held_against_four_copies(parts: dict[str, Any], added: float) -> None:
    assert latency(timed(0.01, **parts)) == pytest.approx(0.01 + added, rel=1e-12)


@pytest.mark.parametrize("pass_", [*PASSES, "decode"])
def test_an_end_to_end_time_has_both_parts_already(pass_: str) -> None:
    native = replace(CASE, pass_=pass_)
    record = timed(0.01, case=native, prepare_s=1.0)
    assert latency(record) == pytest.approx(1.01)
    assert latency(replace(record, case=replace(native, timing="end-to-end"))) == 0.01


def test_they_are_added_once_and_to_all_times_and_rates() -> None:
    record = timed(0.01, prepare_s=0.03, samples_s=[0.01, 0.02], tokens_per_s=100.0, limit_fraction=2.0)
    once = with_native_parts(record)
    assert with_native_parts(once) == once
    numbers = once.numbers
    assert numbers["added_s"] == 0.03 and numbers["latency_s"] == pytest.approx(0.04)
    assert numbers["samples_s"] == pytest.approx([0.04, 0.05])
    assert numbers["latency_low_s"] == pytest.approx(0.039) and numbers["tokens_per_s"] == pytest.approx(25.0)
    assert numbers["limit_fraction"] == pytest.approx(0.5)
    (standing,) = ssmperf.standings(Run(Path("run"), META, [record]))
    assert standing.name == "competes" and standing.note == "with prepare, 30 ms: more than four times a copy"


def test_a_loaded_run_has_the_times_that_are_ranked(tmp_path: Path) -> None:
    rounds = [timed(0.01, prepare_s=0.03, round=number) for number in range(3)]
    (tmp_path / "run.json").write_text(json.dumps(META))
    (tmp_path / "records.jsonl").write_text("".join(f"{record.to_line()}\n" for record in rounds))
    run = ssmperf.load(tmp_path)
    (record,) = run.records
    assert record.numbers["latency_s"] == pytest.approx(0.04)
    assert record.numbers["round_values"] == pytest.approx([0.04] * 3)
    assert [each.numbers["latency_s"] for each in run.rounds[CASE.id]] == pytest.approx([0.04] * 3)
    (row,) = run.frame().to_dict("records")
    assert row["latency_s"] == pytest.approx(0.04) and row["mark"] == "with prepare, 30 ms"


def test_a_version_that_moves_its_work_is_not_faster() -> None:
    base, new = timed(0.01), timed(0.001, prepare_s=0.012, copy_fraction=0.5)
    runs = [Run(Path(name), META, [record]) for name, record in (("base", base), ("new", new))]
    (pair,) = ssmperf.compare_runs(*runs, force=True).pairs
    assert pair.new == pytest.approx(0.013) and pair.verdict != "faster"


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    """Measure the planted backends where four copies take less time than the hidden work."""
    nbytes = 3 * 4 * 2 * 9 * 4  # log_a, b and the output of B2 T9 C4 in float32
    rate = 2 * 4 * nbytes / (0.4 * WORK_S)
    ceilings = Ceilings(rate, {"float32": 1e18}, 1e15, 1e18, 2**20, 1e15)
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other on a busy machine, longer than anybody sleeps here
    for timing in ("native", "end-to-end"):
        found += records_of(
            "throughput",
            PLUGIN,
            models="scan",
            backends=[f"native_{name}" for name in ("honest", "remembering", *HIDING)],
            regime="sigmoid/data",
            axis=["B=2", "T=9", "C=4"],
            dtype="float32",
            pass_=PASSES,
            timing=timing,
            wanted=_asked,
            ceilings=ceilings,
        )
    torch.set_num_threads(threads)
    return found


def _asked(case: Case) -> bool:
    if case.timing != "native":
        return case.backend == "native_in_both"
    return case.backend != "native_remembering" or case.pass_ == "forward"


def of(records: list[Record], name: str, pass_: str, timing: str) -> Record:
    (found,) = [
        record
        for record in records
        if (record.case.backend, record.case.pass_, record.case.timing) == (f"native_{name}", pass_, timing)
    ]
    assert found.status is Status.OK, found.reason
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", HIDING)
def test_work_around_a_native_call_is_measured_and_added(
    measured: list[Record], name: str, pass_: str
) -> None:
    native = of(measured, name, pass_, "native")
    assert latency(native) >= WORK_S * (1 + (pass_ == "forward_backward"))


@pytest.mark.slow
@pytest.mark.parametrize("pass_", PASSES)
def test_an_end_to_end_call_does_it_itself(measured: list[Record], pass_: str) -> None:
    whole = of(measured, "in_both", pass_, "end-to-end")
    assert with_native_parts(whole) == whole and "prepare_s" not in whole.numbers
    assert latency(whole) >= WORK_S * (1 + (pass_ == "forward_backward"))


@pytest.mark.slow
@pytest.mark.parametrize("pass_", PASSES)
def test_an_honest_change_of_layout_keeps_winning(measured: list[Record], pass_: str) -> None:
    natives = [each for each in measured if each.case.timing == "native" and "remem" not in each.case.backend]
    run = Run(Path("run"), META, natives)
    (contest,) = [each for each in ssmperf.best(run) if each["pass"] == pass_]
    assert contest["backend"] == "native_honest"
    marks = {each["backend"]: each["mark"] for each in contest["competitors"]}
    assert marks.pop("native_honest") == ""
    assert len(marks) == len(HIDING) and all(mark.startswith("with ") for mark in marks.values())


@pytest.mark.slow
def test_a_preparation_cannot_keep_what_it_made(measured: list[Record]) -> None:
    assert latency(of(measured, "remembering", "forward", "native")) >= WORK_S
