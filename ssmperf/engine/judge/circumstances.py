"""Circumstances: the inputs of a judged call, and the stream or CUDA graph in which it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from ssmperf.engine.cases.calls.call import GRAPH, STREAM
from ssmperf.engine.operands.calls.capture import record, waits_for_device
from ssmperf.engine.operands.calls.memory import write
from ssmperf.engine.operands.dtypes import differentiable
from ssmperf.engine.operands.values import Values
from ssmperf.errors import Unsupported

LATE_CYCLES = 5_000_000  # for which the operands of a call on another stream are not there yet: milliseconds
Result = TypeVar("Result")


class Inputs:
    """What a call reads: the operands and the incoming gradients, by name, and copies of what they hold."""

    def __init__(self, values: Values) -> None:
        self._tensors = {**values.tensors, "the incoming gradient": values.grad_output}
        if values.grad_state is not None:
            self._tensors["the incoming gradient of the final state"] = values.grad_state
        self._own = {name: value.detach().clone() for name, value in self._tensors.items()}
        self._held: Mapping[str, Tensor] = self._own

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._tensors.values())

    def changed(self) -> str | None:
        """Say which inputs are not as they were written, or return None."""
        changed = [
            name for name, value in self._tensors.items() if not torch.equal(value.detach(), self._held[name])
        ]
        return f"it changed its input {', '.join(changed)}" if changed else None

    def halve(self) -> None:
        """Write half of each number: other values, and legal ones."""
        self._write({name: value * 0.5 for name, value in self._own.items() if differentiable(value)})

    def restore(self) -> None:
        """Write the numbers of the values again."""
        self._write(self._own)

    def arrive_late(self) -> None:
        """Write NaN, and some milliseconds later, as the current stream counts, the numbers of the values."""
        self._write({n: torch.full_like(v, torch.nan) for n, v in self._own.items() if differentiable(v)})
        torch.cuda.synchronize()
        torch.cuda._sleep(LATE_CYCLES)
        self.restore()

    def _write(self, numbers: Mapping[str, Tensor]) -> None:
        self._held = {**self._own, **numbers}
        with torch.no_grad():
            for name, value in numbers.items():
                write(value, self._tensors[name])


@contextmanager
def entered(values: Values, inputs: Inputs) -> Iterator[None]:
    """Enter the stream in which the circumstances of a call have it run."""
    if STREAM not in values.circumstances and GRAPH not in values.circumstances:
        yield
        return
    current, own = torch.cuda.current_stream(values.device), torch.cuda.Stream(values.device)
    own.wait_stream(current)
    try:
        with torch.cuda.stream(own):
            if STREAM in values.circumstances:
                inputs.arrive_late()
            yield
    finally:
        current.wait_stream(own)


def replayed(call: Callable[[], Result], inputs: Inputs) -> Result:
    """Capture a call on the inputs' present numbers and replay it on the values' own; return its result.

    The next allocation may overwrite the result. The call has run before, on the current stream.

    Raises:
        Unsupported: the call waits for the device.
    """
    problem = waits_for_device(call, torch.cuda)
    if problem:
        raise Unsupported(problem)
    graph = torch.cuda.CUDAGraph()
    result = record(graph, call, torch.cuda)
    inputs.restore()
    graph.replay()
    return result
