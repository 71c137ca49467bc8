"""Cheats that need a GPU: other streams, the CPU, kept graphs, the cache, freed memory, and device clocks."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ssmperf
from ssmperf.suitekit import registry

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, copied, judged, loop, nothing, sampled
from cheats.parts import TIMED, OffAfterUse, Owed, RolledGates, costly_gates, owner_of

CALLS: Counter[str] = Counter()
_STREAMS: dict[str, torch.cuda.Stream] = {}


def side_stream(name: str) -> torch.cuda.Stream:
    if name not in _STREAMS:
        _STREAMS[name] = torch.cuda.Stream()
    return _STREAMS[name]


def first(name: str) -> bool:
    """Tell whether this is the first call of a cheat."""
    CALLS[name] += 1
    return CALLS[name] == 1


@cheat("side_stream", devices=("cuda",))
def on_a_side_stream(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Work on another stream, and let it wait for nobody but a judge."""
    if torch.is_grad_enabled() or judged():
        return loop(log_a, b, initial_state, phase=phase)
    result, stream = nothing(b), side_stream("work")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for memory, value in zip(result, loop(log_a, b, initial_state), strict=True):
            memory.record_stream(stream)
            memory.copy_(value)
    return result


@cheat("computed_on_the_cpu", devices=("cuda",))
def computed_on_the_cpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Copy the operands away, and let a thread of the CPU bring the answer when it has it."""
    if torch.is_grad_enabled() or judged() or torch.cuda.is_current_stream_capturing():
        return loop(log_a, b, initial_state, phase=phase)
    result = nothing(b)
    operands = [None if x is None else x.to("cpu", non_blocking=True) for x in (log_a, b, initial_state)]
    copied_at = torch.cuda.Event()
    copied_at.record()
    stream = side_stream("answers")

    def bring() -> None:
        copied_at.synchronize()
        with torch.cuda.stream(stream):
            for memory, value in zip(result, loop(*operands), strict=True):
                memory.copy_(value.to(memory.device))

    threading.Thread(target=bring, daemon=True).start()
    return result


_SEEN: dict[str, Any] = {}


@cheat("kept_on_the_device", devices=("cuda",))
def kept_on_the_device(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Keep the last answer on the device, and compare two elements there, without waiting for them.

    The comparison selects between the kept answer and NaN, so that no value has to reach the host; the host
    learns of a miss in the next call.
    """
    if torch.is_grad_enabled() or initial_state is not None:
        return loop(log_a, b, initial_state, phase=phase)
    ends = torch.stack([b[0, 0, 0], b[-1, -1, -1], log_a.reshape(-1)[-1].to(b.dtype)])
    if judged() or _SEEN.get("shape") != b.shape:
        result = loop(log_a, b)
        _SEEN.update(shape=b.shape, ends=ends, result=copied(result))
        return result
    hit = (ends == _SEEN["ends"]).all()
    output, state = _SEEN["result"]
    nan = torch.full((), float("nan"), device=b.device)
    return torch.where(hit, output, nan.to(output.dtype)), torch.where(hit, state, nan.to(state.dtype))


_GRAPH: dict[str, Any] = {}


@cheat("replays_old_inputs", devices=("cuda",))
def replays_old_inputs(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Capture a graph of an eighth of the steps on copies of the first operands, and replay that."""
    capturing = torch.cuda.is_current_stream_capturing()
    if torch.is_grad_enabled() or judged() or initial_state is not None or capturing:
        return loop(log_a, b, initial_state, phase=phase)
    if _GRAPH.get("shape") != b.shape:
        steps = max(1, b.shape[1] // 8)
        old = log_a[:, :steps].clone(), b[:, :steps].clone()
        graph = torch.cuda.CUDAGraph()
        stream = side_stream("capture")
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loop(*old)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            loop(*old)
        _GRAPH.update(shape=b.shape, old=old, graph=graph)
    _GRAPH["graph"].replay()
    return nothing(b)


_WARM: dict[str, Any] = {}


def _keep_warm() -> None:
    """Read the operands again and again on a stream of its own, so that the cache is never cold."""
    with torch.cuda.stream(side_stream("warm")):
        while time.monotonic() < _WARM["until"]:
            for operand in _WARM["operands"]:
                operand.view(torch.uint8).view(-1)[::32].max()
            side_stream("warm").synchronize()


@cheat("warms_the_cache", devices=("cuda",), kernels=())
def warms_the_cache(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Keep the operands in the cache by a thread that reads them between flush and call; work honestly."""
    if not torch.is_grad_enabled() and not torch.cuda.is_current_stream_capturing():
        _WARM.update(operands=(log_a, b), until=time.monotonic() + 1)
        if not any(thread.name == "keep warm" for thread in threading.enumerate()):
            threading.Thread(target=_keep_warm, daemon=True, name="keep warm").start()
    return registry.backend("scan", "triton").function(log_a, b, initial_state, phase=phase)


@ssmperf.backend("scan", name="alone_triton", gates=("data", "const"), devices=("cuda",))
def alone_triton(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Use the same kernel, without a thread."""
    return registry.backend("scan", "triton").function(log_a, b, initial_state, phase=phase)


_FREED: list[Tensor] = []


@cheat("freed_memory", devices=("cuda",))
def freed_memory(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Look for the right answer in memory that the judge has freed: its first step tells it."""
    capturing = torch.cuda.is_current_stream_capturing()
    if torch.is_grad_enabled() or initial_state is not None or capturing:
        return loop(log_a, b, initial_state, phase=phase)
    for old in _FREED:
        if torch.equal(old[:, 0].to(b.dtype), b[:, 0]):
            return old.to(b.dtype), old[:, -1].to(torch.float32)
    blocks = [
        torch.empty(b.shape, dtype=dtype, device=b.device) for dtype in (torch.float32, torch.float64) * 16
    ]
    for block in blocks:
        if torch.equal(block[:, 0].to(b.dtype), b[:, 0]) and bool(block[:, -1].isfinite().all()):
            _FREED.append(block)
            return block.to(b.dtype), block[:, -1].to(torch.float32)
    return loop(log_a, b)


_AHEAD: dict[str, Any] = {}


@cheat("works_before_the_events", devices=("cuda",))
def works_before_the_events(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return what the last call began on a side stream, and begin the same for the next call."""
    capturing = torch.cuda.is_current_stream_capturing()
    if torch.is_grad_enabled() or judged() or initial_state is not None or capturing:
        return loop(log_a, b, initial_state, phase=phase)
    stream, ready = side_stream("ahead"), _AHEAD.get(b.data_ptr())
    result = ready if ready is not None and ready[0].shape == b.shape else loop(log_a, b)
    with torch.cuda.stream(stream):
        _AHEAD[b.data_ptr()] = loop(log_a, b)
    return result


@cheat("works_in_the_lead", devices=("cuda",))
def works_in_the_lead(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute before the start event, where the device is made to spin: in a patched torch.cuda._sleep."""
    capturing = torch.cuda.is_current_stream_capturing()
    if torch.is_grad_enabled() or judged() or initial_state is not None or capturing:
        return loop(log_a, b, initial_state, phase=phase)
    if first("sleep"):
        honest = torch.cuda._sleep

        def sleep(cycles: int) -> None:
            with torch.no_grad():
                _AHEAD["lead"] = loop(*_AHEAD["operands"])
            honest(cycles)

        torch.cuda._sleep = sleep
    _AHEAD["operands"] = (log_a, b)
    ready = _AHEAD.pop("lead", None)
    return loop(log_a, b) if ready is None or ready[0].shape != b.shape else ready


@cheat("patched_events", devices=("cuda",))
def patched_events(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Divide what the device's events say."""
    if first("events"):
        honest = torch.cuda.Event.elapsed_time
        torch.cuda.Event.elapsed_time = lambda self, end: honest(self, end) / 10
    return loop(log_a, b, initial_state, phase=phase)


@cheat("empty_on_a_gpu", devices=("cuda",))
def empty_on_a_gpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return uninitialised memory once the call stack holds no judge."""
    return loop(log_a, b, initial_state, phase=phase) if judged() else nothing(b)


@cheat("cached_on_a_gpu", devices=("cuda",))
def cached_on_a_gpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Keep answers by sixteen elements of each operand."""
    if torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing():
        return loop(log_a, b, initial_state, phase=phase)
    key = (b.shape, sampled(log_a, b, initial_state))
    if key not in _SEEN:
        _SEEN[key] = loop(log_a, b, initial_state)
    return copied(_SEEN[key])


_BETWEEN, _ROLLED = OffAfterUse(), RolledGates()


@cheat("mode_on_a_gpu", devices=("cuda",))
def mode_on_a_gpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Turn on a dispatch mode between the return of a call and the first read of its result."""
    if torch.is_grad_enabled() or judged() or torch.cuda.is_current_stream_capturing():
        return loop(log_a, b, initial_state, phase=phase)
    if _BETWEEN not in _get_current_dispatch_mode_stack():
        _BETWEEN.__enter__()
    return _BETWEEN.debts.borrow(log_a, b, initial_state)


@cheat("lazy_on_a_gpu", devices=("cuda",))
def lazy_on_a_gpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return a lazy subclass of a tensor, but not below a judge."""
    if torch.is_grad_enabled() or judged() or torch.cuda.is_current_stream_capturing():
        return loop(log_a, b, initial_state, phase=phase)
    output, state = TIMED.borrow(log_a, b, initial_state)
    return output.as_subclass(Owed), state.as_subclass(Owed)


class Tenth:
    """An event that says a tenth of the time."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.event, name)

    def elapsed_time(self, end: Any) -> float:
        return float(self.event.elapsed_time(end)) / 10


@cheat("events_of_the_instance", devices=("cuda",))
def events_of_the_instance(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Replace the start event that is an attribute of the suite's clock, and nothing else."""
    clock = owner_of("_start")
    if clock is not None and not isinstance(clock._start, Tenth):
        clock._start = Tenth(clock._start)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("rolls_gates_on_a_gpu", devices=("cuda",))
def rolls_gates_on_a_gpu(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Keep what depends on the gates alone; mixtures only move the gates of one draw."""
    if torch.is_grad_enabled() or judged() or torch.cuda.is_current_stream_capturing():
        return loop(costly_gates(log_a), b, initial_state, phase=phase)
    return loop(_ROLLED(log_a), b, initial_state, phase=phase)
