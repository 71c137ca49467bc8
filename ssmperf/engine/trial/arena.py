"""Arena: memory that a worker and the judge share, through which tensors cross as raw bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes
LEAST_BYTES = 1 << 20


class Arena:
    """The writer's side. The memory grows by being replaced, and then has another token and descriptor."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.token = ""
        self.descriptor = -1
        self._buffer: Tensor | None = None

    def write(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Copy tensors into the memory from its start. Returns where each lies, as plain data."""
        layout: list[dict[str, Any]] = []
        end = 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            layout.append({"name": name, "dtype": dtype, "shape": list(tensor.shape), "start": end})
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        buffer = self._room(end)
        for place, tensor in zip(layout, tensors.values(), strict=True):
            view(buffer, place).copy_(tensor.resolve_conj())
        return layout

    def close(self) -> None:
        """Give the memory back, as far as this process is concerned."""
        if self._buffer is not None:
            unpinned(self._buffer, self.device)
            self._buffer = None
            os.close(self.descriptor)

    def _room(self, size: int) -> Tensor:
        if self._buffer is None or self._buffer.numel() < size:
            self.close()
            size = max(size, LEAST_BYTES)
            self.token, self.descriptor = secrets.token_hex(8), os.memfd_create("ssmperf-answers")
            os.ftruncate(self.descriptor, size)
            self._buffer = mapped(self.descriptor, self.device)
        return self._buffer


class Mappings:
    """The reader's side: the memories that it was sent, by token; of several, the latest."""

    MOST = 4

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._buffers: dict[str, Tensor] = {}

    def add(self, token: str, descriptor: int) -> None:
        """Map a memory; the descriptor is closed."""
        try:
            self._buffers[token] = mapped(descriptor, self.device)
        finally:
            os.close(descriptor)
        while len(self._buffers) > self.MOST:
            oldest = next(iter(self._buffers))
            unpinned(self._buffers.pop(oldest), self.device)

    def read(self, token: str, layout: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Tensor]]:
        """Copy the tensors of a layout to the device, by name.

        Raises:
            ValueError: the layout does not fit the memory.
        """
        buffer = self._buffers[token]
        for place in layout:
            tensor = view(buffer, place)
            yield str(place["name"]), tensor.clone() if self.device.type == "cpu" else tensor.to(self.device)


def mapped(descriptor: int, device: torch.device) -> Tensor:
    """Map a memory as bytes; pinned, where the device copies faster from pinned memory."""
    memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError), torch.cuda.device(device):
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostRegister(buffer.data_ptr(), buffer.numel(), 0)
    return buffer


def unpinned(buffer: Tensor, device: torch.device) -> None:
    """Take back that a memory is pinned, before it is dropped."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError), torch.cuda.device(device):
            torch.cuda.synchronize(device)
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(buffer.data_ptr())


def view(buffer: Tensor, place: Mapping[str, Any]) -> Tensor:
    """Get the tensor at a place of a memory.

    Raises:
        ValueError: it does not lie within the memory.
    """
    dtype = getattr(torch, str(place["dtype"]))
    count = 1
    for size in place["shape"]:
        count *= int(size)
    start, nbytes = int(place["start"]), count * int(dtype.itemsize)
    if start < 0 or nbytes < 0 or start + nbytes > buffer.numel():
        raise ValueError("a tensor beyond the end of the shared memory")
    return buffer[start : start + nbytes].view(dtype).view(list(place["shape"]))
