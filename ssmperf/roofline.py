"""Measured ceilings of a device, and what they make of a recurrence's cost model.

No datasheet is consulted: the chip in hand may be missing from it, or capped below it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.cost import Cost, Spec
from ssmperf.measure.cache import cache_bytes

FLOOR_MARGIN = 0.9  # ceilings are measured, so a correct call may come in a little under them
GPU_BUFFER_BYTES = 2**30
CPU_BUFFER_BYTES = (2**26, 2**28)  # at least, at most; in between four times the last-level cache
GPU_DTYPES = ("float64", "float32", "bfloat16", "float16")
CPU_DTYPES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device was seen to reach.

    copy_bytes_per_s: median rate of copying a large buffer, bytes read and written both counted.
    matmul_flops_per_s: median rate of a square matmul by dtype.
    peak_bytes_per_s, peak_flops_per_s: the fastest single run of all (copies and reads; any dtype), for the
        floor that no call can beat.
    cache_bytes: last-level cache, 0 if unknown.
    """

    copy_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]
    peak_bytes_per_s: float
    peak_flops_per_s: float
    cache_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ceilings:
        return cls(**data)


def measure_ceilings(device: torch.device | str) -> Ceilings:
    """Copy and read bandwidth and matmul rates of a device, on fresh random values, in under two seconds."""
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
    )


def spec(tensor: Tensor) -> Spec:
    """Shape and width of a tensor as it lies in memory: an axis that was only expanded has size 1."""
    shape = tuple(
        1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return Spec(shape, tensor.element_size(), tensor.is_complex())


def specs(operands: Mapping[str, Tensor | None]) -> dict[str, Spec]:
    """Specs of the operands that are given."""
    return {name: spec(tensor) for name, tensor in operands.items() if tensor is not None}


def limit(cost: Cost, ceilings: Ceilings, dtype: str) -> tuple[str, float]:
    """Which ceiling binds a call (`bandwidth` or `matmul`), and the seconds that it alone would take.

    A dtype whose matmul was not measured is held against the best one.
    """
    rate = ceilings.matmul_flops_per_s.get(dtype, ceilings.peak_flops_per_s)
    moving, computing = cost.bytes / ceilings.copy_bytes_per_s, cost.flops / rate
    return ("bandwidth", moving) if moving >= computing else ("matmul", computing)


def floor_s(cost: Cost, ceilings: Ceilings, dtype: str, cache_bytes: int) -> float:
    """Seconds that no correct call of this cost can beat, whatever its cache holds.

    Only traffic that the cache cannot absorb counts, at the fastest rates seen, of any dtype (`dtype` is
    what the call claims to use; a kernel may compute in another), less 10 %.
    """
    moving = max(cost.bytes - cache_bytes, 0) / ceilings.peak_bytes_per_s
    computing = cost.flops / max(ceilings.peak_flops_per_s, ceilings.matmul_flops_per_s.get(dtype, 0.0))
    return FLOOR_MARGIN * max(moving, computing)


def _bandwidths(device: torch.device, cache: int) -> tuple[list[float], list[float]]:
    """Bytes a second of seven copies and seven reads of a buffer far larger than the cache."""
    least, most = CPU_BUFFER_BYTES
    nbytes = GPU_BUFFER_BYTES if device.type == "cuda" else min(max(least, 4 * cache), most)
    source = torch.rand(2**20, device=device).repeat(nbytes // 2**22)
    target = torch.empty_like(source)
    copies = _times(device, lambda: target.copy_(source), 7)
    reads = _times(device, source.sum, 7)
    return [2 * nbytes / seconds for seconds in copies], [nbytes / seconds for seconds in reads]


def _matmul_rates(device: torch.device, dtype: torch.dtype, budget_s: float) -> list[float]:
    """FLOPs a second of square matmuls, the largest power of two of which five fit the budget."""
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
    """What one thread reaches, times the threads: other processes slow threads that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = 256
        left, right = torch.randn(size, size), torch.randn(size, size)
        return threads * 2 * size**3 / min(_times(torch.device("cpu"), lambda: left @ right, 20))
    finally:
        torch.set_num_threads(threads)


def _times(device: torch.device, call: Callable[[], object], count: int) -> list[float]:
    """Seconds of each of `count` runs, after one that is not counted."""
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
