"""Clocks of device time: by events around a call, or around the replay of a CUDA graph of it.

Both subtract what they read for an empty kernel: the time that the device needs to get from an event to a
kernel and back, or into a graph. So a call of one kernel is charged for that kernel's work, a spin of 5 µs as
5 µs, and a call of several kernels also for the way from each to the next.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ssmperf.engine.measure.clocks import After, Call, ignore, nothing
from ssmperf.engine.operands.calls.capture import record, waits_for_device

MOST_LEAD_S = 5e-3  # with a longer lead the launch queue is full, and the host cannot run ahead anyway
_LEAD_MARGIN_S = 20e-6
_CALIBRATION_CYCLES = 2_000_000
_CALIBRATION_SAMPLES = 31
_WARM_UPS = 2
_GRAPH_HEADROOM = 3


class EventClock:
    """Device time between two events around a call, without launch latency.

    The device first spins for as long as the host needs to enqueue the call, so that its kernels follow one
    another without waiting for the host. How long that is varies: a backward pass, say, runs in a thread that
    the system must wake. If the spin has ended before the host has enqueued the whole call, the kernels may
    have waited for it: `waited` is set, and the next spin is longer. `repeat` is set until spins have their
    longest time. A call with more launches than the queue holds (about a thousand), or one that waits for the
    device itself, remains bound by the host.

    overhead_s: time of an empty kernel by this clock; it is subtracted.
    """

    name = "event"

    def __init__(
        self,
        device: torch.device | str,
        before: Call = nothing,
        after: After = ignore,
        *,
        cuda: Any = torch.cuda,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.cuda, self.now = torch.device(device), cuda, now
        self.before, self.after = before, after
        with cuda.device(self.device):
            self._start, self._end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            self._cycles_per_s = self._spin_rate()
            self._lead_s = _LEAD_MARGIN_S
            self.waited = self.repeat = False
            self._calibrated: Call | None = None
            self.overhead_s = self._fixed_cost_s(self._empty)

    def time(self, call: Call) -> float:
        with self.cuda.device(self.device):
            if call is not self._calibrated:
                self._calibrate(call)
            return max(self._elapsed_s(call) - self.overhead_s, 0.0)

    def release(self) -> None:
        self._calibrated = None

    def _elapsed_s(self, call: Call) -> float:
        self.before()
        begun = self.now()
        self.cuda._sleep(round(self._lead_s * self._cycles_per_s))
        self._start.record()
        result = call()
        self._end.record()
        self.waited = self._start.query()
        self.repeat = self.waited and self._lead_s < MOST_LEAD_S
        if self.repeat:
            self._lead_s = _lead_for(max(self._lead_s, self.now() - begun))
        self.after(result)
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3

    def _empty(self) -> None:
        """Launch a kernel that does nothing: a spin of one cycle."""
        self.cuda._sleep(1)

    def _fixed_cost_s(self, call: Call) -> float:
        """Measure the time of a call that runs an empty kernel, from event to event."""
        after, self.after = self.after, ignore  # which waits for results of the call that is being timed
        try:
            self._calibrate(call)
            return statistics.median(self._elapsed_s(call) for _ in range(_CALIBRATION_SAMPLES))
        finally:
            self.after, self._calibrated = after, None

    def _calibrate(self, call: Call) -> None:
        """Make the device spin for twice the time that the host needs to enqueue the call."""
        enqueue_s = self._enqueue_s(call)
        if enqueue_s < MOST_LEAD_S:
            enqueue_s = min(enqueue_s, *(self._enqueue_s(call) for _ in range(_WARM_UPS)))
        self._lead_s = _lead_for(enqueue_s)
        self._calibrated = call

    def _enqueue_s(self, call: Call) -> float:
        self.cuda.synchronize(self.device)
        start = self.now()
        call()
        enqueued = self.now() - start
        self.cuda.synchronize(self.device)
        return enqueued

    def _spin_rate(self) -> float:
        """Measure a spin's cycles per second; the first spin also raises the device's clocks."""
        for _ in range(2):
            self._start.record()
            self.cuda._sleep(_CALIBRATION_CYCLES)
            self._end.record()
            self._end.synchronize()
        return _CALIBRATION_CYCLES / (float(self._start.elapsed_time(self._end)) / 1e3)


def _lead_for(enqueue_s: float) -> float:
    """Choose how long the device spins, in seconds, while the host enqueues a call."""
    return min(2 * enqueue_s + _LEAD_MARGIN_S, MOST_LEAD_S)


class GraphClock(EventClock):
    """Device time of one replay of a CUDA graph of the call, where no launch waits for the host.

    Every replay has a flush of its own before it. A graph of several calls in a row would run all but the
    first on the cache that the one before it has filled. A single replay contains the way from the launch of
    the graph to its first kernel; a graph of an empty kernel contains it too, and its time is subtracted.
    """

    name = "graph"

    def __init__(
        self,
        device: torch.device | str,
        before: Call = nothing,
        after: After = ignore,
        *,
        cuda: Any = torch.cuda,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(device, before, after, cuda=cuda, now=now)
        self.broken = False
        self._knows_overhead = False  # of a replay, not of a launch
        self._graph: Any = None
        self._captured: Call | None = None
        self._replay: Call = nothing

    def capture(self, call: Call, needs_bytes: int = 0) -> str | None:
        """Capture a call that has run before. Returns the reason if that fails, and None otherwise.

        The call is captured on the current stream, which must not be the default one, because a backward pass
        runs on the stream of its forward pass. A call that waits for the device, or needs more memory than is
        free, is not captured: a failed capture never returns its memory to the allocator. If a capture fails
        nevertheless, `broken` is set.
        """
        self.release()
        reason = self._unfit(call, needs_bytes)
        if reason:
            return reason
        graph = self.cuda.CUDAGraph()
        try:
            with self.cuda.device(self.device):
                result = self._record(graph, call)
                if not self._knows_overhead:
                    self._measure_overhead()
        except Exception as error:  # any exception that a backend raises under capture is the reason
            self.broken = True
            graph.reset()
            self.cuda.synchronize(self.device)
            return f"cannot be captured: {type(error).__name__}: {str(error).partition(chr(10))[0]}"

        def replay() -> Any:
            graph.replay()
            return result

        self._graph, self._captured, self._replay = graph, call, replay
        return None

    def replayed(self, call: Call, needs_bytes: int = 0) -> Call | None:
        """Capture a call and give what replays it, until `release`; None if it cannot be captured."""
        return self._replay if self.capture(call, needs_bytes) is None else None

    def _record(self, graph: Any, call: Call) -> Any:
        """Capture a call into a graph, replay it once, which uploads it; return the call's result."""
        result = record(graph, call, self.cuda)
        graph.replay()
        self.cuda.synchronize(self.device)
        return result

    def _measure_overhead(self) -> None:
        """Measure the time of an empty kernel's replay, once for this device and cache state."""
        graph = self.cuda.CUDAGraph()
        try:
            self._record(graph, self._empty)
            self.overhead_s = self._fixed_cost_s(graph.replay)
        finally:
            graph.reset()
        self._knows_overhead = True

    def _unfit(self, call: Call, needs_bytes: int) -> str | None:
        """Say why a capture would fail, without trying it, or return None."""
        self.cuda.empty_cache()
        free, _ = self.cuda.mem_get_info(self.device)
        if _GRAPH_HEADROOM * needs_bytes > free:
            return f"not captured: its {needs_bytes / 2**30:.1f} GiB do not fit beside the allocated memory"
        return waits_for_device(call, self.cuda)

    def time(self, call: Call) -> float:
        """Measure the seconds of one replay.

        Raises:
            ValueError: the call is not the captured one.
        """
        if self._captured is None or call is not self._captured:
            raise ValueError("this call was not captured")
        return super().time(self._replay)

    def release(self) -> None:
        """Drop the graph and its memory."""
        if self._graph is not None:
            self._graph.reset()
        self._graph, self._captured, self._calibrated, self._replay = None, None, None, nothing
