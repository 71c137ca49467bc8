"""Measure the ceilings of a device.

Datasheets are not used: the actual chip may be missing from them, or capped below their numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from ssmperf.engine.machine.cache import cache_bytes
from ssmperf.engine.registry.cost import Ceilings

GPU_BUFFER_BYTES = 2**30
CPU_BUFFER_BYTES = (2**26, 2**28)  # least and most; within these, four times the last-level cache
CACHED_BUFFER_BYTES = tuple(2**power for power in range(18, 25))  # those of them that fit twice
CACHED_RUNS = 20  # of each size: the fastest counts
GPU_DTYPES = ("float64", "float32", "bfloat16", "float16")
CPU_DTYPES = ("float64", "float32", "bfloat16")


def measure_ceilings(device: torch.device | str) -> Ceilings:
    """Measure copy and read bandwidth and matmul rates of a device on fresh random values, in under 2 s."""
    device = torch.device(device)
    cache = cache_bytes(device)
    copies, reads = _bandwidths(device, cache)
    budget_s = 0.25 if device.type == "cuda" else 0.08
    rates = {
        dtype: _matmul_rates(device, getattr(torch, dtype), budget_s)
        for dtype in (GPU_DTYPES if device.type == "cuda" else CPU_DTYPES)
    }
    fastest = max(max(seen) for seen in rates.values())
    if device.type == "cpu":
        fastest = max(fastest, _cores_flops_per_s())
    return Ceilings(
        copy_bytes_per_s=statistics.median(copies),
        matmul_flops_per_s={dtype: statistics.median(seen) for dtype, seen in rates.items()},
        peak_bytes_per_s=max(*copies, *reads),
        peak_flops_per_s=fastest,
        cache_bytes=cache,
        cached_bytes_per_s=_cached_bytes_per_s(cache) if device.type == "cpu" else 0.0,  # a GPU's is flushed
    )


def _bandwidths(device: torch.device, cache: int) -> tuple[list[float], list[float]]:
    """Measure the bytes per second of seven copies and seven reads of a buffer much larger than the cache."""
    least, most = CPU_BUFFER_BYTES
    nbytes = GPU_BUFFER_BYTES if device.type == "cuda" else min(max(least, 4 * cache), most)
    source = torch.rand(2**20, device=device).repeat(nbytes // 2**22)
    target = torch.empty_like(source)
    copies = _times(device, lambda: target.copy_(source), 7)
    reads = _times(device, source.sum, 7)
    return [2 * nbytes / seconds for seconds in copies], [nbytes / seconds for seconds in reads]


def _cached_bytes_per_s(cache: int) -> float:
    """Measure the bytes per second of the CPU's fastest copy or read of buffers that fit the cache.

    A copy counts both of its buffers, and both fit. Small ones may fit a smaller and faster cache.
    """
    rates, device = [0.0], torch.device("cpu")
    for nbytes in CACHED_BUFFER_BYTES:
        if 2 * nbytes <= cache:
            source = torch.rand(nbytes // 4)
            target = torch.empty_like(source)
            copied = partial(target.copy_, source)
            rates.append(2 * nbytes / min(_times(device, copied, CACHED_RUNS)))
            rates.append(nbytes / min(_times(device, source.sum, CACHED_RUNS)))
    return max(rates)


def _matmul_rates(device: torch.device, dtype: torch.dtype, budget_s: float) -> list[float]:
    """Measure the FLOPs per second of five square matmuls, of the largest size that fits the budget."""
    size = 2048 if device.type == "cuda" else 128
    largest = 8192 if device.type == "cuda" else 2048
    while True:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = min(_times(device, lambda a=left, b=right: a @ b, 2))  # type: ignore[misc]
        if size >= largest or 8 * 5 * seconds > budget_s:
            break
        size *= 2
    times = _times(device, lambda: left @ right, 5)
    return [2 * size**3 / each for each in times]


def _cores_flops_per_s() -> float:
    """Measure the FLOPs per second of one thread, times the number of threads.

    Threads that wait for each other would measure other processes too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = 256
        left, right = torch.randn(size, size), torch.randn(size, size)
        return threads * 2 * size**3 / min(_times(torch.device("cpu"), lambda: left @ right, 20))
    finally:
        torch.set_num_threads(threads)


def _times(device: torch.device, call: Callable[[], object], count: int) -> list[float]:
    """Time each of `count` runs, after one that is not counted."""
    times = []
    for _ in range(count + 1):
        start = time.perf_counter()
        if device.type == "cuda":
            times.append(_event_s(device, call))
        else:
            call()
            times.append(time.perf_counter() - start)
    return times[1:]


def _event_s(device: torch.device, call: Callable[[], object]) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
