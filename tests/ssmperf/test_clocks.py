"""Clocks on simulated time and a simulated GPU; on a real GPU, known spins and a probe that fits into L2."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssmperf.errors import UsageError
from ssmperf.machine import cache
from ssmperf.measure import clocks
from ssmperf.measure.clocks import EventClock, GraphClock, HostClock, WallClock

CUDA = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


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
    clock = WallClock(now_ns=ticker.now_ns)
    assert clock.time(ticker.work(ns)) == pytest.approx(ns * 1e-9, rel=clocks.RESOLUTION)
    assert clock.calls * ns >= 100 / clocks.RESOLUTION * 0.99
    assert clock.calls == 1 or clock.calls * ns < 2 * 100 / clocks.RESOLUTION + ns


def test_wall_clock_calibrates_each_call_anew() -> None:
    ticker = Ticker(resolution_ns=100)
    clock = WallClock(now_ns=ticker.now_ns)
    clock.time(ticker.work(300))
    assert clock.calls > 1
    clock.time(ticker.work(10_000_000))
    assert clock.calls == 1


def test_wall_clock_leaves_out_what_goes_before() -> None:
    ticker = Ticker()
    flush = ticker.work(10**9)
    assert WallClock(flush, now_ns=ticker.now_ns).time(ticker.work(5000)) == pytest.approx(5e-6, rel=0.01)
    assert ticker.calls == 2  # one flush, one call: no call of a batch runs unflushed


def test_tick_of_a_clock_that_stands_still() -> None:
    assert clocks.tick_ns(lambda: 5) == 1


class Simulated:
    """Simulates `torch.cuda`: a host that enqueues work, and a device that works through its queue."""

    LAUNCH_S, CYCLES_PER_S = 5e-6, 1e9

    def __init__(self, event_s: float = 0.5e-6, refuses: Exception | None = None) -> None:
        self.host_s = self.device_s = 0.0
        self.event_s, self.refuses = event_s, refuses
        self.capturing: list[float] | None = None
        self.resets = 0
        self.free_bytes, self.sync_mode = 10**9, "default"
        self.log: list[str] = []

    def now(self) -> float:
        return self.host_s

    def launch(self, seconds: float, name: str = "kernel") -> None:
        self.host_s += self.LAUNCH_S
        if self.capturing is not None:
            if self.refuses:
                raise self.refuses
            self.capturing.append(seconds)
            return
        self.log.append(name)
        self.device_s = max(self.device_s, self.host_s) + seconds

    def _sleep(self, cycles: int) -> None:
        self.launch(cycles / self.CYCLES_PER_S, "spin")

    def synchronize(self, device: Any = None) -> None:
        assert self.capturing is None
        self.host_s = max(self.host_s, self.device_s)

    def empty_cache(self) -> None:
        self.log.append("empty cache")

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.free_bytes, 2 * self.free_bytes

    def set_sync_debug_mode(self, mode: str) -> None:
        self.sync_mode = mode

    def item(self) -> None:
        """A result that the host waits for."""
        if self.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronize()

    def Event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at_s=0.0)

        def record() -> None:
            self.host_s += 1e-6
            self.device_s = max(self.device_s, self.host_s) + self.event_s
            event.at_s = self.device_s

        event.record, event.synchronize = record, self.synchronize
        event.elapsed_time = lambda end: (end.at_s - event.at_s) * 1e3
        return event

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    def current_stream(self) -> Any:
        return self.Stream()

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def CUDAGraph(self) -> Any:
        graph = SimpleNamespace(kernels=[])
        graph.replay = lambda: self.launch(sum(graph.kernels), "graph")

        def reset() -> None:
            self.resets += 1
            graph.kernels = []

        graph.reset = reset
        return graph

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        self.capturing = graph.kernels
        try:
            yield
        finally:
            self.capturing = None

    def call(self, kernels: int, seconds: float) -> Callable[[], None]:
        return lambda: [self.launch(seconds) for _ in range(kernels)] and None


def test_events_hide_launch_latency() -> None:
    """Twenty kernels of 1 µs take 20 µs of the device, though the host needs 100 µs to launch them."""
    gpu = Simulated()
    clock = EventClock("cuda", cuda=gpu, now=gpu.now)
    assert clock.time(gpu.call(20, 1e-6)) == pytest.approx(20e-6, rel=1e-3)
    assert HostClock("cuda", cuda=gpu, now=gpu.now).time(gpu.call(20, 1e-6)) >= 100e-6


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
    assert getattr(clock, "overhead_s", 0.0) <= gpu.event_s * 1.01  # else a flush inside would cancel out
    assert work[-2:] == ["flush", "graph" if kind is GraphClock else "kernel"]


def test_the_events_own_time_is_subtracted() -> None:
    gpu = Simulated(event_s=2e-6)
    clock = EventClock("cuda", cuda=gpu, now=gpu.now)
    assert clock.overhead_s == pytest.approx(2e-6)
    assert clock.time(gpu.call(1, 5e-6)) == pytest.approx(5e-6, rel=0.02)


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
    assert clock.time(call) == pytest.approx(1e-6, rel=1e-3)


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
    clock.release()
    assert gpu.resets == 1


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


@pytest.fixture(scope="module")
def seconds_per_cycle() -> float:
    """Take the slope between spins of 25 and 50 ms, so that the fixed cost of launches and events cancels."""

    def spin_s(cycles: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(10_000_000)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    spin_s(200_000_000)
    few, many = 45_000_000, 90_000_000
    return (min(spin_s(many) for _ in range(5)) - min(spin_s(few) for _ in range(5))) / (many - few)


@pytest.fixture
def side_stream() -> Iterator[None]:
    """Make a stream that can be captured the current one."""
    with torch.cuda.stream(torch.cuda.Stream()):
        yield


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("side_stream")
@pytest.mark.parametrize("length_s", [5e-6, 20e-6, 100e-6, 1e-3, 10e-3, 50e-3])
@pytest.mark.parametrize("kind", [EventClock, GraphClock])
def test_spins_of_known_length_are_recovered(kind: type, length_s: float, seconds_per_cycle: float) -> None:
    """An empty kernel takes a little over a microsecond on the device, in addition to the spin."""
    clock = kind("cuda", cache.flusher("cuda", "cold").flush)

    def seen_s(cycles: int) -> float:
        def call() -> None:
            torch.cuda._sleep(cycles)

        if isinstance(clock, GraphClock):
            assert clock.capture(call) is None
        return sorted(clock.time(call) for _ in range(31))[15]

    empty, seen = seen_s(1), seen_s(round(length_s / seconds_per_cycle))
    print(f"{clock.name}: {length_s * 1e6:.0f} µs seen as {seen * 1e6:.2f} µs, empty {empty * 1e6:.2f} µs")
    assert empty < 4e-6
    assert abs(seen - empty - length_s) <= 0.02 * length_s + 1e-6


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("side_stream")
@pytest.mark.parametrize("kind", [EventClock, GraphClock])
def test_a_probe_that_fits_l2_is_faster_hot_than_cold(kind: type) -> None:
    probe = torch.rand(cache.l2_bytes("cuda") // 16, device="cuda")  # a quarter of L2

    def call() -> torch.Tensor:
        return probe.sum()

    medians = {}
    for state in ("cold", "hot"):
        clock = kind("cuda", cache.flusher("cuda", state).flush)
        if kind is GraphClock:
            assert clock.capture(call) is None
        medians[state] = sorted(clock.time(call) for _ in range(31))[15]
    assert medians["cold"] > 1.1 * medians["hot"]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("side_stream")
def test_a_backward_pass_can_be_captured() -> None:
    x = torch.rand(1000, device="cuda", requires_grad=True)
    y = (x * x).sum()

    def call() -> torch.Tensor:
        return torch.autograd.grad(y, x, retain_graph=True)[0]

    clock = GraphClock("cuda")
    assert clock.capture(call) is None
    assert clock.time(call) > 0
    assert not clock.broken


@pytest.mark.gpu
@needs_gpu
@pytest.mark.usefixtures("side_stream")
def test_a_refused_capture_leaves_the_device_usable() -> None:
    x = torch.rand(1000, device="cuda")
    clock = GraphClock("cuda")
    assert "cannot be captured" in clock.capture(lambda: x.sum().item())
    assert torch.equal(x + 1, 1 + x)

    def call() -> torch.Tensor:
        return x.sum()

    assert clock.capture(call) is None
    assert clock.time(call) > 0
