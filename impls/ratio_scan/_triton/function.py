"""Launches, and the autograd function around the two passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..._autograd import once_differentiable
from ..._triton.host import flush, loop_bound, processors
from ..._triton.launch import Blocks
from ..._triton.plan import Plan, Slot, packed, planned
from .backward import ratio_scan_backward
from .forward import ratio_scan_forward
from .spans import ratio_scan_adjoints, ratio_scan_states
from .streamed import ratio_scan_backward_streamed, ratio_scan_forward_streamed
from .tiles import Tiles, tiles

# Warps a multiprocessor: with fewer than ENOUGH, time is cut into spans, for WANTED at most: as many as
# find room beside one another, so that none waits for a second turn.
ENOUGH = 2
WANTED = 8
FEWEST_TILES = 4  # of a span: each is read twice and waits for a launch between
SPAN_CHANNELS = 32  # of a program that joins spans


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes of a call, and how a pass cuts it: `length` tiles per span."""

    B: int
    T: int
    C: int
    cut: Tiles
    length: int

    @classmethod
    def of(cls, pass_: str, k: Slot) -> Schedule:
        B, T, C = k.shape
        cut = tiles(pass_, k.element_size())
        strands = max(1, B * triton.cdiv(C, cut.channels) * cut.warps)
        whole = triton.cdiv(T, cut.steps)
        device = processors(k.device)
        if strands >= ENOUGH * device:
            return cls(B, T, C, cut, whole)
        wanted = max(1, WANTED * device // strands)
        return cls(B, T, C, cut, min(whole, max(FEWEST_TILES, triton.cdiv(whole, wanted))))

    @property
    def spans(self) -> int:
        return triton.cdiv(triton.cdiv(self.T, self.cut.steps), self.length)

    @property
    def grid(self) -> tuple[int, int]:
        return self.B * triton.cdiv(self.C, self.cut.channels), self.spans

    @property
    def joint(self) -> tuple[int]:
        """Programs that join spans."""
        return (self.B * triton.cdiv(self.C, SPAN_CHANNELS),)

    @property
    def edges(self) -> tuple[int, ...]:
        """Shape of a state or adjoint per span."""
        return self.B, self.spans, 3, self.C

    @property
    def sizes(self) -> dict[str, Any]:
        return {
            "C": self.C, "R": self.cut.steps, "BC": self.cut.channels, "WHOLE": self.T % self.cut.steps == 0,
            "FLUSH": flush(), "num_warps": self.cut.warps,
        }  # fmt: skip

    def streams(self, *data: Slot) -> bool:
        """Whether tiles come through shared memory: one span of whole tiles, rows of whole 16 bytes."""
        device = data[0].device
        return (
            self.cut.stages > 0
            and self.spans == 1
            and self.T % self.cut.steps == 0
            and self.B * self.T < 2**31
            and all(x.aligned and self.C * x.element_size() % 16 == 0 for x in data)
            and (device.type == "cpu" or torch.cuda.get_device_capability(device) >= (9, 0))
        )

    def blocks(self, x: Slot) -> Blocks:
        return Blocks(x, (self.B * self.T, self.C), (self.cut.steps, self.cut.channels))

    @property
    def streamed(self) -> dict[str, Any]:
        kept = ("C", "R", "BC", "FLUSH", "num_warps")
        return {name: self.sizes[name] for name in kept} | {"STAGES": self.cut.stages}


def over_batch(log_w: Slot) -> int:
    """Stride over the batch, 0 where the decays broadcast."""
    return 0 if log_w.shape[0] == 1 else log_w.shape[2]


@planned
def forward_pass(
    plan: Plan, log_w: Slot, k: Slot, v: Slot, state: Slot | None, bonus: Slot | None, *, save: bool
) -> tuple[Slot | None, ...]:
    """y, the final state, and where it is wanted the states before backward's tiles. All are contiguous."""
    schedule = Schedule.of("forward", k)
    B, T, C = k.shape
    y, final = plan.like(v), plan.empty((B, 3, C), torch.float32)
    step, marks = schedule.cut.steps, None
    if save:
        step = tiles("backward", k.element_size()).steps
        marks = plan.empty((B, triton.cdiv(T, step), 3, C), torch.float32)
    tail = (T, schedule.length, over_batch(log_w))
    entry = state
    if schedule.spans > 1:
        added, entry = (plan.empty(schedule.edges, torch.float32) for _ in range(2))
        plan.launch(
            ratio_scan_forward, schedule.grid, log_w, None, k, v, None, None, added, None, *tail,
            SUMMARY=True, **schedule.sizes, MARK=step,
        )  # fmt: skip
        plan.launch(
            ratio_scan_states, schedule.joint, log_w, state, added, entry,
            schedule.spans, schedule.length * schedule.cut.steps, over_batch(log_w),
            C=C, BC=SPAN_CHANNELS, FLUSH=flush(), num_warps=1,
        )  # fmt: skip
    if schedule.streams(k, v):
        plan.launch(
            ratio_scan_forward_streamed, schedule.grid,
            log_w, bonus, schedule.blocks(k), schedule.blocks(v), entry, y, final, marks,
            T, loop_bound(schedule.length), over_batch(log_w), **schedule.streamed, MARK=step,
        )  # fmt: skip
    else:
        plan.launch(
            ratio_scan_forward, schedule.grid, log_w, bonus, k, v, entry, y, final, marks, *tail,
            SUMMARY=False, **schedule.sizes, MARK=step,
        )  # fmt: skip
    return y, final, marks


@planned
def backward_pass(
    plan: Plan, log_w: Slot, k: Slot, v: Slot, bonus: Slot | None, final: Slot, marks: Slot,
    dy: Slot, final_grad: Slot, *, to_state: bool,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dk, dv, parts (B, spans, C) of the gradients of decays and bonus, and that of the initial state."""
    schedule = Schedule.of("backward", k)
    B, T, C = k.shape
    dk, dv = plan.like(k), plan.like(v)
    dw = plan.empty((B, schedule.spans, C), torch.float32)
    du = None if bonus is None else plan.like(dw)
    dstate = plan.like(final) if to_state else None
    tail = (T, schedule.length, over_batch(log_w))
    end = final_grad
    if schedule.spans > 1:
        added, end = (plan.empty(schedule.edges, torch.float32) for _ in range(2))
        plan.launch(
            ratio_scan_backward, schedule.grid,
            log_w, bonus, k, v, dy, marks, final, None, None, None, added, None, None, *tail,
            SUMMARY=True, **schedule.sizes,
        )  # fmt: skip
        plan.launch(
            ratio_scan_adjoints, schedule.joint, log_w, marks, final, final_grad, added, end,
            T, schedule.length, schedule.spans, over_batch(log_w),
            C=C, R=schedule.cut.steps, BC=SPAN_CHANNELS, FLUSH=flush(), num_warps=1,
        )  # fmt: skip
    if schedule.streams(k, v, dy):
        plan.launch(
            ratio_scan_backward_streamed, schedule.grid,
            log_w, bonus, schedule.blocks(k), schedule.blocks(v), schedule.blocks(dy), marks, final, end,
            dk, dv, dstate, dw, du, T, loop_bound(schedule.length), over_batch(log_w), **schedule.streamed,
        )  # fmt: skip
    else:
        plan.launch(
            ratio_scan_backward, schedule.grid,
            log_w, bonus, k, v, dy, marks, final, end, dk, dv, dstate, dw, du, *tail,
            SUMMARY=False, **schedule.sizes,
        )  # fmt: skip
    return dk, dv, dw, du, dstate


class RatioScan(torch.autograd.Function):
    """(log_w (1|B, 1, C), k, v, initial state or None, bonus (C) or None, save) → (y, final state).

    save: whether to save operands and states for a backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, log_w: Tensor, k: Tensor, v: Tensor, state: Tensor | None, bonus: Tensor | None, save: bool
    ) -> tuple[Tensor, Tensor]:
        k, v = packed(k), packed(v)
        y, final, marks = forward_pass(log_w, k, v, state, bonus, save=save)
        if save:
            ctx.save_for_backward(log_w, k, v, bonus, final, marks)
        return y, final

    @staticmethod
    @once_differentiable("ratio_scan/triton")
    def backward(ctx: Any, dy: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_w, k, v, bonus, final, marks = ctx.saved_tensors
        dk, dv, dw, du, dstate = backward_pass(
            log_w, k, v, bonus, final, marks, packed(dy), packed(final_grad),
            to_state=ctx.needs_input_grad[3],
        )  # fmt: skip
        over_spans = (0, 1) if log_w.shape[0] == 1 else 1
        summed = dw if dw.shape == log_w.shape else dw.sum(over_spans, keepdim=True)
        if du is not None:
            du = du.view(-1) if du.shape[:2] == (1, 1) else du.sum((0, 1))
        return summed, dk, dv, dstate, du, None
