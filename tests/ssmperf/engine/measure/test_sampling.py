"""The stopping rule is honest, economical, and never fooled into converging. Time is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from ssmperf.engine.measure.sampling import FEWEST, SETTLED, Samples, sample


class Bench:
    """A call that takes prescribed times, and the clock that advances meanwhile."""

    def __init__(self, times: Iterable[float], overhead_s: float = 0.0) -> None:
        self.times, self.overhead_s = iter(times), overhead_s
        self.now_s = 100.0

    def call(self) -> float:
        seconds = float(next(self.times))
        self.now_s += seconds + self.overhead_s
        return seconds

    def now(self) -> float:
        return self.now_s

    def sample(self, **settings) -> Samples:
        return sample(self.call, now=self.now, **{"max_time_s": 1e9, **settings})


def endless(draw: Callable[[np.random.Generator, int], np.ndarray], seed: int) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield from draw(rng, 64).tolist()


NOISE = {  # by name: n samples whose median is 1, at a scale
    "normal": lambda scale: lambda rng, n: 1 + scale * rng.standard_normal(n),
    "student_t3": lambda scale: lambda rng, n: 1 + scale * rng.standard_t(3, n),
    "lognormal": lambda scale: lambda rng, n: np.exp(scale * rng.standard_normal(n)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "scale"),
    [("normal", 0.003), ("normal", 0.01), ("student_t3", 0.01), ("lognormal", 0.01), ("lognormal", 0.05)],
)
def test_coverage_with_peeking(noise: str, scale: float) -> None:
    """In 1,000 trials of the whole rule, retries included, 93-97 % of the intervals contain the truth."""
    trials = 1000
    done = [Bench(endless(NOISE[noise](scale), seed=seed)).sample(max_samples=4000) for seed in range(trials)]
    covered = sum(s.summary.low <= 1 <= s.summary.high for s in done) / trials
    assert 0.93 <= covered <= 0.97
    assert sum(s.converged for s in done) / trials > 0.99
    settled = [s for s in done if s.converged]
    assert sum(s.summary.low <= 1 <= s.summary.high for s in settled) / len(settled) >= 0.93


@pytest.mark.slow
def test_coverage_where_samples_run_out() -> None:
    trials = 1000
    done = [Bench(endless(NOISE["normal"](0.2), seed=seed)).sample(max_samples=100) for seed in range(trials)]
    assert 0.93 <= sum(s.summary.low <= 1 <= s.summary.high for s in done) / trials <= 0.97
    assert not any(s.converged for s in done)
    assert np.mean(["the interval is" in s.reason for s in done]) > 0.99


@pytest.mark.slow(but=("0.4-10",))
@pytest.mark.parametrize(("minority", "min_samples"), [(0.5, 5), (0.4, 10), (0.3, 30)])
def test_two_modes_do_not_converge(minority: float, min_samples: int) -> None:
    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return 1 + 0.1 * (rng.random(n) < minority) + 0.003 * rng.standard_normal(n)

    settings = {"max_samples": 1000, "min_samples": min_samples}
    done = [Bench(endless(draw, seed)).sample(**settings) for seed in range(200)]
    assert np.mean([s.converged for s in done]) < 0.05
    assert np.mean([s.reason == "the samples have two modes" for s in done]) > 0.9


def test_drift_does_not_converge() -> None:
    noise = np.random.default_rng(0).standard_normal(9999)
    samples = Bench(1 + 5e-4 * np.arange(9999) + 0.004 * noise).sample(max_samples=2000, min_samples=50)
    assert not samples.converged and samples.reason == "the samples drift"


def test_warm_up_does_not_reach_the_median() -> None:
    samples = Bench([50.0, 9.0, 4.0, 2.0, 1.5] + [1.0] * 1000).sample()
    assert samples.converged and samples.summary.median == 1.0 and set(samples.samples_s) == {1.0}


def test_constant_times_stop_at_once() -> None:
    samples = Bench([1e-4] * 100).sample(min_samples=5)
    assert samples.converged and samples.reason is None
    assert len(samples.pilot_s) == 5 and len(samples.samples_s) == SETTLED
    assert samples.summary.relative_width == pytest.approx(0, abs=1e-12)


def test_clock_ticks_do_not_break_it() -> None:
    rng = np.random.default_rng(3)
    ticks = (round(1000 + 2 * x) * 1e-9 for x in rng.standard_normal(5000))
    samples = Bench(ticks).sample()
    assert samples.converged and samples.summary.median == pytest.approx(1e-6, rel=0.003)


def test_the_median_is_of_all_samples() -> None:
    """The latency is the median of all samples: not the minimum, and not without the outliers."""
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 1.004, 1.0, 1.008, 1.006, 1.009, 30.0]
    samples = Bench(times).sample(min_samples=5, max_samples=11)
    assert samples.samples_s == tuple(times[5:])
    assert samples.summary.median == pytest.approx(1.007)
    assert samples.summary.outliers == 1 and samples.summary.n == 6
    assert samples.summary.high > 1.1 and not samples.converged


def test_slow_calls_end_with_the_fewest_samples() -> None:
    samples = Bench(endless(NOISE["normal"](0.1), seed=1)).sample(max_time_s=0.5, min_samples=5)
    assert (len(samples.pilot_s), len(samples.samples_s)) == (1, FEWEST)
    assert not samples.converged


def test_time_is_bounded_by_the_injected_clock() -> None:
    bench = Bench(endless(NOISE["student_t3"](0.3), seed=1), overhead_s=4.0)
    samples = bench.sample(max_time_s=1000.0)
    assert 900 <= bench.now_s - 100.0 <= 1010
    assert not samples.converged
    assert len(samples.pilot_s) + len(samples.samples_s) <= 202


def test_it_ends_wherever_the_process_loses_its_core() -> None:
    """Also between two readings of the clock, of which one leaves time for more samples, the next none."""

    class Interrupted(Bench):
        readings, place = 0, 0

        def now(self) -> float:
            self.readings += 1
            assert self.readings < 10_000, "it reads the clock without end"
            if self.readings == self.place:
                self.now_s += 400.0
            return self.now_s

    for place in range(1, 300):
        bench = Interrupted(endless(NOISE["normal"](0.3), seed=place))
        bench.place = place
        assert len(bench.sample(max_time_s=400.0).samples_s) >= FEWEST


def test_it_stops_early_but_not_before_the_least_time() -> None:
    quick, long = Bench([0.01] * 2000), Bench([0.01] * 2000)
    quick.sample(max_time_s=10.0)
    long.sample(min_time_s=2.0, max_time_s=10.0)
    assert quick.now_s - 100 < 0.2
    assert 2.0 <= long.now_s - 100 < 2.1


def test_spans_lie_on_the_sampling_clock() -> None:
    samples = Bench([0.5] * 100, overhead_s=0.25).sample()
    assert len(samples.taken_at_s) == len(samples.samples_s)
    assert all(end - start == pytest.approx(0.75) for start, end in samples.taken_at_s)
    assert samples.taken_at_s[0][0] == pytest.approx(100 + 0.75 * len(samples.pilot_s))


def test_marked_samples_are_not_used() -> None:
    seconds = (1.0, 1.0, *(2.0,) * 10, *(1.0,) * SETTLED)
    samples = Samples(seconds, tuple((i, i + 1.0) for i in range(len(seconds))), (1.0,), 0.01)
    assert not samples.converged
    kept = samples.excluding([each == 2.0 for each in seconds])
    assert kept.samples_s == (1.0,) * (2 + SETTLED)
    assert [start for start, _ in kept.taken_at_s] == [0, 1, *range(12, 12 + SETTLED)]
    assert kept.converged and kept.summary.n == 2 + SETTLED


def test_nothing_is_left_when_all_are_marked() -> None:
    samples = Samples((1.0,) * 6, ((0.0, 1.0),) * 6, (), 0.01).excluding([True] * 6)
    assert samples.summary is None and not samples.converged and samples.reason == "no samples left"


@pytest.mark.parametrize(
    "settings", [{"min_time_s": 2.0, "max_time_s": 1.0}, {"min_samples": 0}, {"max_samples": 8}]
)
def test_contradicting_bounds_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        Bench([1.0] * 10).sample(**settings)


def test_a_few_samples_never_count_as_settled() -> None:
    samples = Bench([0.1] * 100).sample(max_time_s=0.8, min_samples=5)
    assert len(samples.samples_s) < SETTLED
    assert not samples.converged and f"at least {SETTLED}" in samples.reason
