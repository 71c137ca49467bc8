"""Planted faulty backends: each is flagged for its own reason, and the others are unaffected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.in_process import records_of

import ssmperf
from ssmperf import Record, Run

PLUGIN = Path(__file__).parents[3] / "support" / "plugins" / "planted.py"
EXPECTED = {
    "right": ("ok", None),
    "raises": ("crash", "ValueError: planted <b>failure</b>"),
    "wrong": ("wrong", "output: relative error"),
    "nan": ("nan", "first at (0, 1, 0)"),
    "exits": ("crash", "SystemExit"),
    "wrong_gradient": ("wrong", "gradient of b"),
    "first_result": ("wrong", "output: relative error"),
    "changes_input": ("wrong", "changed its input b"),
    "state_in_place": ("wrong", "changed its input initial_state"),
    "unsupported": ("unsupported", "only on Tuesdays"),
    "all_but_last_row": ("nan", "output"),
    "no_graph": ("wrong", "no graph"),
    "lazy": ("wrong", "output is a Lazy, must be a plain torch.Tensor"),
    "changes_gradient": ("wrong", "changed its input the incoming gradient"),
    "static_output": ("ok", None),
    "by_version": ("ok", None),
    "cached_backward": ("ok", None),
    "no_bound": ("wrong", "its declared error bound inf is not valid"),
    "double_state": ("wrong", "final_state is float64, must be float32"),
}
# Faults that a worker does not survive, and faults that it does.
IN_WORKERS = {
    "right": ("ok", None),
    "wrong": ("wrong", "output: relative error"),
    "hangs": ("timeout", "no answer within"),
    "aborts": ("crash", "SIGABRT"),
    "allocates": ("oom", "memory"),
    "unsupported": ("unsupported", "only on Tuesdays"),
}
SMALL = ["T=9", "C=4", "B=2"]


def agrees(record: Record, expected: tuple[str, str | None]) -> bool:
    status, reason = expected
    return record.status == status and (reason is None or reason in str(record.reason))


@pytest.mark.parametrize("name", EXPECTED)
def test_each_planted_fault_has_its_status_and_reason(name: str) -> None:
    (record,) = records_of(
        "correctness", PLUGIN, models="hgrn", backends=f"planted_{name}", dtype="float32", axis=SMALL
    )
    assert agrees(record, EXPECTED[name]), (record.status, record.reason)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Make one run with a correct backend before, between and after the planted ones."""
    names = ["sequential", "triton", *(f"planted_{name}" for name in IN_WORKERS)]
    return ssmperf.run(
        "correctness",
        models="hgrn",
        backends=names,
        dtype="float32",
        axis=SMALL,
        device="cpu",
        plugin=PLUGIN,
        timeout=5,
        out=tmp_path_factory.mktemp("runs") / "run",
    )


def test_each_fault_costs_its_own_case_alone(run: Run) -> None:
    by_backend = {record.case.backend: record for record in run.records}
    assert len(run.records) == len(IN_WORKERS) + 2
    assert by_backend["sequential"].status == "ok"
    assert by_backend["triton"].status == "unsupported"
    for name, expected in IN_WORKERS.items():
        record = by_backend[f"planted_{name}"]
        assert agrees(record, expected), (name, record.status, record.reason)


def test_failed_records_carry_no_time_and_the_repeating_command(run: Run) -> None:
    for record in run.records:
        times = [name for name in record.numbers if name.endswith("_s") and name != "spent_s"]
        assert record.status == "ok" or not times
    (wrong,) = [r for r in run.records if r.case.backend == "planted_wrong"]
    assert wrong.numbers["command"].startswith("ssmperf run --suite correctness --models hgrn")


TIMED = {
    "right": ("ok", "ok", None),
    "by_version": ("ok", None, None),
    "cached_backward": ("ok", "wrong", "when it was timed: gradient of"),
    "static_output": ("wrong", "ok", "its second call overwrote"),
}


@pytest.fixture(scope="module")
def timed() -> list[Record]:
    """Some faults appear only while a call is timed."""
    names = [f"planted_{name}" for name in TIMED]
    return records_of("throughput", PLUGIN, models="hgrn", backends=names, axis=SMALL)


@pytest.mark.parametrize("name", TIMED)
def test_faults_that_only_timing_meets(timed: list[Record], name: str) -> None:
    found = {r.case.pass_: r for r in timed if r.case.backend == f"planted_{name}"}
    forward, backward, reason = TIMED[name]
    assert found["forward"].status == forward, found["forward"].reason
    assert backward is None or found["backward"].status == backward, found["backward"].reason
    assert reason is None or any(reason in str(record.reason) for record in found.values())


def test_results_remembered_by_version_are_not_timed(timed: list[Record]) -> None:
    """The planted backend sleeps 10 ms whenever it computes, and every timed call must compute."""
    (record,) = [r for r in timed if r.case.backend == "planted_by_version" and r.case.pass_ == "forward"]
    assert min(record.numbers["samples_s"]) >= 0.01
