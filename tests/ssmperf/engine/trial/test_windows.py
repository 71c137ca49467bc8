"""The driver's own clock: the slope of two windows, whatever surrounds the calls."""

from __future__ import annotations

from itertools import cycle

import pytest

from ssmperf.engine.trial.windows import LEAST_S, LONG_S, least_call_s, too_fast


class Worker:
    """Makes calls of known length, each window with so much around them."""

    def __init__(self, call_s: float, around_s: float, noise_s: tuple[float, ...] = (0.0,)) -> None:
        self.now_s, self.call_s, self.around_s, self.noise_s = 0.0, call_s, around_s, cycle(noise_s)
        self.calls = 0

    def make(self, calls: int) -> None:
        self.calls += calls
        self.now_s += self.around_s + calls * self.call_s + next(self.noise_s)

    def now(self) -> float:
        return self.now_s


@pytest.mark.parametrize("call_s", [1e-6, 1e-4, 2e-3, 0.015])
def test_the_slope_is_the_time_of_a_call(call_s: float) -> None:
    worker = Worker(call_s, around_s=1e-3)
    assert least_call_s(worker.make, worker.now) == pytest.approx(call_s)


def test_a_long_call_is_made_once_and_bounded_from_below() -> None:
    worker = Worker(5.0, around_s=1e-3)
    assert 5.0 - LEAST_S <= least_call_s(worker.make, worker.now) <= 5.0 and worker.calls == 1
    assert LONG_S > LEAST_S


def test_a_window_that_was_disturbed_does_not_count() -> None:
    worker = Worker(1e-3, around_s=0.0, noise_s=(0.0, 0.0, 0.0, 0.5, 0.0, 0.0))
    assert least_call_s(worker.make, worker.now) <= 1e-3 * 1.001


def test_calls_that_take_no_time_bound_nothing() -> None:
    worker = Worker(0.0, around_s=1e-5)
    assert least_call_s(worker.make, worker.now) == 0.0


@pytest.mark.parametrize(
    ("median_s", "least_s", "reason"),
    [
        (1.0, 1.2, None),
        (1.0, 1.5, "its clock is wrong"),
        (1.0, None, "cannot be confirmed"),
        (1.0, 0.0, None),
        (None, None, None),
    ],
)
def test_a_median_far_below_the_bound_is_wrong(
    median_s: float | None, least_s: float | None, reason: str | None
) -> None:
    found = too_fast(median_s, least_s)
    assert found is None if reason is None else reason in str(found)
