"""Memory of one call, above what was allocated before it: at its peak, after it, and kept for backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.measure.profiler import silence


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one call's tensors.

    peak_bytes: most that they held at once, its result included.
    left_bytes: what is still held when the call is over and its result is gone.
    """

    peak_bytes: int
    left_bytes: int


def peak_bytes(call: Callable[[], Any], device: torch.device | str) -> tuple[int | None, str | None]:
    """Most bytes that tensors made by the call held at once, its result included; or None and the reason."""
    memory, reason = trace(call, device)
    return (memory.peak_bytes if memory else None), reason


def trace(call: Callable[[], Any], device: torch.device | str) -> tuple[Memory | None, str | None]:
    """The memory of a call; or None and the reason.

    On a GPU the caching allocator counts (its blocks are rounded to 512 bytes); on a CPU the profiler's
    allocation events are summed in order, which is exact for all that goes through torch's allocator.
    """
    device = torch.device(device)
    return (_trace_cuda(call, device), None) if device.type == "cuda" else _trace_cpu(call)


def saved_bytes(call: Callable[[], Any], inputs: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages that autograd holds for the backward pass of a call's result.

    Storages of the inputs are not counted, results that are saved are. What a `torch.autograd.Function`
    keeps in attributes of its context passes no hook and is not seen.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        holder = _Saved(tensor.detach())
        saved.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        result = call()
    storages = [holder.tensor.untyped_storage() for holder in saved]  # of the graph that is left
    found = {storage.data_ptr(): storage.nbytes() for storage in storages}
    del result
    return sum(nbytes for address, nbytes in found.items() if address not in own)


class _Saved:
    """A tensor in a graph, alive as long as the graph holds it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _trace_cuda(call: Callable[[], Any], device: torch.device) -> Memory:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    peak, after = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    return Memory(peak - before, after - before)


def _trace_cpu(call: Callable[[], Any]) -> tuple[Memory | None, str | None]:
    if torch.autograd._profiler_enabled():
        return None, "another profiler is running"
    silence()
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        call()
    if profiler.kineto_results is None:
        return None, "the profiler gave no results"
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU
    ]
    changes.sort(key=lambda change: change[0])  # stable: events of one nanosecond stay in order
    held = peak = 0
    for _, nbytes in changes:
        held += nbytes
        peak = max(peak, held)
    return Memory(peak, held), None
