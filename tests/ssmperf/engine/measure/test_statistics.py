"""Intervals cover the median as often as they claim, and drifting or bimodal samples are recognised."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ssmperf.engine.measure import statistics

NOISE = {  # by name: n samples whose median is 1
    "normal": lambda rng, n: 1 + 0.02 * rng.standard_normal(n),
    "student_t3": lambda rng, n: 1 + 0.02 * rng.standard_t(3, n),
    "lognormal": lambda rng, n: np.exp(0.3 * rng.standard_normal(n)),
    "exponential": lambda rng, n: 1 + 0.1 * (rng.standard_exponential(n) - math.log(2)),
}


@pytest.mark.slow(but=("normal-9", "lognormal-20"))
@pytest.mark.parametrize(
    ("noise", "n"),
    [*(("normal", n) for n in (5, 6, 9, 20, 101)), *((noise, n) for noise in [*NOISE][1:] for n in (5, 20))],
)
def test_interval_covers_the_median(noise: str, n: int) -> None:
    rng = np.random.default_rng(20_000 + n)
    trials = 4000
    summaries = [statistics.summarise(NOISE[noise](rng, n)) for _ in range(trials)]
    covered = sum(s.low <= 1 <= s.high for s in summaries) / trials
    assert 0.93 <= covered <= 0.97


def test_summary_of_known_samples() -> None:
    summary = statistics.summarise([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (summary.median, summary.low, summary.high, summary.n) == (3.0, 1.0, 5.0, 5)
    assert (summary.quartile_low, summary.quartile_high, summary.outliers) == (2.0, 4.0, 0)
    assert summary.relative_width == pytest.approx(2 / 3)


def test_outliers_are_counted_and_kept() -> None:
    samples = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 100.0]
    summary = statistics.summarise(samples)
    assert summary.outliers == 1 and summary.n == len(samples)
    assert statistics.summarise([*samples, 100.0, 100.0, 100.0, 100.0]).median == pytest.approx(1.1)
    assert statistics.summarise([1, 1, 1, 1, 1, 100.0]).high == pytest.approx(100.0, rel=0.5)


def test_order_statistics_are_exact_at_known_depths() -> None:
    """The depths are those of published tables: between 6 and 5 for n = 20, between 41 and 40 for n = 100."""
    for n, outer in ((20, 6), (100, 40)):
        low = statistics.summarise(range(1, n + 1)).low
        assert outer - 1 <= low <= outer + 1


def test_too_few_samples_have_no_interval() -> None:
    summary = statistics.summarise([1.0, 2.0, 3.0, 4.0])
    assert summary.low is None and summary.high is None and summary.relative_width == math.inf


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf]])
def test_no_or_infinite_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError):
        statistics.summarise(samples)


def test_constant_samples() -> None:
    samples = [1e-5] * 12
    summary = statistics.summarise(samples)
    assert summary.low == summary.high == summary.median == 1e-5
    assert summary.relative_width == 0 and summary.outliers == 0
    assert statistics.needed(samples, 0.01) == 1
    assert not statistics.drifts(samples, 0.01) and not statistics.bimodal(samples, 0.01)
    assert statistics.summarise([0.0] * 6).relative_width == 0


def test_needed_grows_with_the_square_of_the_spread() -> None:
    pilot = 1 + 0.01 * np.random.default_rng(0).standard_normal(200)
    wide = 1 + 3 * (pilot - 1)
    assert statistics.needed(wide, 0.01) == pytest.approx(9 * statistics.needed(pilot, 0.01), rel=0.02)
    assert statistics.needed(wide, 0.03) == pytest.approx(statistics.needed(pilot, 0.01), rel=0.02)


def mixture(rng: np.random.Generator, n: int, minority: float, distance: float) -> np.ndarray:
    return 1 + distance * (rng.random(n) < minority) + 0.005 * rng.standard_normal(n)


@pytest.mark.parametrize(("minority", "n"), [(0.5, 30), (0.5, 200), (0.3, 40), (0.2, 200), (0.2, 1000)])
def test_two_modes_are_recognised(minority: float, n: int) -> None:
    rng = np.random.default_rng(n)
    found = [statistics.bimodal(mixture(rng, n, minority, 0.1), 0.01) for _ in range(200)]
    assert np.mean(found) > 0.95


def test_modes_closer_than_the_goal_are_none_of_our_business() -> None:
    rng = np.random.default_rng(1)
    samples = 1 + 0.005 * (rng.random(500) < 0.5) + 1e-4 * rng.standard_normal(500)
    assert not statistics.bimodal(samples, 0.01)
    assert statistics.bimodal(samples, 0.001)


@pytest.mark.slow(but=("12-*", "40-normal"))
@pytest.mark.parametrize("noise", [*NOISE, "uniform", "cauchy"])
@pytest.mark.parametrize("n", [12, 40, 400])
def test_one_mode_and_no_drift_raise_no_alarm(noise: str, n: int) -> None:
    rng = np.random.default_rng(n)
    draw = {
        **NOISE,
        "uniform": lambda rng, n: 1 + 0.1 * rng.random(n),
        "cauchy": lambda rng, n: 1 + 0.02 * rng.standard_cauchy(n),
    }[noise]
    trials = [draw(rng, n) for _ in range(500)]
    assert np.mean([statistics.bimodal(samples, 0.01) for samples in trials]) < 0.02
    assert np.mean([statistics.drifts(samples, 0.01) for samples in trials]) < 0.01


@pytest.mark.parametrize(
    "trend", [lambda t: 0.05 * t, lambda t: -0.05 * t, lambda t: 0.04 * (t > 0.3)], ids=["up", "down", "step"]
)
def test_drift_is_recognised(trend) -> None:
    rng = np.random.default_rng(5)
    t = np.linspace(0, 1, 100)
    found = [statistics.drifts(1 + trend(t) + 0.01 * rng.standard_normal(100), 0.01) for _ in range(200)]
    assert np.mean(found) > 0.95


def test_a_drift_smaller_than_the_goal_is_none() -> None:
    assert not statistics.drifts(1 + 0.005 * np.linspace(0, 1, 500), 0.01)


@pytest.mark.parametrize("n", [10_001, 40_000])
def test_the_interval_of_many_samples_is_nearly_the_exact_one(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, weight = statistics._depth.__wrapped__(n, 0.95)
    monkeypatch.setattr(statistics, "MOST_EXACT", 10**9)
    exact, _ = statistics._depth.__wrapped__(n, 0.95)
    assert weight == 0 and exact - 1 <= depth <= exact
