"""Time one call: by three clocks on a GPU, by the wall clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ssmperf.engine.machine.cache import flusher
from ssmperf.engine.machine.telemetry import Telemetry
from ssmperf.engine.measure.clocks import Clock, HostClock, IssueClock, WallClock
from ssmperf.engine.measure.device_clocks import EventClock, GraphClock
from ssmperf.engine.measure.sampling import Alternation, Samples, sample

FURTHER_CLOCK_SHARE = 0.3  # time of each further clock, relative to that of the first
FEWEST_SAMPLES = 5
BRIEF_S = 5e-4  # below it, the cache's contents after writing fresh values matter
MOST_REPEATS = 4  # of one sample whose device work may have waited for the host
TOO_LONG = "not captured: a few calls are longer than the time for further clocks"
NO_GRAPHS = "not captured: a failed capture would harm what else this process has to do"


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of a call by the first clock, and the medians of the further clocks in seconds.

    samples: without those taken under a throttle, which `telemetry` counts.
    graph_reason: why there is no graph time. issue_s: seconds that the host needs to issue a call on a GPU.
    threads: torch's threads on a CPU, None on a GPU.
    configuration: the rows of configuration tables that the call looked up, None if there are none.
    window_s: how long the calls were being timed, with all that surrounds them.
    busy: other work of the machine meanwhile, as texts; empty for an idle machine.
    every_s: seconds of all calls by the first clock in order, with those that are no sample: pilot, throttled
        and repeated ones.
    waited: how many of those calls were counted although the device may have waited for the host.
    core_wait_s: seconds of all these calls in which others had the core; they are left out of the samples.
    """

    clock: str
    samples: Samples
    telemetry: Mapping[str, Any]
    graph_s: float | None = None
    graph_reason: str | None = None
    host_s: float | None = None
    issue_s: float | None = None
    threads: int | None = None
    configuration: Mapping[str, Any] | None = None
    window_s: float | None = None
    every_s: tuple[float, ...] = ()
    busy: tuple[str, ...] = ()
    waited: int = 0
    core_wait_s: float = 0.0

    @property
    def latency_s(self) -> float | None:
        """The median; None if no sample is left."""
        return self.samples.summary.median if self.samples.summary else None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers of a record: median, interval, quartiles, raw samples, further clocks."""
        summary = self.samples.summary
        return {
            "latency_s": self.latency_s,
            "latency_low_s": summary.low if summary else None,
            "latency_high_s": summary.high if summary else None,
            "quartile_low_s": summary.quartile_low if summary else None,
            "quartile_high_s": summary.quartile_high if summary else None,
            "samples": len(self.samples.samples_s),
            "outliers": summary.outliers if summary else None,
            "samples_s": list(self.samples.samples_s),
            "converged": self.samples.converged,
            "unsettled": self.samples.reason,
            "clock": self.clock,
            "graph_latency_s": self.graph_s,
            "graph_reason": self.graph_reason,
            "host_latency_s": self.host_s,
            "issue_s": self.issue_s,
            "threads": self.threads,
            "configuration": self.configuration,
            "waited_samples": self.waited,
            "core_wait_s": self.core_wait_s,
            "window_s": self.window_s,
            "busy": list(self.busy),
            **self.telemetry,
        }


class Observer(Protocol):
    """Gives each timed call its values, and sees its result; both outside the time, on its stream."""

    def before(self, *, timed: bool) -> None:
        """Write fresh values for the next call. timed: whether that is a timed one."""
        ...

    def after(self, result: Any) -> None:
        """Take the call's result."""
        ...


class Around:
    """The surroundings of each timed call: fresh values and a cache state before it, an observer after it.

    A touch rewrites one element with its own value. That changes the tensor's version, so that a backend that
    caches results by version has to compute again.

    flush: brings the cache into its state; None for a hot cache, which an untimed call on other values of
        the observer leaves behind, unless calls take so long that the cache does not matter.
    """

    def __init__(self, flush: Callable[[], Any] | None) -> None:
        self.flush = flush
        self.clear()

    def clear(self) -> None:
        """Forget the call and all that belongs to it."""
        self.touched: Sequence[Tensor] = ()
        self.observer: Observer | None = None
        self.call: Callable[[], Any] | None = None
        self.brief = True

    def before(self) -> None:
        """Prepare the next timed call."""
        if self.observer is not None:
            if self.flush is None and self.call is not None and self.brief:
                self.observer.before(timed=False)
                self.call()
            self.observer.before(timed=True)
        with torch.no_grad():
            for tensor in self.touched:
                tensor[(slice(1),) * tensor.dim()].mul_(1)
        if self.flush is not None:
            self.flush()

    def warm_up(self) -> None:
        """Make an untimed call, on other values of the observer."""
        if self.observer is not None:
            self.observer.before(timed=False)
        if self.call is not None:
            self.call()

    def after(self, result: Any) -> None:
        """Hand a timed call's result to the observer."""
        if self.observer is not None:
            self.observer.after(result)


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The clocks of one device and cache state, calibrated once."""

    device: str
    around: Around
    first: Clock
    graph: GraphClock | None = None
    host: HostClock | None = None
    issue: IssueClock | None = None

    @classmethod
    def of(cls, device: str, cache: str, *, graphs: bool = True) -> Stopwatch:
        """Make the clocks for a device and a cache state, "cold" or "hot".

        graphs: whether calls may be captured; a failed capture can leave the process unusable.
        """
        found = flusher(device, cache)
        around = Around(None if found.state == "hot" else found.flush)
        before, after = around.before, around.after
        if not device.startswith("cuda"):
            return cls(device, around, WallClock(before, after))
        return cls(
            device,
            around,
            EventClock(device, before, after),
            GraphClock(device, before, after) if graphs else None,
            HostClock(device, before, after),
            IssueClock(device, before),
        )

    @property
    def broken(self) -> bool:
        """Whether a failed capture left the allocator of this process unusable."""
        return self.graph is not None and self.graph.broken

    def time(
        self,
        call: Callable[[], Any],
        *,
        touched: Sequence[Tensor],
        min_time_s: float,
        max_time_s: float,
        relative_width: float,
        min_samples: int = FEWEST_SAMPLES,
        peak_bytes: int = 0,
        observer: Observer | None = None,
        hand_over: Callable[..., bool] | None = None,
    ) -> Timing:
        """Time a call that has run before, so that nothing is left to compile.

        touched: tensors that the call reads; one element of each is rewritten before every call.
        min_samples: least number of fresh samples.
        peak_bytes: peak memory of the call.
        observer: gives the calls their values and sees their results.
        hand_over: lets another process take samples between those by the first clock; see `Alternation`.
        """
        self.around.touched, self.around.observer, self.around.call = touched, observer, call
        if observer is not None and self.around.flush is None:
            self.around.brief = self._seconds(call) < BRIEF_S
        try:
            with Telemetry(self.device) as telemetry:
                taken = Taken(self.first, call)
                waited_ns = self.first.wait.waited_ns if isinstance(self.first, WallClock) else 0
                alternation = Alternation(taken, hand_over or _alone, self.around.warm_up)
                samples = sample(
                    alternation,
                    min_time_s=min_time_s,
                    max_time_s=max_time_s,
                    relative_width=relative_width,
                    min_samples=min_samples,
                    now=alternation.now,
                )
                alternation.finish()
            every_s = tuple(taken.every_s)
            if isinstance(self.first, WallClock):
                return Timing(
                    self.first.name,
                    samples,
                    {},
                    threads=torch.get_num_threads(),
                    every_s=every_s,
                    core_wait_s=(self.first.wait.waited_ns - waited_ns) / 1e9,
                )
            state = telemetry.numbers()
            marks = telemetry.marks(samples.taken_at_s)
            state["throttled_samples"] = sum(marks)
            return self._further(
                call,
                Timing(
                    self.first.name,
                    samples.excluding(marks),
                    state,
                    every_s=every_s,
                    busy=tuple(telemetry.busy()),
                    waited=taken.waited,
                ),
                max_time_s,
                peak_bytes,
            )
        finally:
            self.around.clear()
            for clock in (self.first, self.graph, self.host, self.issue):
                if clock is not None:
                    clock.release()

    def _seconds(self, call: Callable[[], Any]) -> float:
        """Time one call roughly, by this process's clock."""
        begin = time.perf_counter()
        call()
        if self.device.startswith("cuda"):
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - begin

    def median_s(
        self,
        call: Callable[[], Any],
        *,
        touched: Sequence[Tensor],
        max_time_s: float,
        observer: Observer | None = None,
    ) -> float:
        """Time a call briefly, by the first clock alone, and return the median."""
        self.around.touched, self.around.observer = touched, observer
        try:
            found = _median(self.first, call, max_time_s)
            assert found is not None
            return found
        finally:
            self.around.clear()
            self.first.release()

    def _further(self, call: Callable[[], Any], timing: Timing, max_time_s: float, peak_bytes: int) -> Timing:
        """Add the times of the host clock, the issue clock and the graph clock, on a GPU."""
        assert self.host is not None and self.issue is not None
        limit_s = FURTHER_CLOCK_SHARE * max_time_s
        if FEWEST_SAMPLES * min(timing.samples.samples_s, default=0.0) > limit_s:
            issue_s = self.issue.time(call)
            return replace(timing, graph_reason=TOO_LONG, host_s=self.host.time(call), issue_s=issue_s)
        host_s = _median(self.host, call, limit_s)
        timing = replace(timing, issue_s=_median(self.issue, call, limit_s))
        if self.graph is None:
            return replace(timing, graph_reason=NO_GRAPHS, host_s=host_s)
        reason = self.graph.capture(call, peak_bytes)
        graph_s = _median(self.graph, call, limit_s) if reason is None else None
        return replace(timing, host_s=host_s, graph_s=graph_s, graph_reason=reason)


class Taken:
    """Takes samples of a call, each again as long as the clock wants to repeat it.

    every_s: seconds of all calls. waited: samples with which the device may have waited for the host.
    """

    def __init__(self, clock: Clock, call: Callable[[], Any]) -> None:
        self.clock, self.call = clock, call
        self.every_s: list[float] = []
        self.waited = 0

    def __call__(self) -> float:
        """Take one sample; return its seconds."""
        for _ in range(MOST_REPEATS):
            self.every_s.append(self.clock.time(self.call))
            if not self.clock.repeat:
                break
        self.waited += self.clock.waited
        return self.every_s[-1]


def _alone(*, finished: bool) -> bool:
    """Go on at once: no other process takes samples."""
    return False


def _median(clock: Clock, call: Callable[[], Any], limit_s: float) -> float | None:
    summary = sample(Taken(clock, call), max_time_s=limit_s, min_samples=FEWEST_SAMPLES).summary
    return summary.median if summary else None
