"""Clocks of the host: wall time of a call, of one on a GPU from idle to idle, and of issuing one to a GPU.

Each clock runs `before` (fresh values, a cache flush) ahead of every timed call and hands what the call
returned to `after`, both outside the time. The clocks of device time are in `device_clocks.py`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

Call = Callable[[], Any]
After = Callable[[Any], None]

RESOLUTION = 0.005  # a tick of the timer is at most this share of a timed batch
_MOST_CALLS = 2**20
_MOST_OTHERS = 0.02  # of a call's time: CPU time of the process's other threads, for which it may have waited
_QUEUED_S = 1e-3  # host time that fills no launch queue: about a thousand launches of at least 2 µs
_MOST_QUEUED = 20  # calls
_pread, _number_of_threads = os.pread, torch.get_num_threads  # as they are before any backend runs


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
    """Drop a call's result."""


class CoreWait:
    """Takes out of wall times how long the thread that made this object has waited for a core.

    On a busy machine the wall time of a call is its own and the slices that the scheduler gave to others.
    Linux counts these for each thread. Calls that work in several threads keep their wall time: one may have
    waited for another.

    waited_ns: the total that was left out. file: Linux's counts for the thread, where the second is the time
        that it has waited. thread_ns, process_ns: CPU time of the thread, and of its process. now_ns: the
        clock of the calls.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        thread_ns: Callable[[], int] = time.thread_time_ns,
        process_ns: Callable[[], int] = time.process_time_ns,
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.waited_ns = 0
        self._thread_ns, self._process_ns, self._now_ns = thread_ns, process_ns, now_ns
        self._thread = threading.get_ident()
        try:
            self._file: int | None = os.open(file or Path("/proc/thread-self/schedstat"), os.O_RDONLY)
        except OSError:
            self._file = None  # this kernel does not count it
        else:
            weakref.finalize(self, os.close, self._file)

    def begin(self) -> None:
        """Take the counts before a call."""
        self._began_ns, self._before = self._now_ns(), self._counts()

    def own_ns(self, start_ns: int, end_ns: int) -> int:
        """Compute the time of a call, between two times after `begin`, without its waits for a core.

        It is never less than the CPU time that the thread has used. The thread may have waited between the
        counts and the call: as much time as lies there is taken for such a wait, and not for one of the call.
        """
        elapsed_ns = end_ns - start_ns
        after = None if self._before is None else self._counts()
        if self._before is None or after is None:
            return elapsed_ns
        beside_ns = self._now_ns() - self._began_ns - elapsed_ns
        waited, used, by_process = (new - old for new, old in zip(after, self._before, strict=True))
        if by_process - used > _MOST_OTHERS * elapsed_ns:
            return elapsed_ns
        own = max(elapsed_ns - max(waited - beside_ns, 0), min(used, elapsed_ns))
        self.waited_ns += elapsed_ns - own
        return own

    def _counts(self) -> tuple[int, int, int] | None:
        if self._file is None or _number_of_threads() > 1 or threading.get_ident() != self._thread:
            return None
        try:
            return int(_pread(self._file, 64, 0).split()[1]), self._thread_ns(), self._process_ns()
        except (OSError, IndexError, ValueError):
            return None


class WallClock:
    """Wall time on the host. A sample covers as many calls in a row as the timer's resolution demands.

    With a `before`, which must precede every call, each call is timed on its own. Time in which the scheduler
    gave the core to others is left out, as far as `wait` can tell.
    """

    name = "wall"
    repeat = waited = False

    def __init__(
        self,
        before: Call | None = None,
        after: After = ignore,
        *,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        wait: CoreWait | None = None,
    ) -> None:
        self.before, self.after, self.now_ns = before, after, now_ns
        self.wait = wait or CoreWait(now_ns=now_ns)
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
        self.wait.begin()
        start = self.now_ns()
        for _ in calls:
            result = call()
        elapsed_ns = self.wait.own_ns(start, self.now_ns())
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
