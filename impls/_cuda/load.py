"""Loads machine code onto a device, and asks what the device has."""

from __future__ import annotations

import functools
from typing import Any

import torch


def load(code: bytes, name: str, shared_bytes: int, device: int) -> Any:
    """A kernel of a cubin on a device, with so much dynamic shared memory; it must be kept while it is used.

    Raises:
        RuntimeError: the device does not give the kernel so much.
    """
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    Device(device).set_current()  # autograd's thread may have no context yet
    kernel = ObjectCode.from_cubin(code).get_kernel(name)
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(most, shared_bytes, kernel.handle, driver.CUdevice(device))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuKernelSetAttribute({shared_bytes} bytes of shared memory): {error.name}")
    return kernel


@functools.cache
def processors(device: int) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """Compute capability of a device."""
    return torch.cuda.get_device_capability(device)
