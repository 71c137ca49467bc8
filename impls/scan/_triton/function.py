"""Tile sizes, launches, and the autograd function around the two kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .backward import scan_backward
from .forward import scan_forward


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a pass is cut.

    steps: consecutive steps that a thread holds (R). runs: of them, side by side in a tile.
    channels: of a program. vector: channels of a thread, 16 bytes of the widest stream.
    programs: wanted a multiprocessor; time is cut into chunks where batch and channels give fewer.
    """

    steps: int
    runs: int
    channels: int
    vector: int
    warps: int
    stages: int
    programs: int = 2


TABLE = {
    ("forward", "real"): Tiles(8, 16, 32, 4, 4, 3),
    ("forward", "complex"): Tiles(8, 8, 32, 2, 4, 3),
    ("backward", "real"): Tiles(8, 16, 32, 4, 4, 2),
    ("backward", "complex"): Tiles(4, 8, 32, 2, 4, 2),
}


def tiles(pass_: str, state: str) -> Tiles:
    """Tile sizes of a pass (`forward` or `backward`) over a `real` or `complex` state."""
    return TABLE[pass_, state]


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a call, tile sizes of a pass, and time cut into chunks of whole tiles."""

    B: int
    T: int
    C: int
    cut: Tiles
    tiles: int
    chunks: int

    @classmethod
    def of(cls, h: Tensor, pass_: str) -> Plan:
        B, T, C = h.shape
        cut = tiles(pass_, "complex" if h.is_complex() else "real")
        total = triton.cdiv(T, cut.steps * cut.runs)
        programs = B * triton.cdiv(C, cut.channels)
        chunks = max(1, cut.programs * processors(h.device) // programs)
        each = triton.cdiv(total, chunks)
        return cls(B, T, C, cut, each, triton.cdiv(total, each))

    @property
    def blocks(self) -> int:
        """Programs side by side over the channels."""
        return triton.cdiv(self.C, self.cut.channels)

    def launch(self, kernel: Any, log_a: Tensor, phase: Tensor | None, *operands: Any, **flags: Any) -> None:
        """Launch a pass: once for the maps of all chunks but the last where there are several, then to write.

        `operands` follow the gates; the chunks' maps, `self` among them, are allocated here.
        """
        planes = 2 if phase is None else 4
        maps = torch.empty(planes, self.B, self.chunks, self.C, dtype=torch.float32, device=log_a.device)
        cut = self.cut
        gates = [gate for gate in (log_a, phase) if gate is not None]
        for write in (False, True) if self.chunks > 1 else (True,):
            launched = self.chunks if write else self.chunks - 1
            with torch.cuda.device_of(log_a):
                kernel[(self.B * launched * self.blocks,)](
                    log_a, phase, *(maps if operand is self else operand for operand in operands),
                    self.T, self.C, loop_bound(self.tiles), self.chunks, launched,
                    *strides(log_a), *strides(phase),
                    A_CHANNEL=over_channels(log_a), P_CHANNEL=over_channels(phase),
                    VARIES=any(gate.shape[1] > 1 for gate in gates), COMPLEX=phase is not None,
                    WRITE=write, WHOLE=self.T % cut.steps == 0, FLUSH=not triton.knobs.runtime.interpret,
                    R=cut.steps, RUNS=cut.runs, BC=cut.channels, VECTOR=cut.vector, STAGES=cut.stages,
                    num_warps=cut.warps, **flags,
                )  # fmt: skip


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return tl.constexpr(count) if triton.knobs.runtime.interpret else count


def over_channels(gate: Tensor | None) -> int:
    """Stride over the channels: 1, or 0 where the gate broadcasts."""
    return int(gate is not None and gate.shape[2] > 1)


def strides(gate: Tensor | None) -> tuple[int, ...]:
    """Strides over batch and time, 0 where the gate broadcasts."""
    if gate is None:
        return 0, 0
    return tuple(0 if gate.shape[axis] == 1 else gate.stride(axis) for axis in (0, 1))


def packed(x: Tensor | None) -> Tensor | None:
    """Contiguous, a complex64 as one int64."""
    if x is None:
        return None
    x = x.resolve_conj().contiguous()
    return x.view(torch.int64) if x.is_complex() else x


def gate_gradient(gate: Tensor | None, wanted: bool, plan: Plan) -> tuple[str, Tensor | None]:
    """How a gate's gradient leaves the kernel, and its buffer: never more than the axes that the gate has."""
    if gate is None or not wanted:
        return "none", None
    if gate.shape[1] == 1:
        return "total", gate.new_empty(plan.B, plan.chunks, plan.C, dtype=torch.float32)
    if gate.shape[2] == 1:
        return "rows", gate.new_empty(plan.B, plan.T, plan.blocks, dtype=torch.float32)
    dtype = gate.dtype if gate.shape[0] == plan.B else torch.float32
    return "elements", gate.new_empty(plan.B, plan.T, plan.C, dtype=dtype)


def reduced(partial: Tensor | None, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient from its buffer, summed over the axes along which the gate broadcasts."""
    if partial is None or gate is None:
        return None
    axes = [axis for axis in range(3) if gate.shape[axis] == 1 and partial.shape[axis] > 1]
    return (partial.sum(axes, keepdim=True) if axes else partial).to(gate.dtype)


class Scan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        wide = torch.float32 if phase is None else torch.complex64
        h = torch.empty(b.shape, dtype=b.dtype if phase is None else wide, device=b.device)
        final = torch.empty(b.shape[0], b.shape[2], dtype=wide, device=b.device)
        plan = Plan.of(h, "forward")
        plan.launch(scan_forward, log_a, phase, packed(b), packed(state), packed(h), packed(final), plan)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.input_dtype = b.dtype
        return h, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        needs_a, needs_phase, needs_b, needs_state = ctx.needs_input_grad
        plan = Plan.of(h, "backward")
        db = torch.empty(h.shape, dtype=ctx.input_dtype, device=h.device) if needs_b else None
        dstate = torch.empty_like(state, memory_format=torch.contiguous_format) if needs_state else None
        a_kind, da = gate_gradient(log_a, needs_a, plan)
        p_kind, dphase = gate_gradient(phase, needs_phase, plan)
        plan.launch(
            scan_backward, log_a, phase, packed(g), packed(h), packed(state), packed(final_grad), plan,
            packed(db), da, dphase, packed(dstate), A_GRAD=a_kind, P_GRAD=p_kind,
        )  # fmt: skip
        return reduced(da, log_a), reduced(dphase, phase), db, dstate
