"""Hands work to the driver of CUDA with as little work on the host as it takes."""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict
from collections.abc import Callable, Sequence

LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which is what PyTorch's stream 0 means
BYTES = 8  # of every argument
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT

NUMBER, ADDRESS = ctypes.c_uint, ctypes.c_void_p
# Handle, grid, block, shared memory, stream, addresses of the arguments, extra options.
LAUNCH = (ADDRESS, *[NUMBER] * 7, ADDRESS, ADDRESS, ADDRESS)
# Address, value, count, stream.
FILL = (ADDRESS, NUMBER, ctypes.c_size_t, ADDRESS)


class ArgumentBuffer:
    """Memory for the arguments of a launch, and for the list of their addresses, which the driver reads."""

    def __init__(self, count: int) -> None:
        self.values = (ctypes.c_longlong * count)()
        first = ctypes.addressof(self.values)
        self.addresses = (ctypes.c_void_p * count)(*range(first, first + count * BYTES, BYTES))
        self.at = ctypes.addressof(self.addresses)


_free: defaultdict[int, list[ArgumentBuffer]] = defaultdict(list)  # buffers not in use, by their length


@functools.cache
def driver_function(name: str, arguments: tuple[type, ...]) -> Callable[..., int]:
    """A function of the driver, of arguments of these types; it returns a CUresult."""
    found = getattr(ctypes.CDLL("libcuda.so.1"), name)
    found.argtypes, found.restype = arguments, ctypes.c_int
    return found  # type: ignore[no-any-return]


def enqueue(
    handle: int,
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
    free = _free[len(arguments)]
    buffer = free.pop() if free else ArgumentBuffer(len(arguments))
    buffer.values[:] = arguments  # type: ignore[call-overload]  # its stub takes lists alone
    sizes = (grid, 1, 1, threads, 1, 1, shared_bytes)
    _call("cuLaunchKernel", LAUNCH, (handle, *sizes, stream or LEGACY_STREAM, buffer.at, None), device)
    free.append(buffer)


def fill(address: int, value: int, count: int, stream: int, device: int) -> None:
    """Fill `count` words of 32 bits with a value, on a stream of a device, which is the current one.

    Raises:
        RuntimeError: the driver refuses.
    """
    _call("cuMemsetD32Async", FILL, (address, value, count, stream or LEGACY_STREAM), device)


def _call(name: str, types: tuple[type, ...], given: tuple[int | None, ...], device: int) -> None:
    function = driver_function(name, types)
    error = function(*given)
    if error == INVALID_CONTEXT:  # this thread has called nothing of CUDA yet
        from cuda.core import Device

        Device(device).set_current()
        error = function(*given)
    if error:
        from cuda.bindings import driver

        raise RuntimeError(f"{name}: {driver.CUresult(error).name}")
