"""Launches, and the autograd function around the two kernels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .program import cubin
from .sizes import Tiles, Variant, tiles, variant

TYPES = {
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.complex64: "complex64",
}
HEAD = 16  # words before the maps, as in walk.cuh
EMPTY = -1

# Strands a multiprocessor; with fewer, a pass is a chain.
ENOUGH = 0.65


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on a device. resident: blocks of it that fit on the device at once."""

    kernel: Any
    code: Any
    variant: Variant
    resident: int


@functools.cache
def loaded(
    pass_: str, gate: torch.dtype, data: torch.dtype, const: tuple[bool, bool], aligned: bool, chained: bool,
    cut: Tiles, device: int,
) -> Loaded:  # fmt: skip
    """Compiled, or from the cache, and loaded. const: whether log_a is the same at every step, and phase."""
    from cuda.bindings import driver
    from cuda.core import Device, ObjectCode

    Device(device).set_current()  # autograd's thread may have no context yet
    properties = torch.cuda.get_device_properties(device)
    made = variant(
        pass_,
        TYPES[gate],
        TYPES[data],
        cut,
        const=const,
        aligned=aligned,
        chained=chained,
        shared_bytes=shared_memory(device),
    )
    code = ObjectCode.from_cubin(cubin(made, f"sm_{properties.major}{properties.minor}"))
    kernel = code.get_kernel(f"cuda_scan_{pass_}")
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(most, made.shared_bytes, kernel.handle, driver.CUdevice(device))
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuKernelSetAttribute({made.shared_bytes} bytes of shared memory): {error.name}")
    blocks = kernel.occupancy.max_active_blocks_per_multiprocessor(made.tiles.threads, made.shared_bytes)
    return Loaded(kernel, code, made, max(1, blocks) * properties.multi_processor_count)


@functools.cache
def processors(device: int) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def shared_memory(device: int) -> int:
    """Bytes that a block can have."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def launch(ready: Loaded, grid: int, arguments: list[int], device: int) -> None:
    """Launch on the current stream of a device; every argument has 64 bits."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Device, LaunchConfig, Stream
    from cuda.core import launch as enqueue

    handle = torch.cuda.current_stream(device).cuda_stream
    stream = Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM
    made = ready.variant
    config = LaunchConfig(grid=grid, block=made.tiles.threads, shmem_size=made.shared_bytes)
    Device(device).set_current()
    with torch.cuda.device(device):
        enqueue(stream, config, ready.kernel, *arguments)


def is_const(gate: Tensor | None) -> bool:
    """Whether a gate is there and the same at every step."""
    return gate is not None and gate.shape[1] == 1


@dataclass(frozen=True, slots=True)
class Plan:
    """How a pass over (B, T, C) is cut. A strand is one batch element's block of channels."""

    pass_: str
    shape: torch.Size
    cut: Tiles
    chained: bool

    @classmethod
    def of(cls, pass_: str, log_a: Tensor, phase: Tensor | None, data: Tensor) -> Plan:
        def cut(*, chained: bool) -> Tiles:
            widths = (log_a.dtype.itemsize, data.dtype.itemsize)
            wanted = tiles(pass_, *widths, chained=chained)
            types = (TYPES[log_a.dtype], TYPES[data.dtype])
            const = (is_const(log_a), is_const(phase))
            room = shared_memory(data.device.index)
            made = variant(
                pass_, *types, wanted, const=const, aligned=True, chained=chained, shared_bytes=room
            )
            return made.tiles

        found = cls(pass_, data.shape, cut(chained=False), False)
        if found.strands < ENOUGH * processors(data.device.index):
            chain = cut(chained=True)
            if data.shape[1] > chain.length:
                return cls(pass_, data.shape, chain, True)
        return found

    @property
    def tiles(self) -> int:
        """Of a strand."""
        return -(-self.shape[1] // self.cut.length)

    @property
    def strands(self) -> int:
        return self.shape[0] * -(-self.shape[2] // self.cut.channels)

    def words(self, device: torch.device, *, is_complex: bool) -> Tensor | None:
        """What the blocks of a chain tell one another: tiles' maps, and states after groups of tiles."""
        if not self.chained:
            return None
        rows = self.shape[0] * (self.tiles * (2 if is_complex else 1) + -(-self.tiles // self.cut.group))
        return torch.full((HEAD + rows * self.shape[2],), EMPTY, dtype=torch.int64, device=device)

    def run(self, log_a: Tensor, phase: Tensor | None, data: Tensor, *operands: Tensor | None) -> None:
        """Run the pass: the kernel's arguments are the gates, the operands and results, words, and sizes.

        data: one of the operands (B, T, C), b or h.
        """
        B, T, C = self.shape
        device, types = data.device.index, (log_a.dtype, data.dtype)
        pointers = [0 if x is None else x.data_ptr() for x in (log_a, phase, *operands)]
        aligned = C * min(dtype.itemsize for dtype in types) % 16 == 0 and all(
            at % 16 == 0 for at in pointers
        )
        const = (is_const(log_a), is_const(phase))
        ready = loaded(self.pass_, *types, const, aligned, self.chained, self.cut, device)
        words = self.words(data.device, is_complex=phase is not None)
        pointers.append(0 if words is None else words.data_ptr())
        grid = min(self.strands * self.tiles, ready.resident) if self.chained else self.strands
        batches = [0 if gate is None or gate.shape[0] == 1 else gate.stride(0) for gate in (log_a, phase)]
        launch(ready, grid, [*pointers, B, T, C, *batches], device)


class Scan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b.

    Gates are (B|1, 1, C) or (B, T, C); b is complex64 if there is a phase. All come and go contiguous.
    """

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h = torch.empty_like(b)
        wide = torch.float32 if phase is None else torch.complex64
        final = torch.empty(b.shape[0], b.shape[2], dtype=wide, device=b.device)
        Plan.of("forward", log_a, phase, b).run(log_a, phase, b, b, state, h, final)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.set_materialize_grads(False)
        return h, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, final_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        needs_a, needs_phase, needs_b, needs_state = ctx.needs_input_grad
        plan = Plan.of("backward", log_a, phase, h)
        g = torch.zeros_like(h) if g is None else g.resolve_conj().contiguous()
        final_grad = None if final_grad is None else final_grad.resolve_conj().contiguous()
        db = torch.empty_like(h) if needs_b else None
        wanted = [(log_a, needs_a), (phase, phase is not None and needs_phase)]
        da, dphase = (torch.empty_like(x) if need and not is_const(x) else None for x, need in wanted)
        partial = None
        if any(need and is_const(x) for x, need in wanted):
            wide = torch.float32 if phase is None else torch.complex64
            partial = h.new_empty(h.shape[0], plan.tiles, h.shape[2], dtype=wide)
        dstate = torch.empty_like(state) if needs_state else None
        plan.run(log_a, phase, h, g, h, state, final_grad, db, da, dphase, partial, dstate)
        if partial is not None:
            da = summed(partial.real, log_a) if needs_a and is_const(log_a) else da
            dphase = summed(partial.imag, phase) if needs_phase and is_const(phase) else dphase
        return da, dphase, db, dstate


def summed(partial: Tensor, gate: Tensor) -> Tensor:
    """The gradient (B|1, 1, C) of a constant gate from its parts (B, tiles, C)."""
    axes = (0, 1) if gate.shape[0] == 1 else (1,)
    return partial.sum(axes, keepdim=True).to(gate.dtype)
