"""The memory that one call adds: at its peak, after its end, and kept for the backward pass."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.measure.provenance import silence

REQUESTED = "requested_bytes.all"  # of the caching allocator's statistics


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the tensors that one call made.

    peak_bytes: the most that they held at once, the call's result included.
    left_bytes: bytes that are still held after the call, when its result is gone.
    """

    peak_bytes: int
    left_bytes: int


def peak_bytes(call: Callable[[], Any], device: torch.device | str) -> tuple[int | None, str | None]:
    """Measure the peak memory of a call, its result included. Returns it, or None and the reason."""
    memory, reason = trace(call, device)
    return (memory.peak_bytes if memory else None), reason


def trace(call: Callable[[], Any], device: torch.device | str) -> tuple[Memory | None, str | None]:
    """Measure the memory of a call. Returns it, or None and the reason.

    On a GPU the numbers are the bytes asked of the caching allocator. The blocks that it gives may be larger,
    by how much depends on what the process has freed before. On a CPU
    the profiler's allocation events are summed in order, which is exact for memory from torch's allocator.
    """
    device = torch.device(device)
    return (_trace_cuda(call, device), None) if device.type == "cuda" else _trace_cpu(call)


def saved_bytes(call: Callable[[], Any], inputs: Iterable[Tensor]) -> int:
    """Count the bytes of the distinct storages that autograd keeps for the backward pass of a call's result.

    Storages of the inputs are not counted; saved results are. Tensors that a `torch.autograd.Function` keeps
    in attributes of its context are not seen, since they pass no hook.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        holder = _Saved(tensor.detach())
        saved.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        result = call()
    storages = [holder.tensor.untyped_storage() for holder in saved]  # those that the graph still holds
    found = {storage.data_ptr(): storage.nbytes() for storage in storages}
    del result
    return sum(nbytes for address, nbytes in found.items() if address not in own)


class _Saved:
    """Holds a tensor that a graph has saved; it lives as long as the graph."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _trace_cuda(call: Callable[[], Any], device: torch.device) -> Memory:
    with _without_collections():  # one would free memory of earlier cycles, at some time during the call
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        gc.collect(0)  # the cycles of the call itself: a full collection takes a tenth of a second
        after = torch.cuda.memory_stats(device)
    held = before.get(f"{REQUESTED}.current", 0)  # before a process's first allocation there are no numbers
    return Memory(after[f"{REQUESTED}.peak"] - held, after[f"{REQUESTED}.current"] - held)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python from collecting garbage by itself: a call's objects stay in the first generation."""
    was_enabled = gc.isenabled()
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _trace_cpu(call: Callable[[], Any]) -> tuple[Memory | None, str | None]:
    if torch.autograd._profiler_enabled():
        return None, "another profiler is running"
    silence()
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        call()
        gc.collect(0)  # the cycles of the call itself
    if profiler.kineto_results is None:
        return None, "the profiler returned no results"
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    ]
    changes.sort(key=lambda change: change[0])  # stable: events of the same nanosecond stay in order
    held = peak = 0
    for _, nbytes in changes:
        held += nbytes
        peak = max(peak, held)
    return Memory(peak, held), None
