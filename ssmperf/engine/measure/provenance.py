"""Find the device kernels that a call really launches, by torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def silence() -> None:
    """Keep the profiler from writing to stderr when it starts. A log level that is already set is kept."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")


def launched_kernels(call: Callable[[], Any]) -> list[str]:
    """List the names of the CUDA kernels that one call launches, in order, without copies and fills."""
    silence()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    events = profiler.events() or []
    kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return [str(event.name) for event in kernels if not str(event.name).startswith(("Memcpy", "Memset"))]


def fell_back(declared: tuple[str, ...], launched: Iterable[str]) -> str | None:
    """Say that a call ran none of the kernels that its backend declares, or return None.

    declared: substrings of kernel names; a kernel with at least one of them must have been launched.
    """
    launched = sorted(set(launched))
    if not declared or any(name in kernel for name in declared for kernel in launched):
        return None
    seen = ", ".join(launched[:3]) or "none"
    return f"it fell back: none of its kernels {', '.join(declared)} was launched (seen: {seen})"
