"""Launches, and the autograd function around the two kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._autograd import once_differentiable
from ..._cuda.enqueue import enqueue, fill
from ..._cuda.load import load, processors
from ..._cuda.step import CudaStep
from ..._triton.plan import Plan, Slot, packed, planned
from .sizes import Tiles, Variant, tiles, variant

TYPES = {
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.complex64: "complex64",
}
HEAD = 16  # words before the maps, as in walk.cuh
EMPTY = 2**32 - 1  # each half of a word that nothing has been published in

# Strands a multiprocessor; with fewer, a pass is a chain.
ENOUGH = 0.65


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on a device. handle: what the driver launches. resident: blocks that fit there at once."""

    handle: int
    code: Any
    variant: Variant
    resident: int
    device: int = 0


@functools.cache
def loaded(
    pass_: str, gate: torch.dtype, data: torch.dtype, const: tuple[bool, bool], aligned: bool, chained: bool,
    cut: Tiles, device: int,
) -> Loaded:  # fmt: skip
    """Compiled, or from the cache, and loaded. const: whether log_a is the same at every step, and phase."""
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
    arch = f"sm_{properties.major}{properties.minor}"
    kernel = load(made.program.cubin(arch), f"cuda_scan_{pass_}", made.shared_bytes, device)
    blocks = kernel.occupancy.max_active_blocks_per_multiprocessor(made.tiles.threads, made.shared_bytes)
    resident = max(1, blocks) * properties.multi_processor_count
    return Loaded(int(kernel.handle), kernel, made, resident, device)


@functools.cache
def shared_memory(device: int) -> int:
    """Bytes that a block can have."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # not in torch's stubs


def launch(ready: Loaded, grid: int, arguments: list[int], stream: int) -> None:
    """Launch on a stream of the kernel's device; every argument has 64 bits."""
    made = ready.variant
    enqueue(ready.handle, grid, made.tiles.threads, made.shared_bytes, stream, arguments, ready.device)


def is_const(gate: Tensor | Slot | None) -> bool:
    """Whether a gate is there and the same at every step."""
    return gate is not None and gate.shape[1] == 1


class Launch(CudaStep):
    """A kernel and its grid, with the slots and sizes that it takes.

    The last slot is a chain's words, which are emptied before it; None where there is no chain.
    """

    def __init__(self, ready: Loaded, grid: int, slots: Sequence[Slot | None], sizes: Sequence[int]) -> None:
        super().__init__(grid, slots, sizes)
        self.ready = ready
        self.at, self.halves = len(slots) - 1, 0 if slots[-1] is None else 2 * slots[-1].numel()

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        given = self.given(pointers)
        if self.halves:
            fill(given[self.at], EMPTY, self.halves, stream, self.ready.device)
        launch(self.ready, self.grid, given, stream)

    def obstacle(self) -> str:
        return "a chain's words are emptied before it" if self.halves else super().obstacle()

    def kernel_needs(self) -> tuple[int, int, int]:
        made = self.ready.variant
        return self.ready.handle, made.tiles.threads, made.shared_bytes


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a pass over (B, T, C) is cut. A strand is one batch element's block of channels."""

    pass_: str
    shape: torch.Size
    cut: Tiles
    chained: bool

    @classmethod
    def of(cls, pass_: str, log_a: Slot, phase: Slot | None, data: Slot) -> Schedule:
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
        """Tiles of a strand."""
        return -(-self.shape[1] // self.cut.length)

    @property
    def strands(self) -> int:
        return self.shape[0] * -(-self.shape[2] // self.cut.channels)

    def words(self, plan: Plan, *, is_complex: bool) -> Slot | None:
        """Room for what the blocks of a chain publish: tiles' maps, and states after groups of tiles."""
        if not self.chained:
            return None
        rows = self.shape[0] * (self.tiles * (2 if is_complex else 1) + -(-self.tiles // self.cut.group))
        return plan.empty((HEAD + rows * self.shape[2],), torch.int64)

    def launch(self, plan: Plan, log_a: Slot, phase: Slot | None, data: Slot, *operands: Slot | None) -> None:
        """Launch the pass: the kernel's arguments are the gates, operands and results, words, and sizes.

        data: one of the operands (B, T, C), b or h.
        """
        B, T, C = self.shape
        types = (log_a.dtype, data.dtype)
        slots = (log_a, phase, *operands)
        aligned = C * min(dtype.itemsize for dtype in types) % 16 == 0 and all(
            slot is None or slot.aligned for slot in slots
        )
        const = (is_const(log_a), is_const(phase))
        ready = loaded(self.pass_, *types, const, aligned, self.chained, self.cut, data.device.index)
        words = self.words(plan, is_complex=phase is not None)
        grid = min(self.strands * self.tiles, ready.resident) if self.chained else self.strands
        batches = [0 if gate is None or gate.shape[0] == 1 else gate.stride(0) for gate in (log_a, phase)]
        plan.steps.append(Launch(ready, grid, (*slots, words), (B, T, C, *batches)))


@planned
def forward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, b: Slot, state: Slot | None
) -> tuple[Slot, Slot]:
    """(h, h_T)."""
    wide = torch.float32 if phase is None else torch.complex64
    h, final = plan.like(b), plan.empty((b.shape[0], b.shape[2]), wide)
    Schedule.of("forward", log_a, phase, b).launch(plan, log_a, phase, b, b, state, h, final)
    return h, final


@planned
def backward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, h: Slot, state: Slot | None, g: Slot,
    final_grad: Slot | None, *, needs: tuple[bool, ...],
) -> tuple[Slot | None, ...]:  # fmt: skip
    """Gradients of log_a, phase, b and the state, and the parts (B, tiles, C) of those of constant gates."""
    needs_a, needs_phase, needs_b, needs_state = needs
    schedule = Schedule.of("backward", log_a, phase, h)
    db = plan.like(h) if needs_b else None
    wanted = [(log_a, needs_a), (phase, needs_phase)]
    da, dphase = (
        plan.like(gate) if need and gate is not None and not is_const(gate) else None for gate, need in wanted
    )
    partial = None
    if any(need and is_const(gate) for gate, need in wanted):
        wide = torch.float32 if phase is None else torch.complex64
        partial = plan.empty((h.shape[0], schedule.tiles, h.shape[2]), wide)
    dstate = plan.like(state) if needs_state and state is not None else None
    schedule.launch(plan, log_a, phase, h, g, h, state, final_grad, db, da, dphase, partial, dstate)
    return da, dphase, db, dstate, partial


class Scan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b.

    Gates are (B|1, 1, C) or (B, T, C); b is complex64 if there is a phase. All come and go contiguous.
    """

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        h, final = forward_pass(log_a, phase, b, state)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.set_materialize_grads(False)
        return h, final

    @staticmethod
    @once_differentiable("scan/cuda")
    def backward(ctx: Any, g: Tensor | None, final_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        needs = ctx.needs_input_grad
        g = torch.zeros_like(h) if g is None else packed(g)
        final_grad = None if final_grad is None else packed(final_grad)
        da, dphase, db, dstate, partial = backward_pass(log_a, phase, h, state, g, final_grad, needs=needs)
        if partial is not None:
            da = summed(partial.real, log_a) if needs[0] and is_const(log_a) else da
            dphase = summed(partial.imag, phase) if needs[1] and is_const(phase) else dphase
        return da, dphase, db, dstate


def summed(partial: Tensor, gate: Tensor) -> Tensor:
    """The gradient (B|1, 1, C) of a constant gate from its parts (B, tiles, C)."""
    axes = (0, 1) if gate.shape[0] == 1 else (1,)
    return partial.sum(axes, keepdim=True).to(gate.dtype)
