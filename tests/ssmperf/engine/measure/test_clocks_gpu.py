"""Clocks on a real GPU: known spins, a copy, a probe that fits L2, and captures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
import torch

from ssmperf.engine.machine import cache
from ssmperf.engine.measure.clocks import IssueClock
from ssmperf.engine.measure.device_clocks import EventClock, GraphClock
from ssmperf.engine.measure.stopwatch import Taken

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("side_stream"),
]


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


@pytest.mark.parametrize("length_s", [5e-6, 20e-6, 100e-6, 1e-3, 10e-3, 50e-3])
@pytest.mark.parametrize("kind", [EventClock, GraphClock])
def test_spins_of_known_length_are_recovered(kind: type, length_s: float, seconds_per_cycle: float) -> None:
    """A spin is read as its own length, without what an empty kernel or the launch of a graph takes."""
    clock = kind("cuda", cache.flusher("cuda", "cold").flush)

    cycles = round(length_s / seconds_per_cycle)

    def call() -> None:
        torch.cuda._sleep(cycles)

    if isinstance(clock, GraphClock):
        assert clock.capture(call) is None
    seen = sorted(clock.time(call) for _ in range(31))[15]
    print(f"{clock.name}: {length_s * 1e6:.0f} µs seen as {seen * 1e6:.2f} µs, "
          f"after {clock.overhead_s * 1e6:.2f} µs")  # fmt: skip
    assert abs(seen - length_s) <= 0.02 * length_s + 1e-6


def test_a_host_that_is_slower_than_before_does_not_count(seconds_per_cycle: float) -> None:
    """Between two spins of 50 µs, the host sometimes waits for 0.3 ms, as for a thread that must wake."""
    clock = EventClock("cuda", cache.flusher("cuda", "cold").flush)
    cycles, calls = round(50e-6 / seconds_per_cycle), itertools.count()

    def call() -> None:
        torch.cuda._sleep(cycles)
        end = time.perf_counter() + (3e-4 if (number := next(calls)) > 8 and number % 2 else 0.0)
        while time.perf_counter() < end:
            pass
        torch.cuda._sleep(cycles)

    taken = Taken(clock, call)
    seen = [taken() for _ in range(31)]
    assert taken.waited == 0
    assert max(seen) <= 1.1 * 100e-6 + 5e-6


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


@pytest.mark.parametrize("state", ["cold", "hot"])
def test_both_device_clocks_agree_on_a_copy(state: str) -> None:
    """The launch of a graph no longer makes a kernel that fills the device look slower."""
    source = torch.rand(2**24, device="cuda")
    target = torch.empty_like(source)

    def call() -> torch.Tensor:
        return target.copy_(source)

    flush = cache.flusher("cuda", state).flush
    event, graph = EventClock("cuda", flush), GraphClock("cuda", flush)
    assert graph.capture(call) is None
    seen = {clock.name: sorted(clock.time(call) for _ in range(51))[25] for clock in (event, graph)}
    print(seen)
    assert abs(seen["event"] - seen["graph"]) <= 0.02 * seen["event"] + 1e-6


def test_issuing_does_not_wait_for_the_device(seconds_per_cycle: float) -> None:
    length_s = 20e-3

    def call() -> None:
        torch.cuda._sleep(round(length_s / seconds_per_cycle))

    seen = sorted(IssueClock("cuda").time(call) for _ in range(5))[2]
    assert 0 < seen < 0.1 * length_s


def test_a_backward_pass_can_be_captured() -> None:
    x = torch.rand(1000, device="cuda", requires_grad=True)
    y = (x * x).sum()

    def call() -> torch.Tensor:
        return torch.autograd.grad(y, x, retain_graph=True)[0]

    clock = GraphClock("cuda")
    assert clock.capture(call) is None
    assert clock.time(call) > 0
    assert not clock.broken


def test_a_refused_capture_leaves_the_device_usable() -> None:
    x = torch.rand(1000, device="cuda")
    clock = GraphClock("cuda")
    assert "cannot be captured" in clock.capture(lambda: x.sum().item())
    assert torch.equal(x + 1, 1 + x)

    def call() -> torch.Tensor:
        return x.sum()

    assert clock.capture(call) is None
    assert clock.time(call) > 0
