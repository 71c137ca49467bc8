"""The fixture `ssmperf_benchmark`: the `benchmark` of pytest-benchmark on samples that ssmperf's clocks took.

A timer that is read before and after a call cannot time work on a GPU: it sees the host issue the call, or,
with a wait for the device, also the launch and the wait. So calls are timed by a `Stopwatch` first.
`benchmark.pedantic` then runs one round per sample, with a timer that advances by that sample. Marker, timer
and `pedantic` are pytest-benchmark's documented interface; its tables, JSON files and comparisons see nothing
unusual.

This module is a plug-in of its own, which is registered where pytest-benchmark is loaded.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ssmperf.engine.measure.stopwatch import Stopwatch, Timing

FIXTURE, MARKER = "ssmperf_benchmark", "ssmperf_clock"
INFO = "ssmperf"  # key of extra_info and machine_info
MOST_ROUNDS = 4000  # that can be asked for
WIDTH = (
    0.01  # sampling stops at an interval of the median within ± this share, unless an option says otherwise
)
FACTS = ("device", "hardware", "driver", "versions", "torch", "cpu_limit", "variables")  # no load, no commit
_REPLAY = pytest.StashKey["Replay"]()
_DEVICE = pytest.StashKey[str]()


class Replay:
    """A timer that advances by a sample when it is told to, and otherwise stands still."""

    __name__ = "ssmperf"  # how pytest-benchmark names it

    def __init__(self) -> None:
        self._next_s = 0.0

    def advance(self, seconds: float) -> None:
        """Let the next reading be so many seconds after the one before."""
        self._next_s = seconds

    def __call__(self) -> float:
        """Read 0, or the sample, so that the difference to a reading before is the sample exactly."""
        read_s, self._next_s = self._next_s, 0.0
        return read_s


class TimedBenchmark:
    """Times a function as `benchmark(function, *args, **kwargs)` does; `benchmark` is the fixture behind it.

    device: torch's name of the device, or "auto". cache: "cold", "hot", or None for cold on a GPU.
    options: sampling options of pytest-benchmark and of its marker.
    """

    def __init__(
        self,
        benchmark: Any,
        replay: Replay,
        *,
        device: str,
        cache: str | None,
        options: Mapping[str, Any],
        on_device: Callable[[str], None],
    ) -> None:
        self.benchmark, self._replay = benchmark, replay
        self._device, self._cache, self._options, self._on_device = device, cache, options, on_device

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Time a function and return its result.

        Raises:
            UsageError: nothing shows on which device it works, or its device time is 0.
        """
        if self.benchmark.disabled:
            return self.benchmark.pedantic(function, args=args, kwargs=kwargs)

        def call() -> Any:
            return function(*args, **kwargs)

        try:
            result = call()  # compiled, if it is to be
            device = self._device_of(args, kwargs, result)
            timing = self._timed(call, device)
        except Exception as error:
            self.benchmark.pedantic(_raising(error))  # so that pytest-benchmark knows of it
            raise
        self._on_device(device)
        samples = iter(timing.samples.samples_s)

        def replayed() -> Any:
            sample_s = next(samples, None)
            if sample_s is None:  # pytest-benchmark profiles the call
                return call()
            self._replay.advance(sample_s)
            return result

        return self.benchmark.pedantic(replayed, rounds=len(timing.samples.samples_s))

    def _device_of(self, *looked_at: Any) -> str:
        """Find the device on which the function works: as the marker says, or where its tensors are.

        Raises:
            UsageError: there is a GPU, and no tensor among arguments and results.
        """
        from ssmperf.engine.machine.devices import resolve
        from ssmperf.errors import UsageError

        if self._device != "auto":
            return resolve(self._device, None)[1][0]
        import torch

        devices = {str(tensor.device) for tensor in _tensors(looked_at)}
        on_gpu = sorted(device for device in devices if device.startswith("cuda"))
        if len(on_gpu) > 1:
            raise UsageError(
                f"the function works on several devices ({', '.join(on_gpu)}): name one, {_ADVICE}"
            )
        if on_gpu:
            return on_gpu[0]
        if not devices and torch.cuda.is_available():
            raise UsageError(
                f"no argument or result is a tensor, so nothing shows the device: name it, {_ADVICE}"
            )
        return "cpu"

    def _timed(self, call: Callable[[], Any], device: str) -> Timing:
        from ssmperf.errors import UsageError

        cache = self._cache or ("cold" if device.startswith("cuda") else "hot")
        seconds, rounds, width = (self._options[name] for name in ("max_time", "min_rounds", "precision"))
        if not 1 <= rounds <= MOST_ROUNDS:
            raise UsageError(f"min_rounds must lie between 1 and {MOST_ROUNDS}, got {rounds}")
        with _without_collector(disable=self._options["disable_gc"]):
            timing = _stopwatch(device, cache).time(
                call,
                touched=(),
                min_time_s=0.0,
                max_time_s=float(seconds),
                relative_width=float(width or WIDTH),
                min_samples=rounds,
            )
        if not timing.samples.samples_s:
            raise UsageError("all samples were taken while the GPU was throttled")
        if not timing.latency_s:
            raise UsageError(f"calls take no time on {device}: they work elsewhere, or not at all; {_ADVICE}")
        numbers = timing.to_json()
        shown = {name: numbers[name] for name in _SHOWN if numbers.get(name) is not None}
        self.benchmark.extra_info[INFO] = {"device": device, "cache": cache, **shown}
        return timing


_ADVICE = 'as in @pytest.mark.ssmperf_clock(device="cuda")'
_SHOWN = (
    "clock",
    "latency_low_s",
    "latency_high_s",
    "converged",
    "unsettled",
    "host_latency_s",
    "issue_s",
    "threads",
    "throttled_samples",
    "waited_samples",
    "busy",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test that uses the fixture the timer, before pytest-benchmark makes its own fixture."""
    if FIXTURE not in getattr(item, "fixturenames", ()):
        return
    own = item.get_closest_marker(MARKER)
    if own is not None and (own.args or set(own.kwargs) - {"device", "cache"}):
        raise pytest.UsageError(f"{item.nodeid}: the marker {MARKER} takes device and cache by name")
    cache = own.kwargs.get("cache") if own is not None else None
    if cache not in (None, "cold", "hot"):
        raise pytest.UsageError(f"{item.nodeid}: the cache must be cold or hot, got {cache!r}")
    marker = item.get_closest_marker("benchmark")
    options = dict(marker.kwargs) if marker else {}
    if not isinstance(options.get("timer"), Replay | None):
        raise pytest.UsageError(f"{item.nodeid}: {FIXTURE} has a timer of its own, and its marker another")
    item.stash[_REPLAY] = Replay()
    item.add_marker(pytest.mark.benchmark(**{**options, "timer": item.stash[_REPLAY]}), append=False)


@pytest.fixture
def ssmperf_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> TimedBenchmark:
    """Time a function as `benchmark` of pytest-benchmark does, by ssmperf's clocks: device time on a GPU."""
    marker, own = (request.node.get_closest_marker(name) for name in ("benchmark", MARKER))
    given = {} if own is None else own.kwargs
    names = ("max_time", "min_rounds", "precision", "disable_gc")
    config = request.config
    options = {name: marker.kwargs.get(name, config.getoption(f"benchmark_{name}", None)) for name in names}

    def on_device(device: str) -> None:
        config.stash[_DEVICE] = device

    return TimedBenchmark(
        benchmark,
        request.node.stash[_REPLAY],
        device=str(given.get("device", "auto")),
        cache=given.get("cache"),
        options=options,
        on_device=on_device,
    )


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the GPU, driver and versions to the machine's description, if this session has used the fixture."""
    device = config.stash.get(_DEVICE, None)
    if device is not None:
        from ssmperf.engine.machine.environment import capture

        environment = capture(device)
        machine_info[INFO] = {name: environment[name] for name in FACTS}


def _stopwatch(device: str, cache: str) -> Stopwatch:
    """Make the clocks. A CPU's, with nothing before a call, times many short calls as one sample."""
    from ssmperf.engine.measure.clocks import WallClock
    from ssmperf.engine.measure.stopwatch import Around, Stopwatch
    from ssmperf.errors import UsageError

    if device.startswith("cuda"):
        return Stopwatch.of(device, cache, graphs=False)
    if cache == "cold":
        raise UsageError("a CPU is always measured with a hot cache, got cache='cold'")
    return Stopwatch(device, Around(None), WallClock())


def _tensors(value: Any) -> Iterator[Any]:
    """Find the tensors in nested arguments and results, and the parameters of modules."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)


@contextlib.contextmanager
def _without_collector(*, disable: bool) -> Iterator[None]:
    """Keep Python's garbage collector from running in the block, if that is asked for."""
    running = gc.isenabled()
    if disable:
        gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _raising(error: Exception) -> Callable[[], Any]:
    def raise_again() -> Any:
        raise error

    return raise_again
