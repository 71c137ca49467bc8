"""Launches, and the autograd function around the two passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

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


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a call, and how a pass cuts it: `length` tiles a span."""

    B: int
    T: int
    C: int
    cut: Tiles
    length: int

    @classmethod
    def of(cls, pass_: str, k: Tensor) -> Plan:
        B, T, C = k.shape
        cut = tiles(pass_, k.element_size())
        strands = B * triton.cdiv(C, cut.channels) * cut.warps
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

    def states(self, like: Tensor) -> Tensor:
        """Room for a state or adjoint a span."""
        return like.new_empty(self.B, self.spans, 3, self.C, dtype=torch.float32)

    @property
    def sizes(self) -> dict[str, Any]:
        return {
            "C": self.C, "R": self.cut.steps, "BC": self.cut.channels, "WHOLE": self.T % self.cut.steps == 0,
            "FLUSH": flush(), "num_warps": self.cut.warps,
        }  # fmt: skip

    def streams(self, *data: Tensor) -> bool:
        """Whether tiles come through shared memory: one span of whole tiles, rows of whole 16 bytes."""
        device = data[0].device
        return (
            self.cut.stages > 0
            and self.spans == 1
            and self.T % self.cut.steps == 0
            and self.B * self.T < 2**31
            and all(x.data_ptr() % 16 == 0 and self.C * x.element_size() % 16 == 0 for x in data)
            and (device.type == "cpu" or torch.cuda.get_device_capability(device) >= (9, 0))
        )

    def blocks(self, x: Tensor) -> TensorDescriptor:
        block = [self.cut.steps, self.cut.channels]
        return TensorDescriptor.from_tensor(x.view(self.B * self.T, self.C), block)

    @property
    def streamed(self) -> dict[str, Any]:
        kept = ("C", "R", "BC", "FLUSH", "num_warps")
        return {name: self.sizes[name] for name in kept} | {"STAGES": self.cut.stages}


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return triton.language.constexpr(count) if triton.knobs.runtime.interpret else count


def flush() -> bool:
    """Whether kernels use NVIDIA's instructions, which the interpreter lacks."""
    return not triton.knobs.runtime.interpret


def over_batch(log_w: Tensor) -> int:
    """Stride over the batch, 0 where the decays broadcast."""
    return 0 if log_w.shape[0] == 1 else log_w.shape[2]


class RatioScan(torch.autograd.Function):
    """(log_w (1|B, 1, C), k, v, initial state or None, bonus (C) or None) → (y, final state)."""

    @staticmethod
    def forward(
        ctx: Any, log_w: Tensor, k: Tensor, v: Tensor, state: Tensor | None, bonus: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        k, v = k.contiguous(), v.contiguous()
        plan = Plan.of("forward", k)
        B, T, C = k.shape
        y = torch.empty_like(v)
        final = k.new_empty(B, 3, C, dtype=torch.float32)
        step, marks = plan.cut.steps, None
        if any(ctx.needs_input_grad):
            step = tiles("backward", k.element_size()).steps
            marks = k.new_empty(B, triton.cdiv(T, step), 3, C, dtype=torch.float32)
        tail = (T, plan.length, over_batch(log_w))
        sizes = plan.sizes | {"MARK": step}
        with torch.cuda.device_of(k):
            entry = state
            if plan.spans > 1:
                added, entry = plan.states(k), plan.states(k)
                ratio_scan_forward[plan.grid](
                    log_w, None, k, v, None, None, added, None, *tail, SUMMARY=True, **sizes
                )
                ratio_scan_states[plan.joint](
                    log_w, state, added, entry, plan.spans, plan.length * plan.cut.steps, over_batch(log_w),
                    C=C, BC=SPAN_CHANNELS, FLUSH=flush(), num_warps=1,
                )  # fmt: skip
            if plan.streams(k, v):
                ratio_scan_forward_streamed[plan.grid](
                    log_w, bonus, plan.blocks(k), plan.blocks(v), entry, y, final, marks, T,
                    loop_bound(plan.length), over_batch(log_w), **plan.streamed, MARK=step,
                )  # fmt: skip
            else:
                ratio_scan_forward[plan.grid](
                    log_w, bonus, k, v, entry, y, final, marks, *tail, SUMMARY=False, **sizes
                )
        ctx.save_for_backward(log_w, k, v, bonus, final, marks)
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_w, k, v, bonus, final, marks = ctx.saved_tensors
        dy, final_grad = dy.contiguous(), final_grad.contiguous()
        plan = Plan.of("backward", k)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        dw = k.new_empty(plan.B, plan.spans, plan.C, dtype=torch.float32)
        du = None if bonus is None else torch.empty_like(dw)
        dstate = torch.empty_like(final) if ctx.needs_input_grad[3] else None
        tail = (plan.T, plan.length, over_batch(log_w))
        with torch.cuda.device_of(k):
            end = final_grad
            if plan.spans > 1:
                added, end = plan.states(k), plan.states(k)
                ratio_scan_backward[plan.grid](
                    log_w, bonus, k, v, dy, marks, final, None, None, None, added, None, None, *tail,
                    SUMMARY=True, **plan.sizes,
                )  # fmt: skip
                ratio_scan_adjoints[plan.joint](
                    log_w, marks, final, final_grad, added, end, plan.T, plan.length, plan.spans,
                    over_batch(log_w), C=plan.C, R=plan.cut.steps, BC=SPAN_CHANNELS, FLUSH=flush(),
                    num_warps=1,
                )  # fmt: skip
            if plan.streams(k, v, dy):
                ratio_scan_backward_streamed[plan.grid](
                    log_w, bonus, plan.blocks(k), plan.blocks(v), plan.blocks(dy), marks, final, end, dk, dv,
                    dstate, dw, du, plan.T, loop_bound(plan.length), over_batch(log_w), **plan.streamed,
                )  # fmt: skip
            else:
                ratio_scan_backward[plan.grid](
                    log_w, bonus, k, v, dy, marks, final, end, dk, dv, dstate, dw, du, *tail,
                    SUMMARY=False, **plan.sizes,
                )  # fmt: skip
        to_w = dw.sum(1, keepdim=True) if log_w.shape[0] > 1 else dw.sum((0, 1), keepdim=True)
        return to_w, dk, dv, dstate, None if du is None else du.sum((0, 1))
