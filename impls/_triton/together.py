"""All launches of a plan in one call of C, with its scratch memory in one buffer.

A launch from Python or through Triton's own launcher takes several microseconds, and so does a buffer. Here
the launches are packed once per plan: `Together` keeps the parameters of all kernels, into which a call puts
addresses. `launcher.c` is compiled at first use, as Triton compiles its own launchers.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from triton.runtime.build import compile_module_from_src

from .launch import hooks
from .slots import Places, Step

if TYPE_CHECKING:
    from .plan import Plan

MOST_MORE = 8 << 20  # bytes that a plan may allocate beyond what it needs, for the sake of a quicker call
APART = 256  # bytes; buffers in one block begin at multiples of it
FUNCTIONS = (
    "cuLaunchKernel",
    "cuCtxGetCurrent",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuGetErrorString",
)


@dataclass(frozen=True, slots=True)
class Driver:
    """Addresses of the driver's FUNCTIONS, and the driver's number of a device."""

    functions: tuple[int, ...]
    device: int


@functools.cache
def driver(index: int) -> Driver:
    library = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(number), index)
    found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in FUNCTIONS]
    return Driver(tuple(each or 0 for each in found), number.value)


@functools.cache
def launcher() -> Any:
    """The module of `launcher.c`, compiled into Triton's cache unless it is there."""
    source = Path(__file__).with_name("launcher.c").read_text()
    return compile_module_from_src(source, "ssmperf_launcher")


def hooked() -> bool:
    """Whether a hook wants to see every launch, as a profiler does."""
    return hooks() != (None, None)


class Together:
    """The steps of a plan, ready to be made one after another on tensors of a call and of its own.

    steps: none with an obstacle. makers: they make the tensors that a call allocates. at: the
    place of each slot that is a tensor of its own, among the operands and then these. places: where each slot
    lies, as such a place and bytes from there.
    """

    def __init__(
        self, steps: Sequence[Step], operands: int, makers: Sequence[Callable[[], Tensor]],
        at: Mapping[int, int], places: Places, device: torch.device,
    ) -> None:  # fmt: skip
        self.steps, self.makers, self.at, self.places = steps, makers, at, places
        self.count, self.device = operands + len(makers), device
        self.hooked = hooked
        self._program: Any = None
        self._run: Callable[..., None] | None = None

    def __call__(self, stream: int, addresses: list[int | None]) -> None:
        """Enqueue all of them on a stream of the current device."""
        if self._run is None:
            self._program = self._load()
            self._run = launcher().run  # last: another thread may look at it now
        self._run(self._program, stream, addresses)

    def _load(self) -> Any:
        """Load the kernels on the current device, and pack them."""
        found = driver(self.device.index)
        kernels = [packed for step in self.steps if (packed := step.packed(self.places)) is not None]
        return launcher().program(found.functions, found.device, self.count, kernels)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are needed from one step of a plan to another, both included."""

    size: int
    first: int
    last: int

    def lives(self, step: int) -> bool:
        return self.first <= step <= self.last

    def meets(self, other: Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last


def arranged(buffers: Mapping[int, Buffer]) -> tuple[dict[int, int], int]:
    """Where each buffer begins in one block, and the size of the block.

    Buffers that are needed at different times may share bytes, since the device runs steps in order.
    """
    found: dict[int, int] = {}
    for index, buffer in sorted(buffers.items(), key=lambda item: -item[1].size):
        at = 0
        taken = sorted(
            (found[other], found[other] + buffers[other].size)
            for other in found
            if buffers[other].meets(buffer)
        )
        for start, end in taken:
            if at + buffer.size <= start:
                break
            at = max(at, -(-end // APART) * APART)
        found[index] = at
    return found, max((found[index] + each.size for index, each in buffers.items()), default=0)


def gathered(
    plan: Plan, lives: Mapping[int, tuple[int, int]], kept: Collection[int]
) -> tuple[Together | None, str]:
    """Prepare to make all launches of a plan together, or say why they are made one by one.

    plan: its steps have no obstacle. lives: the first and the last step that use each buffer. kept: results;
    they have memory of their own, and all other buffers that begin empty lie in one block.
    """
    if not on_gpu(plan.device):
        return None, "kernels are interpreted, or not run at all"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return None, "a tool may look for accesses outside of buffers"
    sizes = {at: slot.numel() * slot.element_size() for at, slot in plan.plain.items()}
    scratch = {at: Buffer(size, *lives[at]) for at, size in sizes.items() if at not in kept}
    offsets, block = arranged(scratch)
    results = [Buffer(sizes[at], lives[at][0], len(plan.steps)) for at in sizes if at in kept]
    living = [*scratch.values(), *results]
    needed = max(sum(each.size for each in living if each.lives(step)) for step in range(len(plan.steps)))
    if block + sum(each.size for each in results) > needed + MOST_MORE:
        return None, "buffers of their own take less memory"
    own = [at for at in lives if at not in offsets]
    makers = [plan.makers[at - plan.operands] for at in own]
    if block:
        makers.append(partial(torch.empty, (block,), dtype=torch.uint8, device=plan.device))
    place = {at: at for at in range(plan.operands)} | {at: plan.operands + n for n, at in enumerate(own)}
    places = {at: (to, 0) for at, to in place.items()}
    places |= {at: (plan.operands + len(own), offset) for at, offset in offsets.items()}
    return Together(plan.steps, plan.operands, makers, place, places, plan.device), ""


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"
