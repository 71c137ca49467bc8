"""Launches with time innermost, and the autograd function around the two kernels.

Operands keep their logical shape (B, T, C); in memory they are (B, C, T), and so are outputs and gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from .function import loop_bound, processors, reduced, widths
from .tiles import row_tiles
from .time_last_backward import scan_backward_time_last
from .time_last_forward import scan_forward_time_last

# Rows a multiprocessor; with fewer, several warps share a row.
ENOUGH_ROWS = 8
VECTOR = 16  # bytes


def is_time_last(b: Tensor) -> bool:
    """Whether steps lie next to each other in memory."""
    return b.shape[1] > 1 and b.stride(1) == 1


def time_last(x: Tensor) -> Tensor:
    """x (B, T, C) with steps next to each other, copied only if they are not."""
    if x.shape[1] == 1 or x.stride(1) == 1:
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def rows(x: Any) -> Any:
    """(B, C, T), contiguous and aligned, a complex64 as one int64: x itself where it lies like that."""
    if x is None:
        return None
    x = x.resolve_conj().transpose(1, 2).contiguous()
    if x.data_ptr() % VECTOR:
        x = x.clone()
    return x.view(torch.int64) if x.is_complex() else x


def in_vectors(x: Tensor, steps: int) -> Tensor:
    """x (B, C, T), or a copy of it, with memory of its own up to the end of its last vector of `steps`.

    Kernels read whole vectors where T is no multiple of one.
    """
    whole = triton.cdiv(x.numel(), steps) * steps
    if covers(x, whole):
        return x
    room = x.new_empty(whole)
    room[: x.numel()] = x.reshape(-1)
    return room[: x.numel()].view(x.shape)


def covers(x: Tensor, whole: int) -> bool:
    """Whether the memory of x reaches so many elements from its first one."""
    return (x.storage_offset() + whole) * x.element_size() <= x.untyped_storage().nbytes()


def words(state: Tensor | None) -> Tensor | None:
    """(B, C) contiguous, a complex64 as one int64."""
    if state is None:
        return None
    state = state.resolve_conj().contiguous()
    return state.view(torch.int64) if state.is_complex() else state


def empty(like: Tensor, dtype: torch.dtype) -> Tensor:
    B, T, C = like.shape
    return torch.empty(B, C, T, dtype=dtype, device=like.device).transpose(1, 2)


def strides(gate: Tensor | None) -> tuple[int, int]:
    """Strides over batch and channels, 0 where the gate broadcasts."""
    if gate is None:
        return 0, 0
    return tuple(0 if gate.shape[axis] == 1 else gate.stride(axis) for axis in (0, 2))


def over_time(gate: Tensor | None) -> int:
    """Stride over time: 1, or 0 where the gate is the same at every step."""
    return int(gate is not None and gate.shape[1] > 1)


def lies_along(gate: Tensor, like: Tensor, steps: int) -> bool:
    """Whether its rows begin at the same places of vectors of so many steps as those of h.

    And whether its memory holds the last vector.
    """
    B, T, C = like.shape
    by_batch, by_channel = strides(gate)
    span = 1 + sum((size - 1) * stride for size, stride in zip(gate.shape, gate.stride(), strict=True))
    batches = B == 1 or (by_batch - C * T) % steps == 0
    channels = C == 1 or (by_channel - T) % steps == 0
    whole = triton.cdiv(span, steps) * steps
    return batches and channels and gate.data_ptr() % VECTOR == 0 and covers(gate, whole)


def launch(
    pass_: str,
    kernel: Any,
    like: Tensor,
    log_a: Tensor,
    phase: Tensor | None,
    read: tuple[Tensor, ...],
    *operands: Any,
    **flags: Any,
) -> None:
    """Launch a pass over h, which is like `like`. `read` (B, T, C), then `operands`, follow the gates."""
    B, T, C = like.shape
    enough = ENOUGH_ROWS * processors(like.device)
    cut = row_tiles(pass_, widths(like, log_a, phase), few=enough > B * C)
    length = cut.steps * cut.runs
    ragged = T % cut.steps > 0
    count = triton.cdiv(T + cut.steps - 1 if ragged else T, length)
    along = all(lies_along(gate, like, cut.steps) for gate in (log_a, phase) if over_time(gate))
    inputs = [in_vectors(rows(x), cut.steps) for x in read]
    with torch.cuda.device_of(log_a):
        kernel[(B * C,)](
            log_a, phase, *inputs, *operands, T, C, loop_bound(count), *strides(log_a), *strides(phase),
            A_TIME=over_time(log_a), P_TIME=over_time(phase), ALONG=along,
            COMPLEX=phase is not None, WHOLE=T % length == 0, RAGGED=ragged,
            FLUSH=not triton.knobs.runtime.interpret, R=cut.steps, RUNS=cut.runs, STAGES=cut.stages,
            num_warps=cut.warps, maxnreg=cut.registers, **flags,
        )  # fmt: skip


def gate_gradient(gate: Tensor | None, wanted: bool, like: Tensor) -> tuple[str, Tensor | None]:
    """How a gate's gradient leaves the kernel, and its buffer, with the axes (B, T, C)."""
    if gate is None or not wanted:
        return "none", None
    if gate.shape[1] == 1:
        return "total", gate.new_empty(like.shape[0], 1, like.shape[2], dtype=torch.float32)
    return "elements", empty(like, gate.dtype if gate.shape == like.shape else torch.float32)


def summed(partial: Tensor | None, gate: Tensor | None) -> Tensor | None:
    """A gate's gradient from its buffer, summed over the axes along which the gate broadcasts."""
    if partial is None or gate is None:
        return None
    return reduced(partial.transpose(1, 2), gate.transpose(1, 2)).transpose(1, 2)


class TimeLastScan(torch.autograd.Function):
    """(log_a, phase or None, b, initial state or None) → (h, h_T); saves all but b."""

    @staticmethod
    def forward(
        ctx: Any, log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        log_a = time_last(log_a)
        phase = None if phase is None else time_last(phase)
        wide = torch.float32 if phase is None else torch.complex64
        h = empty(b, b.dtype if phase is None else wide)
        final = torch.empty(b.shape[0], b.shape[2], dtype=wide, device=b.device)
        launch("forward", scan_forward_time_last, h, log_a, phase, (b,), words(state), rows(h), words(final))
        ctx.save_for_backward(log_a, phase, h, state)
        ctx.input_dtype = b.dtype
        return h, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h, state = ctx.saved_tensors
        needs_a, needs_phase, needs_b, needs_state = ctx.needs_input_grad
        db = empty(h, ctx.input_dtype) if needs_b else None
        dstate = torch.empty_like(state, memory_format=torch.contiguous_format) if needs_state else None
        a_kind, da = gate_gradient(log_a, needs_a, h)
        p_kind, dphase = gate_gradient(phase, needs_phase, h)
        launch(
            "backward", scan_backward_time_last, h, log_a, phase, (g, h), words(state), words(final_grad),
            rows(db), rows(da), rows(dphase), words(dstate), A_GRAD=a_kind, P_GRAD=p_kind,
        )  # fmt: skip
        return summed(da, log_a), summed(dphase, phase), db, dstate
