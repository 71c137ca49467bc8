"""Launches with time innermost, and the autograd function around the two kernels.

Operands keep their logical shape (B, T, C); in memory they are (B, C, T), and so are outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from ..._autograd import once_differentiable
from ..._triton.host import flush, loop_bound, processors, strides
from ..._triton.plan import Plan, Slot, aligned, packed, planned
from ..._triton.slots import Step
from .function import bits, reduced, widths
from .tiles import row_tiles
from .time_last_backward import scan_backward_time_last
from .time_last_forward import scan_forward_time_last

# Rows per multiprocessor; with fewer, several warps share a row.
ENOUGH_ROWS = 8
LONGEST = 32  # more steps than a vector of a row ever has


def is_time_last(b: Tensor) -> bool:
    """Whether steps lie next to each other in memory."""
    return b.shape[1] > 1 and b.stride(1) == 1


def time_last(x: Tensor) -> Tensor:
    """x (B, T, C) with steps next to each other, copied only if they are not."""
    if x.shape[1] == 1 or x.stride(1) == 1:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def rows(x: Tensor) -> Tensor:
    """x (B, T, C) as rows of steps that follow one another, aligned: x itself where it lies like that."""
    if x.is_conj():
        x = x.resolve_conj()
    _, T, C = x.shape
    if x.stride() != (T * C, 1, T):
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return aligned(x)


def span(x: Tensor | Slot) -> int:
    """Elements of memory from the first one of x to its last one."""
    steps = x.stride() if isinstance(x, Tensor) else x.strides
    return 1 + sum([(size - 1) * step for size, step in zip(x.shape, steps, strict=True)])


def spare(x: Tensor | None) -> int:
    """Elements of memory behind the last one of x, as far as they may fill up a vector."""
    if x is None or (own := span(x)) % LONGEST == 0:
        return 0
    elements = int(x.untyped_storage().nbytes()) // x.element_size()
    return min(elements - int(x.storage_offset()) - own, LONGEST)


def missing(x: Slot, steps: int) -> int:
    """Elements that fill up the last vector of `steps` of x."""
    return -span(x) % steps


class Extend(Step):
    """A step of a plan: copy rows to the start of a longer memory."""

    def __init__(self, source: Slot, to: Slot) -> None:
        self.source, self.to = source, to
        self.uses = frozenset((source.index, to.index))

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        x, room = tensors[self.source.index], tensors[self.to.index]
        assert x is not None and room is not None
        room[: x.numel()].copy_(x.transpose(1, 2).reshape(-1))


def in_vectors(plan: Plan, x: Slot, steps: int, room: int) -> Slot:
    """Rows, or a copy of them, with memory of their own up to the end of the last vector of `steps`.

    Kernels read whole vectors where T is no multiple of one. room: elements behind the last one of x.
    """
    if missing(x, steps) <= room:
        return x
    longer = plan.empty((x.numel() + missing(x, steps),), x.dtype)
    plan.steps.append(Extend(x, longer))
    return longer


def empty(plan: Plan, like: Slot, dtype: torch.dtype) -> Slot:
    """Room for rows of steps."""
    _, T, C = like.shape
    return plan.empty(like.shape, dtype, (T * C, 1, T))


def over_time(gate: Slot | None) -> int:
    """Stride over time: 1, or 0 where the gate is the same at every step."""
    return int(gate is not None and gate.shape[1] > 1)


def lies_along(gate: Slot, like: Slot, steps: int, room: int) -> bool:
    """Whether its rows begin at the same places of vectors of so many steps as those of h.

    And whether its memory holds the last vector.
    """
    B, T, C = like.shape
    by_batch, by_channel = strides(gate, 0, 2)
    batches = B == 1 or (by_batch - C * T) % steps == 0
    channels = C == 1 or (by_channel - T) % steps == 0
    return batches and channels and gate.aligned and missing(gate, steps) <= room


def launch(
    plan: Plan, pass_: str, kernel: Any, like: Slot, gates: tuple[Slot, Slot | None], read: tuple[Slot, ...],
    *operands: Slot | None, room: Sequence[int], **flags: Any,
) -> None:  # fmt: skip
    """Launch a pass over h, which is like `like`. `read`, then `operands`, follow the gates.

    room: elements of memory behind the gates and what is read.
    """
    B, T, C = like.shape
    log_a, phase = gates
    enough = ENOUGH_ROWS * processors(like.device)
    cut = row_tiles(pass_, widths(like, log_a, phase), few=enough > B * C)
    length = cut.steps * cut.runs
    ragged = T % cut.steps > 0
    count = triton.cdiv(T + cut.steps - 1 if ragged else T, length)
    along = all(
        lies_along(gate, like, cut.steps, spare)
        for gate, spare in zip(gates, room[:2], strict=True)
        if gate is not None and over_time(gate)
    )
    inputs = [in_vectors(plan, x, cut.steps, spare).bits() for x, spare in zip(read, room[2:], strict=True)]
    plan.launch(
        kernel, (B * C,), log_a, phase, *inputs, *map(bits, operands),
        T, C, loop_bound(count), *strides(log_a, 0, 2), *strides(phase, 0, 2),
        A_TIME=over_time(log_a), P_TIME=over_time(phase), ALONG=along,
        COMPLEX=phase is not None, WHOLE=T % length == 0, RAGGED=ragged,
        FLUSH=flush(), R=cut.steps, RUNS=cut.runs, STAGES=cut.stages,
        num_warps=cut.warps, maxnreg=cut.registers, **flags,
    )  # fmt: skip


def gate_gradient(plan: Plan, gate: Slot | None, wanted: bool, like: Slot) -> tuple[str, Slot | None]:
    """How a gate's gradient leaves the kernel, and its buffer, with the axes (B, T, C)."""
    if gate is None or not wanted:
        return "none", None
    if gate.shape[1] == 1:
        return "total", plan.empty((like.shape[0], 1, like.shape[2]), torch.float32)
    return "elements", empty(plan, like, gate.dtype if gate.shape == like.shape else torch.float32)


def summed(partial: Tensor | None, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient from its buffer, summed over the axes along which the gate broadcasts."""
    if partial is None or gate is None:
        return None
    if partial.shape == gate.shape:
        return reduced(partial, gate)
    found = reduced(partial.transpose(1, 2), gate.transpose(1, 2))
    return None if found is None else found.transpose(1, 2)


@planned
def forward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, b: Slot, state: Slot | None, *, room: tuple[int, ...]
) -> tuple[Slot, Slot]:
    """(h, h_T) of rows b (B, T, C) and a packed state (B, C)."""
    wide = torch.float32 if phase is None else torch.complex64
    h = empty(plan, b, b.dtype if phase is None else wide)
    final = plan.empty((b.shape[0], b.shape[2]), wide)
    launch(plan, "forward", scan_forward_time_last, h, (log_a, phase), (b,), state, h, final, room=room)
    return h, final


@planned
def backward_pass(
    plan: Plan, log_a: Slot, phase: Slot | None, h: Slot, state: Slot | None, g: Slot, final_grad: Slot,
    *, needs: tuple[bool, ...], dtype: torch.dtype, room: tuple[int, ...],
) -> tuple[Slot | None, ...]:  # fmt: skip
    """Buffers of the gates' gradients, db in a dtype, and dh_0, as far as `needs` has them."""
    needs_a, needs_phase, needs_b, needs_state = needs
    db = empty(plan, h, dtype) if needs_b else None
    dstate = plan.like(state) if needs_state and state is not None else None
    a_kind, da = gate_gradient(plan, log_a, needs_a, h)
    p_kind, dphase = gate_gradient(plan, phase, needs_phase, h)
    launch(
        plan, "backward", scan_backward_time_last, h, (log_a, phase), (g, h), state, final_grad,
        db, da, dphase, dstate, A_GRAD=a_kind, P_GRAD=p_kind, room=room,
    )  # fmt: skip
    return da, dphase, db, dstate


class TimeLastScan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        log_a = time_last(log_a)
        phase = None if phase is None else time_last(phase)
        state = None if state is None else packed(state)
        x = rows(b)
        room = spare(log_a), spare(phase), spare(x)
        h, final = forward_pass(log_a, phase, x, state, room=room)
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.input_dtype, ctx.room = b.dtype, room[:2]
        return h, final

    @staticmethod
    @once_differentiable("scan/triton")
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        g, h = rows(g), rows(h)
        da, dphase, db, dstate = backward_pass(
            log_a, phase, h, state, g, packed(final_grad),
            needs=ctx.needs_input_grad, dtype=ctx.input_dtype, room=(*ctx.room, spare(g), spare(h)),
        )  # fmt: skip
        return summed(da, log_a), summed(dphase, phase), db, dstate
