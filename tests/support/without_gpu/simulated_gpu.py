"""A GPU on simulated time, with as much of `torch.cuda` as clocks need."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class Simulated:
    """Simulates `torch.cuda`: a host that enqueues work, and a device that works through its queue.

    event_s: time of an event on the device. kernel_s: way from an event to a kernel and back.
    graph_s: way from the launch of a graph to its first kernel. queue: launches after which the host waits.
    """

    LAUNCH_S, CYCLES_PER_S = 5e-6, 1e9

    def __init__(
        self,
        event_s: float = 0.5e-6,
        refuses: Exception | None = None,
        *,
        kernel_s: float = 1.7e-6,
        graph_s: float = 2.5e-6,
        queue: int = 1000,
    ) -> None:
        self.host_s = self.device_s = 0.0
        self.event_s, self.refuses = event_s, refuses
        self.kernel_s, self.graph_s = kernel_s, graph_s
        self.after_event = False
        self.ends_s: collections.deque[float] = collections.deque(maxlen=queue)
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
        if len(self.ends_s) == self.ends_s.maxlen:
            self.host_s = max(self.host_s, self.ends_s[0])  # the queue is full
        way_s = self.kernel_s * self.after_event + self.graph_s * (name == "graph")
        self.device_s = max(self.device_s, self.host_s) + way_s + seconds
        self.ends_s.append(self.device_s)
        self.after_event = False

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
            self.after_event = True

        event.record, event.synchronize = record, self.synchronize
        event.query = lambda: event.at_s <= self.host_s
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
