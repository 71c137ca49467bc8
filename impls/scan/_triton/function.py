"""Launches, and the autograd function around the two kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..._autograd import once_differentiable
from ..._triton.host import flush, loop_bound, processors, strides
from ..._triton.plan import Plan, Slot, packed, planned
from .backward import scan_backward
from .chain import EMPTY, HEAD
from .forward import scan_forward
from .tiles import Tiles, tiles

# Strands a multiprocessor; with fewer, a pass is a chain.
ENOUGH = 1


def widths(data: Slot, *gates: Slot | None) -> str:
    """Name the widths of data, and of gates that differ from step to step, as the table of tiles does."""
    if data.is_complex():
        return "complex"
    if data.element_size() == 4:
        return "float32"
    wide = any(gate is not None and gate.shape[1] > 1 and gate.element_size() == 4 for gate in gates)
    return "mixed" if wide else "half"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes of a call and tile sizes of a pass. A strand is one batch element's block of channels.

    A program walks the tiles of a strand or, in a chain, computes one of them.
    """

    B: int
    T: int
    C: int
    cut: Tiles
    chained: bool

    @classmethod
    def of(cls, pass_: str, h: Slot, *gates: Slot | None) -> Schedule:
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

    def words(self, plan: Plan, *, is_complex: bool) -> Slot | None:
        """Room for what the programs of a chain publish: tiles' maps, and states after groups of tiles."""
        if not self.chained:
            return None
        rows = self.tiles * (2 if is_complex else 1) + triton.cdiv(self.tiles, self.cut.runs)
        return plan.full((HEAD.value + self.B * rows * self.C,), EMPTY.value, torch.int64)

    def sizes(self, log_a: Slot, phase: Slot | None) -> tuple[Any, ...]:
        """The kernels' arguments after the tensors."""
        return self.T, self.C, loop_bound(self.tiles), *strides(log_a, 0, 1), *strides(phase, 0, 1)

    def constants(self, log_a: Slot, phase: Slot | None) -> dict[str, Any]:
        cut = self.cut
        return {
            "A_CHANNEL": over_channels(log_a), "P_CHANNEL": over_channels(phase),
            "VARIES": any(gate is not None and gate.shape[1] > 1 for gate in (log_a, phase)),
            "COMPLEX": phase is not None, "WHOLE": self.T % cut.steps == 0, "FLUSH": flush(),
            "R": cut.steps, "RUNS": cut.runs, "BC": cut.channels, "VECTOR": cut.vector, "STAGES": cut.stages,
            "num_warps": cut.warps, "maxnreg": cut.registers,
        }  # fmt: skip

    @property
    def grid(self) -> tuple[int]:
        return (self.B * self.blocks * self.links,)


def over_channels(gate: Slot | None) -> int:
    """Stride over the channels: 1, or 0 where the gate broadcasts."""
    return int(gate is not None and gate.shape[2] > 1)


def bits(x: Slot | None) -> Slot | None:
    """A complex64 as one int64."""
    return None if x is None else x.bits()


def gate_gradient(plan: Plan, gate: Slot | None, wanted: bool, schedule: Schedule) -> tuple[str, Slot | None]:
    """How a gate's gradient leaves the kernel, and its buffer: never more than the axes that the gate has."""
    if gate is None or not wanted:
        return "none", None
    B, T, C = schedule.B, schedule.T, schedule.C
    if gate.shape[1] == 1:
        return "total", plan.empty((B, schedule.links, C), torch.float32)
    if gate.shape[2] == 1:
        return "rows", plan.empty((B, T, schedule.blocks), torch.float32)
    return "elements", plan.empty((B, T, C), gate.dtype if gate.shape[0] == B else torch.float32)


def reduced(partial: Tensor | None, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient from its buffer, summed over the axes along which the gate broadcasts."""
    if partial is None or gate is None:
        return None
    if partial.shape != gate.shape:
        axes = [axis for axis in range(3) if gate.shape[axis] == 1 and partial.shape[axis] > 1]
        partial = partial.sum(axes, keepdim=True)
    return partial if partial.dtype == gate.dtype else partial.to(gate.dtype)


@planned
def forward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, b: Slot, state: Slot | None
) -> tuple[Slot, Slot]:
    """(h, h_T) of b (B, T, C) and a state (B, C), both packed."""
    B, _, C = b.shape
    wide = torch.float32 if phase is None else torch.complex64
    h = plan.like(b, b.dtype if phase is None else wide)
    final = plan.empty((B, C), wide)
    schedule = Schedule.of("forward", h, log_a, phase)
    words = schedule.words(plan, is_complex=phase is not None)
    plan.launch(
        scan_forward, schedule.grid, log_a, phase, b.bits(), bits(state), h.bits(), final.bits(), words,
        *schedule.sizes(log_a, phase), **schedule.constants(log_a, phase),
    )  # fmt: skip
    return h, final


@planned
def backward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, h: Slot, state: Slot | None, g: Slot, final_grad: Slot,
    *, needs: tuple[bool, ...], dtype: torch.dtype,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """Buffers of the gates' gradients, db in a dtype, and dh_0, as far as `needs` has them."""
    needs_a, needs_phase, needs_b, needs_state = needs
    schedule = Schedule.of("backward", h, log_a, phase)
    db = plan.like(h, dtype) if needs_b else None
    dstate = plan.like(state) if needs_state and state is not None else None
    a_kind, da = gate_gradient(plan, log_a, needs_a, schedule)
    p_kind, dphase = gate_gradient(plan, phase, needs_phase, schedule)
    words = schedule.words(plan, is_complex=phase is not None)
    plan.launch(
        scan_backward, schedule.grid, log_a, phase, g.bits(), h.bits(), bits(state), final_grad.bits(), words,
        bits(db), da, dphase, bits(dstate), *schedule.sizes(log_a, phase),
        A_GRAD=a_kind, P_GRAD=p_kind, **schedule.constants(log_a, phase),
    )  # fmt: skip
    return da, dphase, db, dstate


class Scan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        state = None if state is None else packed(state)
        h, final = forward_pass(log_a, phase, packed(b), state)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.input_dtype = b.dtype
        return h, final

    @staticmethod
    @once_differentiable("scan/triton")
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        da, dphase, db, dstate = backward_pass(
            log_a, phase, h, state, packed(g), packed(final_grad),
            needs=ctx.needs_input_grad, dtype=ctx.input_dtype,
        )  # fmt: skip
        return reduced(da, log_a), reduced(dphase, phase), db, dstate
