"""Planted backends: each is flagged for its own reason, and the others are unaffected."""

from __future__ import annotations

from pathlib import Path

import pytest

import ssmperf
from ssmperf import Run

PLUGIN = Path(__file__).parents[1] / "planted.py"
EXPECTED = {
    "right": ("ok", None),
    "raises": ("crash", "ValueError: planted <b>failure</b>"),
    "wrong": ("wrong", "output: relative error"),
    "nan": ("nan", "first at (0, 1, 0)"),
    "hangs": ("timeout", "no answer within"),
    "aborts": ("crash", "SIGABRT"),
    "allocates": ("oom", "memory"),
    "wrong_gradient": ("wrong", "gradient of b"),
    "first_result": ("wrong", "output: relative error"),
    "changes_input": ("wrong", "changed its input b"),
    "unsupported": ("unsupported", "only on Tuesdays"),
    "all_but_last_row": ("nan", "output"),
    "no_graph": ("wrong", "no graph"),
    "exits": ("crash", "SystemExit"),
    "lazy": ("wrong", "Lazy"),
    "changes_gradient": ("wrong", "changed its input the incoming gradient"),
    "static_output": ("ok", None),
    "by_version": ("ok", None),
    "cached_backward": ("ok", None),
    "no_bound": ("wrong", "its declared error bound inf is none"),
    "double_state": ("wrong", "final_state is torch.float64"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with a right backend before, between and after the planted ones."""
    names = ["sequential", "triton", *(f"planted_{name}" for name in EXPECTED)]
    return ssmperf.run(
        "correctness",
        models="hgrn",
        backends=names,
        dtype="float32",
        axis=["T=9", "C=4", "B=2"],
        device="cpu",
        plugin=PLUGIN,
        timeout=10,
        out=tmp_path_factory.mktemp("runs") / "run",
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_each_planted_fault_has_its_status_and_reason(run: Run, name: str) -> None:
    (record,) = [r for r in run.records if r.case.backend == f"planted_{name}"]
    status, reason = EXPECTED[name]
    assert record.status == status, record.reason
    assert reason is None or reason in str(record.reason)


def test_the_other_cases_are_unaffected(run: Run) -> None:
    by_backend = {r.case.backend: r.status for r in run.records}
    assert by_backend["sequential"] == "ok"
    assert by_backend["triton"] == "unsupported"
    assert len(run.records) == len(EXPECTED) + 2


def test_failed_records_carry_no_time_and_the_repeating_command(run: Run) -> None:
    for record in run.records:
        assert record.status == "ok" or not any(name.endswith("_s") for name in record.numbers)
    (crash,) = [r for r in run.records if r.case.backend == "planted_raises"]
    assert crash.numbers["command"].startswith("ssmperf run --suite correctness --models hgrn")


TIMED = {
    "right": ("ok", "ok", None),
    "by_version": ("ok", None, None),
    "cached_backward": ("ok", "wrong", "after it was timed: gradient of"),
    "static_output": ("wrong", "ok", "its second call overwrote"),
}


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Faults that only timing meets."""
    names = ["sequential", *(f"planted_{name}" for name in TIMED)]
    return ssmperf.run(
        "throughput",
        models="hgrn",
        backends=names,
        axis=["T=9", "C=4", "B=2"],
        device="cpu",
        plugin=PLUGIN,
        timeout=60,
        out=tmp_path_factory.mktemp("runs") / "timed",
    )


@pytest.mark.parametrize("name", TIMED)
def test_faults_that_only_timing_meets(timed: Run, name: str) -> None:
    found = {r.case.pass_: r for r in timed.records if r.case.backend == f"planted_{name}"}
    forward, backward, reason = TIMED[name]
    assert found["forward"].status == forward, found["forward"].reason
    assert backward is None or found["backward"].status == backward, found["backward"].reason
    assert reason is None or any(reason in str(record.reason) for record in found.values())


def test_results_remembered_by_version_are_not_timed(timed: Run) -> None:
    """The planted backend sleeps 10 ms whenever it computes: no timed call may be spared that."""
    (record,) = [
        r for r in timed.records if r.case.backend == "planted_by_version" and r.case.pass_ == "forward"
    ]
    assert min(record.numbers["samples_s"]) >= 0.01
