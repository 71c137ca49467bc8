"""Peak memory of one call, above what was allocated before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch


def peak_bytes(call: Callable[[], Any], device: torch.device | str) -> tuple[int | None, str | None]:
    """Most bytes that tensors made by the call held at once, its result included; or None and the reason.

    On a GPU the caching allocator counts (its blocks are rounded to 512 bytes); on a CPU the profiler's
    allocation events are summed in order.
    """
    device = torch.device(device)
    return (_cuda_peak(call, device), None) if device.type == "cuda" else _cpu_peak(call)


def _cuda_peak(call: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_peak(call: Callable[[], Any]) -> tuple[int | None, str | None]:
    if torch.autograd._profiler_enabled():
        return None, "another profiler is running"
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces itself on stderr otherwise
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
    return peak, None
