"""Comparing two runs: the verdict of a pair, and the exit code of the comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssmperf import Case, Record, Run, Shape, Status, UsageError
from ssmperf.measure import statistics
from ssmperf.runs.comparison import RunComparison, compare_runs, parse_threshold

SECTIONS = {
    "throughput": {"rank": "latency_s"},
    "correctness": {"rank": None},
    "memory": {"rank": "peak_bytes"},
}
ENVIRONMENT = {"hardware": {"gpu": {"name": "A", "uuid": "1"}}, "driver": "1", "versions": {"torch": "2"}}


def samples(seconds: float, *, n: int = 40, noise: float = 0.01, seed: int = 0) -> list[float]:
    numbers = np.random.default_rng(seed).normal(1, noise, n)
    return [float(seconds * number) for number in numbers]


def case(**changes: Any) -> Case:
    shape = Shape(changes.pop("shape", {"B": 1, "T": 64, "C": 4}))
    return Case(
        **{"suite": "throughput", "recurrence": "scan", "backend": "blelloch", "shape": shape, **changes}
    )


def timed(seconds: float, *, env_id: str = "e", **changes: Any) -> Record:
    taken = samples(seconds)
    return Record(
        case(**changes), Status.OK, None, env_id, {"latency_s": float(np.median(taken)), "samples_s": taken}
    )


def ended(status: str, **changes: Any) -> Record:
    return Record(case(**changes), Status(status), "because", "e")


def run(*records: Record, environments: dict[str, Any] | None = None) -> Run:
    meta = {"suites": SECTIONS, "environments": {"e": ENVIRONMENT} if environments is None else environments}
    return Run(Path("runs/x"), meta, list(records))


def verdicts(found: RunComparison) -> list[str]:
    return [pair.verdict for pair in found.pairs]


@pytest.mark.parametrize(
    ("base", "new", "verdict", "code"),
    [
        (timed(1.0), timed(1.0), ["same"], 0),
        (timed(1.0), timed(1.02), ["same"], 0),
        (timed(1.0), timed(2.0), ["slower"], 1),
        (timed(2.0), timed(1.0), ["faster"], 0),
        (timed(1.0), ended("wrong"), ["wrong"], 3),
        (timed(1.0), ended("nan"), ["wrong"], 3),
        (timed(1.0), ended("crash"), ["wrong"], 3),
        (timed(1.0), ended("oom"), ["lost"], 3),
        (timed(1.0), ended("unsupported"), ["lost"], 3),
        (ended("oom"), ended("oom"), ["failing"], 4),
        (ended("wrong"), ended("wrong"), ["wrong"], 3),
        (ended("oom"), timed(1.0), ["mended"], 0),
        (ended("unsupported"), ended("unsupported"), [], 4),
    ],
)
def test_the_verdict_of_a_pair(base: Record, new: Record, verdict: list[str], code: int) -> None:
    found = compare_runs(run(base), run(new))
    assert (verdicts(found), found.exit_code) == (verdict, code)


def test_a_case_that_is_gone_is_missing_and_a_new_one_is_welcome() -> None:
    found = compare_runs(run(timed(1.0), timed(1.0, seed=1)), run(timed(1.0), timed(1.0, seed=2)))
    assert (verdicts(found), found.exit_code) == (["missing", "same", "new"], 3)


def test_what_was_refused_need_not_be_there() -> None:
    found = compare_runs(run(timed(1.0), ended("unsupported", seed=1)), run(timed(1.0)))
    assert (verdicts(found), found.exit_code) == (["same"], 0)


def test_broken_comes_before_slower_and_slower_before_unsure() -> None:
    noisy = Record(case(seed=2), Status.OK, None, "e", {"latency_s": 1.2, "samples_s": [0.5, 1.2, 3.0]})
    base = run(timed(1.0), timed(1.0, seed=1), timed(1.0, seed=2))
    assert compare_runs(base, run(timed(1.0), timed(1.0, seed=1), noisy)).exit_code == 4
    assert compare_runs(base, run(timed(1.0), timed(2.0, seed=1), noisy)).exit_code == 1
    assert compare_runs(base, run(ended("wrong"), timed(2.0, seed=1), noisy)).exit_code == 3


def test_numbers_without_samples_compare_as_they_are() -> None:
    records = [
        Record(case(suite="memory"), Status.OK, None, "e", {"peak_bytes": size})
        for size in (1000, 1040, 1100)
    ]
    assert [verdicts(compare_runs(run(records[0]), run(other)))[0] for other in records] == [
        "same",
        "same",
        "slower",
    ]


def test_a_number_that_vanished_is_lost() -> None:
    without = Record(case(), Status.OK, None, "e", {"latency_s": None})
    assert verdicts(compare_runs(run(timed(1.0)), run(without))) == ["lost"]


def test_a_suite_without_a_rank_compares_statuses() -> None:
    fine = Record(case(suite="correctness"), Status.OK, None, "e")
    assert verdicts(compare_runs(run(fine), run(fine))) == ["same"]


def test_another_device_is_no_comparison_unless_forced() -> None:
    other = {"f": {**ENVIRONMENT, "hardware": {"gpu": {"name": "B", "uuid": "2"}}}}
    base, new = run(timed(1.0)), run(timed(2.0, env_id="f"), environments=other)
    found = compare_runs(base, new)
    assert (verdicts(found), found.exit_code) == (["ambiguous"], 4)
    assert found.differences == ("hardware.gpu.name: A and B",)
    assert compare_runs(base, new, force=True).exit_code == 1


def test_another_copy_of_the_same_device_is_comparable_by_its_id() -> None:
    assert compare_runs(run(timed(1.0)), run(timed(1.0))).differences == ()


def test_nothing_in_common_is_no_pass() -> None:
    assert compare_runs(run(), run()).exit_code == 4
    assert compare_runs(run(), run(timed(1.0))).exit_code == 4


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), (" 12.5% ", 0.125)])
def test_thresholds_are_read(text: str, value: float) -> None:
    assert parse_threshold(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "five", "0", "-5%", "nan", "1e9", "5%%"])
def test_other_thresholds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="threshold"):
        parse_threshold(text)


def test_equal_medians_seldom_differ_and_a_slow_down_is_found() -> None:
    def verdict(slowdown: float, seed: int) -> str:
        pairs = [
            samples(factor, n=30, noise=0.02, seed=2 * seed + i) for i, factor in enumerate((1, slowdown))
        ]
        return statistics.compare(*pairs, threshold=0.02).verdict

    assert sum(verdict(1.0, seed) in ("slower", "faster") for seed in range(200)) <= 4
    assert sum(verdict(1.1, seed) == "slower" for seed in range(200)) >= 190


def test_more_comparisons_ask_for_more_evidence() -> None:
    base, new = samples(1.0, n=30), samples(1.1, n=30, seed=1)
    one, many = (statistics.compare(base, new, threshold=0.05, comparisons=count) for count in (1, 1000))
    assert many.low < one.low < one.ratio == many.ratio < one.high < many.high
