"""Sample a call until its median is known well enough or the time is up, and report which of the two.

Stopping as soon as an interval looks narrow would select intervals that are narrow by luck. Therefore a
pilot, which also warms up, decides how many samples to take, and the interval comes from fresh samples only.
A round whose interval turns out too wide becomes the pilot of the next round.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ssmperf.engine.measure import statistics
from ssmperf.engine.measure.statistics import Summary

PILOT_SHARE = 0.25  # of the longest time, at most
MOST_GROWTH = 8  # from one round to the next, since the earlier one may have been warming up
SLICE_S = 0.05  # of samples, until another process takes some
BRIEF_SHARE = 0.25  # of a slice: calls below it have an untimed one ahead of each slice
FEWEST = 6  # fresh samples; the range of fewer does not reach the confidence of a stopped interval
SETTLED = 12  # fresh samples, without which a single round does not count as settled


@dataclass(frozen=True, slots=True)
class Samples:
    """The outcome of sampling: all samples, their summary, and whether it can be trusted.

    samples_s: seconds per call, in the order taken; the interval is computed from them.
    taken_at_s: when each sample began and ended on the sampling clock, so that telemetry can mark it.
    pilot_s: the samples of the pilot, which decided how many others were taken.
    summary: None if no sample is left because all were taken under a throttle.
    converged: the interval is within the goal, and the samples neither drift nor have two modes.
    reason: why the samples did not converge, or None.
    """

    samples_s: tuple[float, ...]
    taken_at_s: tuple[tuple[float, float], ...]
    pilot_s: tuple[float, ...]
    relative_width: float
    summary: Summary | None = field(init=False)
    converged: bool = field(init=False)
    reason: str | None = field(init=False)

    def __post_init__(self) -> None:
        summary = (
            statistics.summarise(self.samples_s, statistics.STOPPED_CONFIDENCE) if self.samples_s else None
        )
        reason = _doubt(self.samples_s, summary, self.relative_width)
        object.__setattr__(self, "summary", summary)
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "converged", reason is None)

    def excluding(self, marks: Sequence[bool]) -> Samples:
        """Return these samples without the marked ones, which telemetry saw taken under a throttle."""
        kept = [i for i, marked in zip(range(len(self.samples_s)), marks, strict=True) if not marked]
        return dataclasses.replace(
            self,
            samples_s=tuple(self.samples_s[i] for i in kept),
            taken_at_s=tuple(self.taken_at_s[i] for i in kept),
        )


class Alternation:
    """Takes samples in slices, between which another process takes its own.

    A slice begins with an untimed call, unless that would take much of it: meanwhile the other process has
    had the caches. The time in which the other process works, and that of the untimed calls, are no part of
    `now`.

    take: takes a sample; returns its seconds. warm_up: makes an untimed call.
    hand_over: called with `finished=` whether there is nothing more to take. It returns when this process may
        work again, and tells whether another one has worked meanwhile.
    clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        take: Callable[[], float],
        hand_over: Callable[..., bool],
        warm_up: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.take, self.hand_over, self.warm_up, self.clock = take, hand_over, warm_up, clock
        self._left_out_s = 0.0
        self._slice_ends_s: float | None = None
        self._last_s: float | None = None  # of the last sample, with the work around the call

    def now(self) -> float:
        """Read the clock, without the time that is left out."""
        return self.clock() - self._left_out_s

    def __call__(self) -> float:
        """Take a sample, after the other process's slice if this one's is over."""
        if self._slice_ends_s is None or self.clock() >= self._slice_ends_s:
            self._begin_slice()
        began_s = self.clock()
        seconds = self.take()
        self._last_s = self.clock() - began_s
        return seconds

    def finish(self) -> None:
        """Let the other process take the rest of its samples."""
        self.hand_over(finished=True)

    def _begin_slice(self) -> None:
        began_s = self.clock()
        away = self.hand_over(finished=False)
        if away and self._last_s is not None and self._last_s < BRIEF_SHARE * SLICE_S:
            self.warm_up()
        now_s = self.clock()
        self._left_out_s += now_s - began_s
        self._slice_ends_s = now_s + SLICE_S


def sample(
    call: Callable[[], float],
    *,
    min_time_s: float = 0.0,
    max_time_s: float,
    relative_width: float = 0.01,
    min_samples: int = 5,
    max_samples: int = 10_000,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """Run `call` until the 95 % interval of its median is within ±relative_width, or the time is up.

    Args:
        call: runs once and returns its seconds.
        min_time_s, max_time_s: bounds of the total time, by `now`.
        min_samples: least number of samples in the pilot, and of fresh ones (at least six). The latter are
            taken even if that exceeds the longest time.
        max_samples: most samples in total, the pilot included.
        now: a monotonic clock in seconds.

    Raises:
        ValueError: the bounds contradict each other.
    """
    fewest = max(min_samples, FEWEST)
    if not (0 <= min_time_s <= max_time_s and min_samples >= 1 and max_samples >= min_samples + fewest):
        raise ValueError(
            "needs 0 ≤ min_time_s ≤ max_time_s, min_samples ≥ 1 and max_samples ≥ min_samples + "
            f"max(min_samples, {FEWEST}), got {min_time_s=}, {max_time_s=}, {min_samples=}, {max_samples=}"
        )
    began = now()
    seconds: list[float] = []
    taken_at: list[tuple[float, float]] = []

    def take() -> None:
        start = now()
        seconds.append(call())
        taken_at.append((start, now()))

    def affordable() -> int:
        each = statistics.summarise([end - start for start, end in taken_at]).median
        left_s = max_time_s - (now() - began)
        by_time = max_samples if each <= 0 else math.floor(max(left_s, 0.0) / each)
        return min(by_time, max_samples - len(seconds))

    while len(seconds) < min_samples:
        take()
        if now() - began >= PILOT_SHARE * max_time_s:
            break

    size, last = fewest, 0
    while True:
        needed = statistics.needed(seconds[last:], relative_width)
        needed = max(size, min(max(needed, SETTLED), MOST_GROWTH * (len(seconds) - last)))
        size = max(size, min(needed, affordable()))
        last = len(seconds)
        while len(seconds) - last < size or (now() - began < min_time_s and len(seconds) < max_samples):
            take()
            if now() - began >= max_time_s and len(seconds) - last >= fewest:
                break
        samples = Samples(
            tuple(seconds[last:]), tuple(taken_at[last:]), tuple(seconds[:last]), relative_width
        )
        left = affordable()  # read once: it may be nothing a moment later
        if samples.converged or left < size:
            return samples
        size = min(2 * size, left)


def _doubt(samples_s: Sequence[float], summary: Summary | None, relative_width: float) -> str | None:
    """Say why the median of these samples cannot be trusted, or return None."""
    if summary is None:
        return "no samples left"
    if summary.low is None:
        return f"{summary.n} samples are too few for an interval (at least {statistics.MIN_INTERVAL})"
    if summary.n < SETTLED:
        return f"{summary.n} samples are too few (at least {SETTLED})"
    if statistics.bimodal(samples_s, relative_width):
        return "the samples have two modes"
    if statistics.drifts(samples_s, relative_width):
        return "the samples drift"
    if summary.relative_width > relative_width:
        return f"the interval is ±{summary.relative_width:.2%} after {summary.n} samples"
    return None
