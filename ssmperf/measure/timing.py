"""All that is timed of one call: on a GPU by three clocks, on a CPU by the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ssmperf.measure.cache import flusher
from ssmperf.measure.clocks import Clock, EventClock, GraphClock, HostClock, WallClock
from ssmperf.measure.sampling import Samples, sample
from ssmperf.measure.telemetry import Telemetry

FURTHER_CLOCK_SHARE = 0.3  # of the time that the first clock may take
FEWEST_SAMPLES = 5
TOO_LONG = "not captured: the call is longer than the time that further clocks have"


@dataclass(frozen=True, slots=True)
class Timing:
    """Samples of a call by a clock, and the medians of the further clocks in seconds.

    samples: those taken under a throttle are counted in `telemetry` and left out.
    graph_reason: why there is no graph time. threads: of the CPU, None on a GPU.
    """

    clock: str
    samples: Samples
    telemetry: Mapping[str, Any]
    graph_s: float | None = None
    graph_reason: str | None = None
    host_s: float | None = None
    threads: int | None = None

    @property
    def latency_s(self) -> float | None:
        """The median; None if no sample is left."""
        return self.samples.summary.median if self.samples.summary else None

    def to_json(self) -> dict[str, Any]:
        """Record numbers: the median with its interval and quartiles, raw samples, further clocks."""
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
            "threads": self.threads,
            **self.telemetry,
        }


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """The clocks of one device and cache state, calibrated once."""

    device: str
    first: Clock
    graph: GraphClock | None = None
    host: HostClock | None = None

    @classmethod
    def of(cls, device: str, cache: str) -> Stopwatch:
        """Clocks for a device; `cache` is "cold" or "hot"."""
        if not device.startswith("cuda"):
            return cls(device, WallClock())
        flush = flusher(device, cache).flush
        return cls(device, EventClock(device, flush), GraphClock(device, flush), HostClock(device, flush))

    @property
    def broken(self) -> bool:
        """Whether a failed capture left the allocator of this process unusable."""
        return self.graph is not None and self.graph.broken

    def time(
        self,
        call: Callable[[], Any],
        *,
        min_time_s: float,
        max_time_s: float,
        relative_width: float,
        peak_bytes: int = 0,
    ) -> Timing:
        """Time a call that has run before (compilation is over), and whose peak memory is known."""
        with Telemetry(self.device) as telemetry:
            samples = sample(
                lambda: self.first.time(call),
                min_time_s=min_time_s,
                max_time_s=max_time_s,
                relative_width=relative_width,
                min_samples=FEWEST_SAMPLES,
            )
        if self.graph is None or self.host is None:
            return Timing(self.first.name, samples, {}, threads=torch.get_num_threads())
        state = telemetry.numbers()
        marks = telemetry.marks(samples.spans_s)
        state["throttled_samples"] = sum(marks)
        samples = samples.excluding(marks)
        limit = FURTHER_CLOCK_SHARE * max_time_s
        if min(samples.samples_s, default=0.0) > limit:
            return Timing(self.first.name, samples, state, None, TOO_LONG, self.host.time(call))
        host = _median(self.host, call, limit)
        reason = self.graph.capture(call, peak_bytes)
        graph = _median(self.graph, call, limit) if reason is None else None
        self.graph.release()
        return Timing(self.first.name, samples, state, graph, reason, host)


def _median(clock: Clock, call: Callable[[], Any], limit_s: float) -> float | None:
    summary = sample(lambda: clock.time(call), max_time_s=limit_s, min_samples=FEWEST_SAMPLES).summary
    return summary.median if summary else None
