"""Hands a kernel to the driver with as little work on the host as it takes."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which is what PyTorch's stream 0 means
BYTES = 8  # of every argument


class ArgumentBuffer:
    """Memory for the arguments of a launch, and for the list of their addresses, which the driver reads."""

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_longlong * count)()
        first = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * count)(*range(first, first + count * BYTES, BYTES))
        self.at = ctypes.addressof(self.addresses)


_free: defaultdict[int, list[ArgumentBuffer]] = defaultdict(list)  # buffers not in use, by their length


def enqueue(
    handle: Any,
    grid: int,
    threads: int,
    shared_bytes: int,
    stream: int,
    arguments: Sequence[int],
    device: int,
) -> None:
    """Launch a kernel on a stream of a device, which is the current one. Arguments have 64 bits.

    The driver copies them during its call, so that the buffer is free again after it; threads that launch at
    the same time take different ones.

    Raises:
        RuntimeError: the driver refuses the launch.
    """
    from cuda.bindings import driver

    free = _free[len(arguments)]
    buffer = free.pop() if free else ArgumentBuffer(len(arguments))
    buffer.values[:] = arguments  # type: ignore[call-overload]  # its stub takes lists alone
    configuration = (handle, grid, 1, 1, threads, 1, 1, shared_bytes, stream or LEGACY_STREAM, buffer.at, 0)
    (error,) = driver.cuLaunchKernel(*configuration)
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # this thread has called nothing of CUDA yet
        from cuda.core import Device

        Device(device).set_current()
        (error,) = driver.cuLaunchKernel(*configuration)
    free.append(buffer)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuLaunchKernel: {error.name}")
