"""Clocks of the host: wall time of a call, of one on a GPU from idle to idle, and of issuing one to a GPU.

Each clock runs `before` (fresh values, a cache flush) ahead of every timed call and hands what the call
returned to `after`, both outside the time. The clocks of device time are in `device_clocks.py`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

Call = Callable[[], Any]
After = Callable[[Any], None]

RESOLUTION = 0.005  # a tick of the timer is at most this share of a timed batch
_MOST_CALLS = 2**20
_QUEUED_S = 1e-3  # host time that fills no launch queue: about a thousand launches of at least 2 µs
_MOST_QUEUED = 20  # calls


class Clock(Protocol):
    """Times one call.

    repeat: whether the last call should be timed again: its time may contain some of the host's, which the
        clock can now keep out. waited: whether its time may contain some of the host's at all.
    """

    name: str
    repeat: bool
    waited: bool

    def time(self, call: Call) -> float:
        """Measure the seconds that one call takes."""
        ...

    def release(self) -> None:
        """Drop the last call, and with it the tensors that it holds."""
        ...


def nothing() -> None:
    """Do nothing: the `before` of a call that needs none."""


def ignore(result: Any) -> None:
    """Drop what a call returned."""


class WallClock:
    """Wall time on the host. A sample covers as many calls in a row as the timer's resolution demands.

    With a `before`, which must precede every call, each call is timed on its own.
    """

    name = "wall"
    repeat = waited = False

    def __init__(
        self,
        before: Call | None = None,
        after: After = ignore,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.before, self.after, self.now_ns = before, after, now_ns
        self.calls = 1
        self._calibrated: Call | None = None

    def time(self, call: Call) -> float:
        if self.before is None and call is not self._calibrated:
            self._calibrate(call)
        return self._elapsed_ns(call) / self.calls / 1e9

    def release(self) -> None:
        self._calibrated = None

    def _elapsed_ns(self, call: Call) -> int:
        if self.before is not None:
            self.before()
        calls = range(self.calls)
        result = None
        start = self.now_ns()
        for _ in calls:
            result = call()
        elapsed_ns = self.now_ns() - start
        self.after(result)
        return elapsed_ns

    def _calibrate(self, call: Call) -> None:
        needed_ns = tick_ns(self.now_ns) / RESOLUTION
        self.calls = 1
        while self._shortest_ns(call, needed_ns) < needed_ns and self.calls < _MOST_CALLS:
            self.calls *= 2
        self._calibrated = call

    def _shortest_ns(self, call: Call, needed_ns: float) -> int:
        """Time three batches and return the shortest; only one if it is ten times as long as needed."""
        first = self._elapsed_ns(call)
        if first > 10 * needed_ns:
            return first
        return min(first, self._elapsed_ns(call), self._elapsed_ns(call))


class HostClock:
    """Wall time of a call on a GPU, from an idle device to an idle device, as a lone caller sees it."""

    name = "host"
    repeat = waited = False

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

    def release(self) -> None:
        """Do nothing: this clock keeps no call."""

    def time(self, call: Call) -> float:
        self.before()
        self.cuda.synchronize(self.device)
        start = self.now()
        result = call()
        self.cuda.synchronize(self.device)
        elapsed_s = self.now() - start
        self.after(result)
        return elapsed_s


class IssueClock:
    """Wall time that the host needs to issue a call on a GPU, while nothing waits for the device.

    A sample covers several calls in a row, as many as surely fit into the launch queue, which is empty before
    them. A call with more launches than the queue holds (about a thousand) waits for the device itself.
    """

    name = "issue"
    repeat = waited = False

    def __init__(
        self,
        device: torch.device | str,
        before: Call = nothing,
        *,
        cuda: Any = torch.cuda,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.before, self.cuda, self.now = torch.device(device), before, cuda, now
        self.calls = 1
        self._calibrated: Call | None = None

    def time(self, call: Call) -> float:
        if call is not self._calibrated:
            self.calls = 1
            self.calls = max(1, min(_MOST_QUEUED, int(_QUEUED_S / max(self._issue_s(call), 1e-9))))
            self._calibrated = call
        return self._issue_s(call)

    def release(self) -> None:
        self._calibrated = None

    def _issue_s(self, call: Call) -> float:
        self.before()
        self.cuda.synchronize(self.device)
        calls = range(self.calls)
        start = self.now()
        for _ in calls:
            call()
        issued = self.now() - start
        self.cuda.synchronize(self.device)
        return issued / self.calls


def tick_ns(now_ns: Callable[[], int]) -> int:
    """Measure the smallest step between two readings of a clock; 1 if it never advances."""
    readings = [now_ns() for _ in range(200)]
    steps = [after - before for before, after in itertools.pairwise(readings) if after > before]
    return min(steps, default=1)
