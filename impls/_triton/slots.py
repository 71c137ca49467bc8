"""What a launch plan knows of tensors and of launches: slots and steps.

A slot has a tensor's shape, strides, dtype, alignment and device, but no memory. A step is a launch on slots,
which may be packed for the launcher in C, `launcher.c`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes; kernels are specialised by whether a pointer is a multiple
Key = tuple[Any, ...]
Pick = Callable[[Sequence[Any]], tuple[Any, ...]]
Parameter = tuple[str, Any]  # Triton's name of its type, and the argument, maybe a slot
Packed = tuple[Any, ...]  # as the launcher takes a kernel
Places = Mapping[int, tuple[int, int]]  # by slot: a place among a call's tensors, and bytes from there


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a planned call, known by everything except its memory.

    index: its place among the call's operands, then buffers. aligned: whether its memory begins at a multiple
    of 16 bytes.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    aligned: bool = True
    index: int = -1

    @classmethod
    def of(cls, x: Tensor) -> Slot:
        """Describe a tensor; one without memory counts as aligned."""
        return cls(x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % ALIGNMENT == 0)

    @property
    def key(self) -> Key:
        """The same as `key_of` gives for such a tensor."""
        number = self.device.index if self.device.type == "cuda" else -1
        return self.dtype, self.shape, self.strides, self.aligned, number

    @property
    def may_be_negated(self) -> bool:
        """Whether it may be the imaginary part of a conjugate, a view whose sign is a flag beside memory."""
        steps = [step for size, step in zip(self.shape, self.strides, strict=True) if size > 1]
        return self.dtype.is_floating_point and all(step % 2 == 0 for step in steps)

    def view(self, dtype: torch.dtype) -> Slot:
        """The same memory, read as another dtype."""
        return replace(self, dtype=dtype)

    def bits(self) -> Slot:
        """A complex64 as one int64; anything else as it is."""
        return self.view(torch.int64) if self.dtype == torch.complex64 else self

    def stride(self, axis: int) -> int:
        return self.strides[axis]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def data_ptr(self) -> int:
        """An address with the alignment of the memory, which is what Triton specialises by."""
        return 0 if self.aligned else 1


def picker(places: Sequence[int]) -> Pick:
    """A function that picks the elements at some places of a sequence, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda pool: tuple([pool[place] for place in places])


def key_of(x: Tensor | None, at: int | None) -> Key | None:
    """All that a plan may depend on of an operand, whose address is `at`."""
    if x is None or at is None:
        return None
    return x.dtype, x.shape, x.stride(), at % ALIGNMENT == 0, x.get_device()


class Step:
    """One launch of a plan. uses: indices of the slots that it reads or writes."""

    uses: frozenset[int]

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        """Enqueue it, given the tensor and the address of every slot."""
        raise NotImplementedError

    def obstacle(self) -> str:
        """Say why it must be enqueued by itself; nothing if C may do it together with others."""
        return "a step is no kernel"

    def packed(self, places: Places) -> Packed | None:
        """Load the kernel on the current device, and pack its launch; None if it has no programs."""
        raise NotImplementedError


def pack(
    function: int,
    grid: Sequence[int],
    threads: int,
    shared: int,
    parameters: Sequence[Parameter],
    places: Places,
) -> Packed:
    """A launch, which has programs, as the launcher takes it."""
    addresses = b"".join(
        struct.pack("<QQQ", number, *places[value.index])
        for number, (_, value) in enumerate(parameters)
        if isinstance(value, Slot)
    )
    words = b"".join(word(kind, value) for kind, value in parameters)
    return function, tuple(grid), threads, shared, words, addresses


def word(kind: str, value: Any) -> bytes:
    """A parameter in 8 bytes, of which the driver reads the first ones; an address is filled in later."""
    if kind[0] == "*":
        return bytes(8)
    if kind in ("fp32", "fp64"):
        return struct.pack("<d" if kind == "fp64" else "<fxxxx", value)
    return struct.pack("<Q", int(value) & 0xFFFF_FFFF_FFFF_FFFF)
