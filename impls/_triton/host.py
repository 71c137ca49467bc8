"""Small helpers of host code: devices, loop bounds, strides."""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from .slots import Slot


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; without a GPU, those of an H100."""
    if device.type != "cuda":
        return 232_448
    found = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    return int(found["max_shared_mem"])


def architecture() -> int:
    """Ten times the compute capability for which kernels are compiled; the interpreter counts as Hopper."""
    return 90 if interpreted() else int(triton.runtime.driver.active.get_current_target().arch)


def interpreted() -> bool:
    """Whether Triton interprets kernels in this process."""
    return bool(triton.knobs.runtime.interpret)


def flush() -> bool:
    """Whether kernels may use NVIDIA's instructions, which the interpreter lacks."""
    return not interpreted()


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return tl.constexpr(count) if interpreted() else count


def strides(x: Slot | None, *axes: int) -> tuple[int, ...]:
    """Strides over some axes, 0 where the operand broadcasts or is absent."""
    if x is None:
        return (0,) * len(axes)
    return tuple(0 if x.shape[axis] == 1 else x.strides[axis] for axis in axes)
