"""Record a GPU's work for one segment of a loop as a CUDA graph, and replay it for all others.

A step of a literal loop is a dozen small kernels, and the host needs longer to launch one than the device
needs to run it. A replay launches all kernels of a segment at once: the same kernels, in the same order.

A failed capture never returns its memory. So a segment is recorded only if that is known to work: its
definition comes with this package, an ordinary call has shown that it does not wait for the device, and the
next call has arguments of the same form. A state that grows has another form in each segment.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Results = dict[str, Tensor]
Work = Callable[..., Results]  # operands by name, and further tensors by position -> results by name

PACKAGE = __name__.partition(".")[0]
HEADROOM = 1.5  # free memory that a recording asks for, relative to its segment's expected need
_unrecordable: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()  # definitions that are not tried again


class CannotRecord(Exception):
    """This work cannot be recorded, and was not begun or has to be done again."""


class Recorder(Protocol):
    """Records work that reads and writes fixed memory."""

    def check(self, work: Callable[[], Results]) -> Results:
        """Do the work once, as usual. Raises CannotRecord if it could not be recorded."""

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        """Record the work without doing it. Raises CannotRecord if that fails.

        Returns:
            The memory that the results will be in, and a function that does the work.
        """


def recordable(definition: Callable[..., Any], device: torch.device) -> bool:
    """Tell whether a definition's segments may be recorded: those of this package on a GPU."""
    if device.type != "cuda" or str(getattr(definition, "__module__", "")).partition(".")[0] != PACKAGE:
        return False
    return definition not in _unrecordable


@dataclass(frozen=True, slots=True)
class GraphRecorder:
    """Records CUDA graphs.

    definition: the function that the work calls; if a capture fails, it is not tried again.
    needs_bytes: memory that the work needs.
    """

    definition: Callable[..., Any]
    device: torch.device
    needs_bytes: int

    def check(self, work: Callable[[], Results]) -> Results:
        """Do the work. Raises CannotRecord if it waits for the device."""
        try:
            with no_waiting():
                return work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # if its cause is another one, doing it again raises it again
            raise CannotRecord(str(error)) from error

    def record(self, work: Callable[[], Results]) -> tuple[Results, Callable[[], None]]:
        """Capture the work in a graph of its own memory.

        It is captured on the current stream, or on one of torch's if that is the default one, which cannot be
        captured.
        """
        if not self._fits():
            raise CannotRecord("it does not fit beside the allocated memory")
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self.device)
        stream = None if current == torch.cuda.default_stream(self.device) else current
        try:
            with (
                torch.cuda.device(self.device),
                torch.cuda.stream(current),  # restores the stream, which a failed capture does not
                torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
            ):
                results = work()
        except Exception as error:  # any exception that torch raises under capture is the reason
            _unrecordable.add(self.definition)
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            name = getattr(self.definition, "__qualname__", self.definition)
            print(f"the loop of {name} runs without CUDA graphs: {reason}", file=sys.stderr, flush=True)
            graph.reset()
            torch.cuda.synchronize(self.device)
            raise CannotRecord(reason) from error
        return results, graph.replay

    def _fits(self) -> bool:
        free, _ = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + unused >= HEADROOM * self.needs_bytes


@contextmanager
def no_waiting() -> Iterator[None]:
    """Have torch raise a RuntimeError where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Repeated:
    """Does the same work on other values: once as usual, then by replaying a recording.

    Arguments are copied into fixed memory and results out of it, so they stay the caller's. Arguments of
    another form than the last ones had (shapes, dtypes, anything that is no tensor) are worked on as usual.
    """

    def __init__(self, work: Work, recorder: Recorder) -> None:
        self.work = work
        self._recorder: Recorder | None = recorder
        self._form: dict[str | int, Any] = {}  # of the arguments of the last call
        self._buffers: dict[str | int, Any] = {}
        self._results: Results = {}
        self._replay: Callable[[], None] | None = None

    def __call__(self, operands: Mapping[str, Any], *others: Tensor) -> Results:
        given: dict[str | int, Any] = dict(enumerate(others))
        given.update(operands.items())
        same = _form(given) == self._form
        try:
            if same and self._replay is None and self._recorder is not None:
                self._record(given, self._recorder)
            if same and self._replay is not None:
                return self._replayed(given, self._replay)
            if self._replay is None and self._recorder is not None:
                self._form = _form(given)
                return self._recorder.check(lambda: self.work(operands, *others))
        except CannotRecord:
            self._recorder, self._buffers = None, {}
        return self.work(operands, *others)

    def _record(self, given: Mapping[str | int, Any], recorder: Recorder) -> None:
        buffers = self._buffers = {
            key: torch.empty_like(value) if isinstance(value, Tensor) else value
            for key, value in given.items()
        }
        operands = {key: value for key, value in buffers.items() if isinstance(key, str)}
        others = [value for key, value in buffers.items() if isinstance(key, int)]
        self._results, self._replay = recorder.record(lambda: self.work(operands, *others))

    def _replayed(self, given: Mapping[str | int, Any], replay: Callable[[], None]) -> Results:
        with torch.no_grad():
            for key, value in given.items():
                if isinstance(value, Tensor):
                    self._buffers[key].copy_(value)
            replay()
            return {name: result.clone() for name, result in self._results.items()}


def _form(given: Mapping[str | int, Any]) -> dict[str | int, Any]:
    return {
        key: (value.shape, value.dtype, value.device) if isinstance(value, Tensor) else value
        for key, value in given.items()
    }
