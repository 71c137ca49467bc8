"""Times that are not ranked as measured: with work around a native call, or faster than the machine can be.

Each rule is tested in every form in which a run is shown (tests/support/results/claims.py).
"""

from __future__ import annotations

from typing import Any

import pytest
from ssmperf.reports.rows import frames
from support.results.claims import claims, report

import ssmperf
from ssmperf import Record


def honest(fake: Any) -> list[Record]:
    """Time two backends in both passes: chunkwise is first in both."""
    return [
        fake.timed(seconds * factor, backend=name, pass_=pass_)
        for name, seconds in (("sequential", 4.0), ("chunkwise", 2.0))
        for pass_, factor in (("forward", 1.0), ("backward", 2.0))
    ]


def by_pass(run: Any) -> dict[str, dict[str, Any]]:
    return {contest["pass"]: contest for contest in ssmperf.best([run])}


MOVED = {
    "prepare": {"prepare_s": 9.0, "finish_s": 1e-6},
    "finish": {"prepare_s": None, "finish_s": 9.0},
    "prepare and finish": {"prepare_s": 5.0, "finish_s": 4.0},
}


def native(fake: Any, name: str, **numbers: Any) -> list[Record]:
    """Time a backend's native call, in 0.5 s: 50 times a copy of its operands and results."""
    numbers = {"copy_fraction": 0.01, "bandwidth_bytes_per_s": 1e6, "tokens_per_s": 100.0, **numbers}
    return [fake.timed(0.5, backend=name, pass_=pass_, numbers=numbers) for pass_ in ("forward", "backward")]


@pytest.mark.slow(but=("prepare and finish",))
@pytest.mark.parametrize("parts", MOVED)
def test_work_beside_the_native_call_wins_in_no_form(fake: Any, parts: str) -> None:
    run = fake.run([*native(fake, "moved", **MOVED[parts]), *honest(fake)])
    assert {form: names for form, names in claims([run]).items() if names != {"chunkwise"}} == {}
    said = f"with {parts}, 9 s"
    for name in ("table", "best", "best_json", "markdown", "csv"):
        text = " ".join(report(name, [run]).split())
        assert f"{said}: more than four times a copy" in text, name
    forward = by_pass(run)["forward"]
    assert {each["backend"]: each["value"] for each in forward["competitors"]} == {
        "chunkwise": 2.0,
        "sequential": 4.0,
        "moved": 9.5 + (parts == "prepare") * 1e-6,
    }
    (row,) = [
        row
        for row in frames.records(frames.frame([run]))
        if (row["backend"], row["pass"]) == ("moved", "forward")
    ]
    assert (row["standing"], row["mark"]) == ("competes", said)
    assert row["latency_low_s"] < row["latency_s"] < row["latency_high_s"]
    assert row["tokens_per_s"] == pytest.approx(100.0 * 0.5 / 9.5) and row["copy_fraction"] < 0.001


def test_a_change_of_layout_wins_in_every_form(fake: Any) -> None:
    run = fake.run([*native(fake, "turned", prepare_s=0.02, finish_s=0.019), *honest(fake)])
    assert {form: names for form, names in claims([run]).items() if "turned" not in names} == {}
    assert by_pass(run)["forward"]["competitors"][0]["mark"] == ""


def test_a_winner_with_its_preparation_says_so(fake: Any) -> None:
    run = fake.run([*native(fake, "moved", prepare_s=0.5), *honest(fake)])
    assert by_pass(run)["forward"]["fastest"] == ["moved"]
    (line,) = [line for line in report("table", [run]).splitlines() if "▸" in line and "1.00 s" in line][:1]
    assert "moved (with prepare, 500 ms)" in line
    assert "moved (with prepare, 500 ms)" in report("best", [run])


@pytest.mark.parametrize(
    ("fraction", "fastest"),
    [(0.99, "quick"), (1.04, "quick"), (1.06, "chunkwise"), (float("inf"), "chunkwise")],
)
def test_a_limit_is_known_within_a_few_per_cent(fake: Any, fraction: float, fastest: str) -> None:
    quickest = fake.timed(0.5, backend="quick", numbers={"limit": "matmul", "limit_fraction": fraction})
    run = fake.run([quickest, *honest(fake)])
    assert by_pass(run)["forward"]["fastest"] == [fastest]
    if fastest == "chunkwise" and fraction < 2:
        assert "faster than this machine can do its arithmetic: 106 % of the limit" in report("best", [run])


def test_no_call_takes_less_than_any_device_could(fake: Any) -> None:
    run = fake.run([fake.timed(1e-300, backend="quick"), *honest(fake)])
    assert by_pass(run)["forward"]["fastest"] == ["chunkwise"]
    assert "latency_s of 1e-300 is less than any machine gives" in report("table", [run])
