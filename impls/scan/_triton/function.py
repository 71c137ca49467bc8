"""Launches, and the autograd function around the two kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .backward import scan_backward
from .chain import EMPTY, HEAD
from .forward import scan_forward
from .tiles import Tiles, tiles

# Strands a multiprocessor; with fewer, a pass is a chain.
ENOUGH = 1


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def widths(data: Tensor, *gates: Tensor | None) -> str:
    """What the table of tiles calls the widths of data and of the gates that differ from step to step."""
    if data.is_complex():
        return "complex"
    if data.element_size() == 4:
        return "float32"
    wide = any(gate is not None and gate.shape[1] > 1 and gate.element_size() == 4 for gate in gates)
    return "mixed" if wide else "half"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a call and tile sizes of a pass. A strand is one batch element's block of channels.

    A program walks the tiles of a strand or, in a chain, computes one of them.
    """

    B: int
    T: int
    C: int
    cut: Tiles
    chained: bool

    @classmethod
    def of(cls, pass_: str, h: Tensor, *gates: Tensor | None) -> Plan:
        B, T, C = h.shape
        kind = widths(h, *gates)
        cut = tiles(pass_, kind, chained=False)
        if B * triton.cdiv(C, cut.channels) < ENOUGH * processors(h.device):
            chain = tiles(pass_, kind, chained=True)
            if triton.cdiv(T, chain.steps * chain.runs) > 1:
                return cls(B, T, C, chain, True)
        return cls(B, T, C, cut, False)

    @property
    def tiles(self) -> int:
        return triton.cdiv(self.T, self.cut.steps * self.cut.runs)

    @property
    def blocks(self) -> int:
        """Strands side by side over the channels."""
        return triton.cdiv(self.C, self.cut.channels)

    @property
    def links(self) -> int:
        """Programs of a strand."""
        return self.tiles if self.chained else 1

    def words(self, device: torch.device, *, is_complex: bool) -> Tensor | None:
        """What the programs of a chain tell one another: tiles' maps, and states after groups of tiles."""
        if not self.chained:
            return None
        rows = self.tiles * (2 if is_complex else 1) + triton.cdiv(self.tiles, self.cut.runs)
        size = HEAD.value + self.B * rows * self.C
        return torch.full((size,), EMPTY.value, dtype=torch.int64, device=device)

    def launch(self, kernel: Any, log_a: Tensor, phase: Tensor | None, *operands: Any, **flags: Any) -> None:
        """Launch a pass. `operands` follow the gates; words, for which `self` stands, are allocated here."""
        words = self.words(log_a.device, is_complex=phase is not None)
        cut = self.cut
        with torch.cuda.device_of(log_a):
            kernel[(self.B * self.blocks * self.links,)](
                log_a, phase, *(words if operand is self else operand for operand in operands),
                self.T, self.C, loop_bound(self.tiles), *strides(log_a), *strides(phase),
                A_CHANNEL=over_channels(log_a), P_CHANNEL=over_channels(phase),
                VARIES=any(gate is not None and gate.shape[1] > 1 for gate in (log_a, phase)),
                COMPLEX=phase is not None,
                WHOLE=self.T % cut.steps == 0, FLUSH=not triton.knobs.runtime.interpret,
                R=cut.steps, RUNS=cut.runs, BC=cut.channels, VECTOR=cut.vector, STAGES=cut.stages,
                num_warps=cut.warps, maxnreg=cut.registers, **flags,
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
        return "total", gate.new_empty(plan.B, plan.links, plan.C, dtype=torch.float32)
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
        plan = Plan.of("forward", h, log_a, phase)
        plan.launch(scan_forward, log_a, phase, packed(b), packed(state), packed(h), packed(final), plan)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.input_dtype = b.dtype
        return h, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        needs_a, needs_phase, needs_b, needs_state = ctx.needs_input_grad
        plan = Plan.of("backward", h, log_a, phase)
        db = torch.empty(h.shape, dtype=ctx.input_dtype, device=h.device) if needs_b else None
        dstate = torch.empty_like(state, memory_format=torch.contiguous_format) if needs_state else None
        a_kind, da = gate_gradient(log_a, needs_a, plan)
        p_kind, dphase = gate_gradient(phase, needs_phase, plan)
        plan.launch(
            scan_backward, log_a, phase, packed(g), packed(h), packed(state), packed(final_grad), plan,
            packed(db), da, dphase, packed(dstate), A_GRAD=a_kind, P_GRAD=p_kind,
        )  # fmt: skip
        return reduced(da, log_a), reduced(dphase, phase), db, dstate
