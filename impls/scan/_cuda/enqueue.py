"""Hands a kernel to the driver with as little work on the host as it takes."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which is what PyTorch's stream 0 means
BYTES = 8  # of every argument


class Room:
    """Memory for the arguments of a launch, and for the list of their addresses, which the driver reads."""

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_longlong * count)()
        first = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * count)(*range(first, first + count * BYTES, BYTES))
        self.at = ctypes.addressof(self.addresses)


_rooms: defaultdict[int, list[Room]] = defaultdict(list)  # by number of arguments; those not in use


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

    The driver copies them during its call, so that the room is free again after it; threads that launch at
    the same time take different ones.

    Raises:
        RuntimeError: the driver refuses the launch.
    """
    from cuda.bindings import driver

    free = _rooms[len(arguments)]
    room = free.pop() if free else Room(len(arguments))
    room.values[:] = arguments  # type: ignore[call-overload]  # its stub takes lists alone
    configuration = (handle, grid, 1, 1, threads, 1, 1, shared_bytes, stream or LEGACY_STREAM, room.at, 0)
    (error,) = driver.cuLaunchKernel(*configuration)
    if error == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT:  # this thread has called nothing of CUDA yet
        from cuda.core import Device

        Device(device).set_current()
        (error,) = driver.cuLaunchKernel(*configuration)
    free.append(room)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuLaunchKernel: {error.name}")
