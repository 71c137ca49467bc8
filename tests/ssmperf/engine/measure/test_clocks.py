"""Clocks on simulated time and a simulated GPU; test_clocks_gpu.py has a real one."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.without_gpu.simulated_gpu import Simulated

from ssmperf.engine.machine import cache
from ssmperf.engine.measure import clocks
from ssmperf.engine.measure.clocks import CoreWait, HostClock, IssueClock, WallClock
from ssmperf.engine.measure.device_clocks import MOST_LEAD_S, EventClock, GraphClock
from ssmperf.engine.measure.stopwatch import Around, Stopwatch
from ssmperf.errors import UsageError

NO_COUNTS = CoreWait(Path(os.devnull))  # a kernel that does not say how long threads wait


class Ticker:
    """A wall clock of a given resolution that passes only while something runs."""

    def __init__(self, resolution_ns: int = 1) -> None:
        self.exact_ns, self.resolution_ns, self.calls = 0, resolution_ns, 0

    def now_ns(self) -> int:
        self.exact_ns += 7
        return self.exact_ns // self.resolution_ns * self.resolution_ns

    def work(self, ns: int) -> Callable[[], None]:
        def call() -> None:
            self.calls += 1
            self.exact_ns += ns

        return call


@pytest.mark.parametrize("ns", [300, 5_000, 80_000, 3_000_000])
def test_wall_clock_resolves_half_a_percent(ns: int) -> None:
    ticker = Ticker(resolution_ns=100)
    clock = WallClock(now_ns=ticker.now_ns, wait=NO_COUNTS)
    assert clock.time(ticker.work(ns)) == pytest.approx(ns * 1e-9, rel=clocks.RESOLUTION)
    assert clock.calls * ns >= 100 / clocks.RESOLUTION * 0.99
    assert clock.calls == 1 or clock.calls * ns < 2 * 100 / clocks.RESOLUTION + ns


def test_wall_clock_calibrates_each_call_anew() -> None:
    ticker = Ticker(resolution_ns=100)
    clock = WallClock(now_ns=ticker.now_ns, wait=NO_COUNTS)
    clock.time(ticker.work(300))
    assert clock.calls > 1
    clock.time(ticker.work(10_000_000))
    assert clock.calls == 1


class Core:
    """Linux's counts for a thread that shares its core."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "schedstat"
        self.used_ns = self.others_ns = self.now_ns = 0
        self.write(0)

    def write(self, waited_ns: int) -> None:
        self.file.write_text(f"{self.used_ns} {waited_ns} 7\n")

    def wait(self) -> CoreWait:
        return CoreWait(
            self.file,
            thread_ns=lambda: self.used_ns,
            process_ns=lambda: self.used_ns + self.others_ns,
            now_ns=lambda: self.now_ns,
        )

    def left(self, elapsed_ns: int, *, used: int, waited: int, others: int = 0, beside: int = 0) -> int:
        """Let a call pass, and give what is left of its time.

        beside: time between the counts and the call.
        """
        wait = self.wait()
        wait.begin()
        self.used_ns += used
        self.others_ns += others
        self.write(waited)
        start = self.now_ns + beside
        self.now_ns = start + elapsed_ns
        own = wait.own_ns(start, self.now_ns)
        assert wait.waited_ns == elapsed_ns - own
        return own


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Core:
    monkeypatch.setattr(clocks, "_number_of_threads", lambda: 1)
    return Core(tmp_path)


def test_time_in_which_others_had_the_core_is_left_out(core: Core) -> None:
    assert core.left(10_000_000, used=6_000_000, waited=4_000_000) == 6_000_000
    assert core.left(10_000_000, used=1_000_000, waited=4_000_000) == 10_000_000  # it waited before, not now
    assert core.left(10_000_000, used=0, waited=5_000_000) == 9_000_000  # the rest of the time it slept


def test_a_wait_beside_the_call_is_not_one_of_the_call(core: Core) -> None:
    assert core.left(10_000_000, used=0, waited=4_000_000, beside=4_000_000) == 10_000_000
    assert core.left(10_000_000, used=0, waited=8_000_000, beside=1_000_000) == 7_000_000


def test_no_call_gets_shorter_than_what_its_thread_worked(core: Core) -> None:
    assert core.left(1_000_000, used=990_000, waited=4_000_000) == 990_000


def test_a_call_that_works_in_other_threads_keeps_its_wall_time(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert core.left(10_000_000, used=5_000_000, waited=5_000_000, others=5_000_000) == 10_000_000
    monkeypatch.setattr(clocks, "_number_of_threads", lambda: 2)
    assert core.left(10_000_000, used=6_000_000, waited=9_000_000) == 10_000_000


@pytest.mark.parametrize("text", [None, "", "1", "1 x 2"])
def test_where_linux_does_not_count_waits_wall_time_stays(core: Core, text: str | None) -> None:
    core.file.unlink()
    if text is not None:
        core.file.write_text(text)
    wait = core.wait()
    wait.begin()
    core.used_ns += 5
    assert wait.own_ns(3, 12) == 9 and wait.waited_ns == 0


def test_wall_clock_leaves_out_what_goes_before() -> None:
    ticker = Ticker()
    flush = ticker.work(10**9)
    assert WallClock(flush, now_ns=ticker.now_ns, wait=NO_COUNTS).time(ticker.work(5000)) == pytest.approx(
        5e-6, rel=0.01
    )
    assert ticker.calls == 2  # one flush, one call: no call of a batch runs unflushed


def test_tick_of_a_clock_that_stands_still() -> None:
    assert clocks.tick_ns(lambda: 5) == 1


def test_events_hide_launch_latency() -> None:
    """Twenty kernels of 1 µs take 20 µs of the device, though the host needs 100 µs to launch them."""
    gpu = Simulated()
    clock = EventClock("cuda", cuda=gpu, now=gpu.now)
    assert clock.time(gpu.call(20, 1e-6)) == pytest.approx(20e-6, rel=1e-3)
    assert HostClock("cuda", cuda=gpu, now=gpu.now).time(gpu.call(20, 1e-6)) >= 100e-6


def stopwatch(gpu: Simulated) -> Stopwatch:
    make: Any = {"cuda": gpu, "now": gpu.now}
    around = Around(lambda: None)
    clocks = (
        kind("cuda", around.before, around.after, **make) for kind in (EventClock, GraphClock, HostClock)
    )
    return Stopwatch("cuda", around, *clocks, IssueClock("cuda", around.before, **make))


def test_a_host_that_is_slower_than_before_does_not_count() -> None:
    """Once calibrated, a call may take a hundred times as long to enqueue; the device then idles within."""
    gpu = Simulated()
    launch, calls, waits = gpu.call(1, 10e-6), itertools.count(), random.Random(0)

    def call() -> None:
        launch()
        if next(calls) > 3:
            gpu.host_s += waits.choice((0.0, 300e-6, 500e-6))  # until a thread is awake
        launch()

    timing = stopwatch(gpu).time(call, touched=(), min_time_s=0.0, max_time_s=0.05, relative_width=0.01)
    assert timing.samples.samples_s == pytest.approx([20e-6] * len(timing.samples.samples_s), rel=1e-3)
    assert timing.waited == 0 and timing.to_json()["waited_samples"] == 0
    assert max(timing.every_s) > 100e-6  # of a call that was repeated


def test_a_call_that_always_waits_is_timed_and_marked() -> None:
    gpu = Simulated()
    launch = gpu.call(1, 10e-6)

    def call() -> None:
        launch()
        gpu.item()
        launch()

    watch = stopwatch(gpu)
    timing = watch.time(call, touched=(), min_time_s=0.0, max_time_s=0.05, relative_width=0.01)
    taken = len(timing.samples.samples_s) + len(timing.samples.pilot_s)
    assert timing.waited == taken
    assert len(timing.every_s) < taken + 10  # the longest spin is soon reached, and then no call is repeated
    assert watch.first._lead_s == MOST_LEAD_S  # type: ignore[attr-defined]


def test_events_follow_each_call_they_time() -> None:
    gpu = Simulated()
    clock = EventClock("cuda", cuda=gpu, now=gpu.now)
    for kernels in (1, 100, 3):
        assert clock.time(gpu.call(kernels, 2e-6)) == pytest.approx(kernels * 2e-6, rel=1e-3)


@pytest.mark.parametrize("kind", [EventClock, GraphClock, HostClock])
def test_the_flush_is_outside_the_time(kind: type) -> None:
    gpu = Simulated()
    clock = kind("cuda", lambda: gpu.launch(50e-6, "flush"), cuda=gpu, now=gpu.now)
    call = gpu.call(1, 400e-6)
    if kind is GraphClock:
        assert clock.capture(call) is None
    gpu.log.clear()
    assert clock.time(call) == pytest.approx(400e-6, rel=0.02)
    work = [entry for entry in gpu.log if entry != "spin"]
    ways_s = gpu.event_s + gpu.kernel_s + gpu.graph_s
    assert getattr(clock, "overhead_s", 0.0) <= ways_s * 1.01  # else a flush inside would cancel out
    assert work[-2:] == ["flush", "graph" if kind is GraphClock else "kernel"]


@pytest.mark.parametrize("kernels", [1, 20])
@pytest.mark.parametrize("seconds", [0.2e-6, 5e-6, 1e-3])
@pytest.mark.parametrize("kind", [EventClock, GraphClock])
def test_the_ways_to_the_first_kernel_are_subtracted(kind: type, seconds: float, kernels: int) -> None:
    """Both clocks of device time give the kernels' own time, whatever an event or a launch takes."""
    for ways in ({}, {"kernel_s": 3e-6}, {"graph_s": 9e-6}, {"event_s": 2e-6}):
        gpu = Simulated(**ways)
        clock = kind("cuda", cuda=gpu, now=gpu.now)
        call = gpu.call(kernels, seconds)
        if kind is GraphClock:
            assert clock.capture(call) is None
        assert clock.time(call) == pytest.approx(kernels * seconds, rel=1e-3, abs=2e-9)


@pytest.mark.parametrize("kind", [EventClock, GraphClock])
def test_every_timed_call_has_a_flush_of_its_own(kind: type) -> None:
    """Nothing that a call has brought into the cache is left for the next one."""
    gpu = Simulated()
    clock = kind("cuda", lambda: gpu.launch(50e-6, "flush"), cuda=gpu, now=gpu.now)
    call = gpu.call(1, 5e-6)
    timed = "kernel"
    if kind is GraphClock:
        assert clock.capture(call) is None
        timed = "graph"
    clock.time(call)  # calibrates
    gpu.log.clear()
    for _ in range(5):
        clock.time(call)
    assert [entry for entry in gpu.log if entry != "spin"] == ["flush", timed] * 5


def test_a_graph_of_an_empty_kernel_is_replayed_once_per_clock() -> None:
    gpu = Simulated()
    clock = GraphClock("cuda", cuda=gpu, now=gpu.now)
    for _ in range(3):
        gpu.log.clear()
        assert clock.capture(gpu.call(1, 1e-6)) is None
    assert gpu.log.count("graph") == 1  # that of the call itself
    assert clock.overhead_s == pytest.approx(gpu.event_s + gpu.kernel_s + gpu.graph_s, rel=1e-2)


@pytest.mark.parametrize("kernels", [1, 20, 800])
@pytest.mark.parametrize("seconds", [1e-6, 1e-3])
def test_the_time_to_issue_is_the_hosts_alone(kernels: int, seconds: float) -> None:
    """However long the device takes, the host needs one launch after another and meets no full queue."""
    gpu = Simulated()
    clock = IssueClock("cuda", lambda: gpu.launch(50e-6, "flush"), cuda=gpu, now=gpu.now)
    gpu.launch(1.0)  # what is still running is waited for
    call = gpu.call(kernels, seconds)
    assert clock.time(call) == pytest.approx(kernels * gpu.LAUNCH_S)
    assert clock.time(gpu.call(1, seconds)) == pytest.approx(gpu.LAUNCH_S)
    gpu.log.clear()
    clock.time(gpu.call(1, seconds))
    assert gpu.log.count("kernel") > 5  # so that a short call is not lost in the clock's resolution


def test_a_stopwatch_of_a_gpu_records_the_time_to_issue() -> None:
    gpu = Simulated()
    watch = stopwatch(gpu)
    for seconds, max_time_s in ((1e-6, 0.05), (0.1, 0.05)):  # the second is too long for further clocks
        call = gpu.call(30, seconds)
        timing = watch.time(call, touched=(), min_time_s=0.0, max_time_s=max_time_s, relative_width=0.01)
        assert timing.issue_s == pytest.approx(30 * gpu.LAUNCH_S)
        assert timing.to_json()["issue_s"] == timing.issue_s


def test_a_cpu_has_no_time_to_issue() -> None:
    watch = Stopwatch.of("cpu", "hot")
    timing = watch.time(lambda: None, touched=(), min_time_s=0.0, max_time_s=0.01, relative_width=0.5)
    assert timing.to_json()["issue_s"] is None


def test_graph_replays_without_the_host() -> None:
    gpu = Simulated()
    clock = GraphClock("cuda", cuda=gpu, now=gpu.now)
    call = gpu.call(5000, 1e-6)  # more than the host can enqueue ahead
    assert clock.capture(call) is None
    assert clock.time(call) == pytest.approx(5e-3, rel=1e-3)


def test_a_refused_capture_gives_its_reason_and_leaves_no_graph() -> None:
    gpu = Simulated(refuses=RuntimeError("operation not permitted when stream is capturing\nlong trace"))
    clock = GraphClock("cuda", cuda=gpu, now=gpu.now)
    call = gpu.call(1, 1e-6)
    reason = clock.capture(call)
    assert reason == "cannot be captured: RuntimeError: operation not permitted when stream is capturing"
    assert gpu.resets == 1 and gpu.capturing is None and clock.broken
    with pytest.raises(ValueError, match="not captured"):
        clock.time(call)
    gpu.refuses = None
    assert clock.capture(call) is None
    assert clock.time(call) == pytest.approx(1e-6, rel=2e-3)


@pytest.mark.parametrize(("synchronises", "needs_bytes"), [(True, 0), (False, 10**9)])
def test_a_hopeless_capture_is_not_tried(synchronises: bool, needs_bytes: int) -> None:
    gpu = Simulated(refuses=RuntimeError("tried"))
    clock = GraphClock("cuda", cuda=gpu, now=gpu.now)
    launch = gpu.call(1, 1e-6)

    def call() -> None:
        launch()
        if synchronises:
            gpu.item()

    reason = clock.capture(call, needs_bytes)
    assert reason is not None and "tried" not in reason
    assert ("synchronizing" in reason) == synchronises
    assert (gpu.sync_mode, gpu.resets, clock.broken) == ("default", 0, False)


def test_a_graph_times_only_its_own_call() -> None:
    gpu = Simulated()
    clock = GraphClock("cuda", cuda=gpu, now=gpu.now)
    assert clock.capture(gpu.call(1, 1e-6)) is None
    with pytest.raises(ValueError, match="not captured"):
        clock.time(gpu.call(1, 1e-6))
    resets = gpu.resets
    clock.release()
    assert gpu.resets == resets + 1


def test_cpu_caches_are_read_from_the_system(tmp_path) -> None:
    for index, (level, size) in enumerate([(1, "32K"), (2, "1024K"), (3, "32M")]):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    assert cache.cpu_cache_bytes(tmp_path) == 32 * 2**20


def test_a_cpu_is_measured_hot() -> None:
    assert cache.flusher("cpu", "cold").state == "hot"
    with pytest.raises(UsageError, match="lukewarm"):
        cache.flusher("cpu", "lukewarm")


class Seen:  # an observer that notes what it is asked to do
    def __init__(self) -> None:
        self.events: list[object] = []

    def before(self, *, timed: bool) -> None:
        self.events.append("fresh values" if timed else "other values")

    def after(self, result: object) -> None:
        self.events.append(("answer", result))


@pytest.mark.parametrize(
    ("flush", "expected"),
    [
        (lambda events: events.append("flush"), ["fresh values", "flush", "call", ("answer", 5)]),
        (None, ["other values", "call", "fresh values", "call", ("answer", 5)]),
    ],
)
def test_each_timed_call_gets_fresh_values_and_answers(flush: Any, expected: list[object]) -> None:
    seen = Seen()
    around = Around(None if flush is None else lambda: flush(seen.events))
    clock = WallClock(around.before, around.after)

    def call() -> int:
        seen.events.append("call")
        return 5

    around.observer, around.call = seen, call
    clock.time(call)
    assert seen.events == expected


def test_the_calibration_of_a_graph_is_not_observed() -> None:
    gpu, seen = Simulated(), Seen()
    around = Around(lambda: None)
    around.observer = seen
    clock = GraphClock("cuda", around.before, around.after, cuda=gpu, now=gpu.now)
    call = gpu.call(3, 1e-6)
    assert clock.capture(call) is None and not any(isinstance(event, tuple) for event in seen.events)
    clock.time(call)
    assert isinstance(seen.events[-1], tuple)
