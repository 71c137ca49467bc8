"""The kernels, and how they are loaded."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..._cuda.program import Program

SOURCES = Path(__file__).parent
ARCH = "sm_90a"  # Hopper alone has these products


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a file. threads, shared_bytes: of a block."""

    file: str
    name: str
    threads: int
    shared_bytes: int

    @property
    def program(self) -> Program:
        return Program(SOURCES, self.file)


CHUNKS = Kernel("chunks.cu", "cuda_delta_chunks", 128, 47_872)
WALK = Kernel("walk.cu", "cuda_delta_walk", 256, 207_872)
WALK_KEEP = Kernel("walk.cu", "cuda_delta_walk_keep", 256, 224_256)
WALK_BACK = Kernel("walk.cu", "cuda_delta_walk_back", 256, 224_256)
GRADIENTS = Kernel("gradients.cu", "cuda_delta_gradients", 256, 200_000)
KERNELS = (CHUNKS, WALK, WALK_KEEP, WALK_BACK, GRADIENTS)


@functools.cache
def loaded(kernel: Kernel, device: int) -> tuple[int, Any]:
    """What the driver launches, and what keeps it alive."""
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    Device(device).set_current()  # autograd's thread may have no context yet
    code = ObjectCode.from_cubin(kernel.program.cubin(ARCH))
    found = code.get_kernel(kernel.name)
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    place = driver.CUdevice(device)
    (error,) = driver.cuKernelSetAttribute(most, kernel.shared_bytes, found.handle, place)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.name}: {kernel.shared_bytes} bytes of shared memory: {error.name}")
    return int(found.handle), code


@functools.cache
def processors(device: int) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
