"""Find the machine's devices, through NVML, so that the driver process opens no CUDA context."""

from __future__ import annotations

import os
import re
from numbers import Integral
from typing import Any

from ssmperf.engine.plan.selection import Device
from ssmperf.errors import UsageError

MOST_GPUS = 1024  # that a plan may name where there is none
MOST_WORKERS = 6  # that share a GPU
WORKER_BYTES, WORKER_CORES = 16 << 30, 2  # of a worker that shares a GPU and of its judge
# an H200, for plans without a GPU
ASSUMED = Device("cuda", memory_bytes=140 << 30, capability=(9, 0), workers=MOST_WORKERS)


def resolve(
    device: str, devices: tuple[int, ...] | None = None, *, planning: bool = False
) -> tuple[str, list[str]]:
    """Choose the device type and the torch devices to use.

    device: "auto", "cpu", "cuda" or "cuda:N". devices: several CUDA indices, one worker per device.
    planning: whether GPUs may be named although there is none.

    Raises:
        UsageError: this machine has no such device.
    """
    count = cuda_count()
    if planning and not count:
        count = MOST_GPUS
        device = "cpu" if device == "auto" else device
    if devices is not None:
        if not devices or not all(isinstance(index, Integral) and int(index) >= 0 for index in devices):
            raise UsageError(f"devices must be CUDA indices such as (0, 1), got {devices!r}")
        return "cuda", [_checked(int(index), count) for index in devices]
    device = str(device)  # torch.device is one, too
    if device == "auto":
        return ("cuda", ["cuda:0"]) if count else ("cpu", ["cpu"])
    if device == "cpu":
        return "cpu", ["cpu"]
    match = re.fullmatch(r"cuda(?::(\d{1,9}))?", device)
    if not match:
        raise UsageError(f"unknown device {device!r} (valid: auto, cpu, cuda, cuda:N)")
    return "cuda", [_checked(int(match[1] or 0), count)]


def describe(type_: str, devices: list[str], *, planning: bool = False) -> Device:
    """Describe the chosen devices for planning, by their least memory and compute capability.

    planning: whether to describe an H200 where there is no GPU.
    """
    if type_ == "cpu":
        return Device("cpu")
    if planning and not cuda_count():
        return ASSUMED
    nvml = _nvml()
    if nvml is None:
        return Device("cuda")
    handles = [nvml.nvmlDeviceGetHandleByIndex(_physical(int(name.partition(":")[2]))) for name in devices]
    memory = min(int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)
    capability = min(tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles)
    cores = len(os.sched_getaffinity(0)) // len(devices)
    workers = max(1, min(MOST_WORKERS, memory // WORKER_BYTES, cores // WORKER_CORES))
    return Device("cuda", memory, (int(capability[0]), int(capability[1])), workers)


def cuda_count() -> int:
    """Count the CUDA devices that this process may use; 0 without a driver or a CUDA build of torch."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if torch.version.cuda is None:
        return 0
    return torch.cuda.device_count()


def name_of(device: str) -> str | None:
    """Name the GPU behind a torch device such as cuda:0, as NVML does; None if NVML does not say."""
    nvml = _nvml()
    if nvml is None:
        return None
    index = int(device.partition(":")[2] or 0)
    name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(_physical(index)))
    return name.decode() if isinstance(name, bytes) else str(name)


def _checked(index: int, count: int) -> str:
    if index >= count:
        have = f"cuda:0 to cuda:{count - 1}" if count else "none"
        raise UsageError(f"no device cuda:{index} here (CUDA devices: {have}; or use --device cpu)")
    return f"cuda:{index}"


def _physical(index: int) -> int:
    """Translate torch's device index into NVML's, under a CUDA_VISIBLE_DEVICES that lists numbers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    numbers = [part.strip() for part in visible.split(",") if part.strip()]
    return int(numbers[index]) if index < len(numbers) and numbers[index].isdigit() else index


def _nvml() -> Any:
    """Initialise NVML; return None where it is absent or refuses."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
