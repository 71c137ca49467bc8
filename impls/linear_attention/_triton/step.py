"""Sequences (B, T, H, ·) one step early or late, which a read before the write needs.

Each is the other's adjoint: the first step, which the early sequence lacks, is what the late one begins with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._autograd import once_differentiable
from ..._triton.plan import Plan, Slot, packed, planned
from ..._triton.sequences import Packing, chunk_sequence, chunk_steps, first_steps
from .chunks import COUNTS

BLOCK = 4096  # elements of a program
STEPS = 64  # of a packed sequence, which are copied as one row
WORDS = {torch.complex32: torch.int32, torch.complex64: torch.int64}  # as which elements are copied


@triton.jit(do_not_specialize=COUNTS)
def la_step(
    x, first, out, T, H, NT, places, K: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
    LATE: tl.constexpr, HAS_FIRST: tl.constexpr,
):  # fmt: skip
    """out: x (B, T, H, K) one step early, and 0 in the last step.

    LATE: one step late, after first (B, H, K) or 0. A sequence is copied as one row of T · H · K elements,
    packed ones in rows of C steps.
    """
    step = H * K
    whole = tl.cast(C if places is not None else T, tl.int64) * step
    blocks = tl.cdiv(whole, BLOCK)
    pid = tl.program_id(0).to(tl.int64)
    batch, begin = pid // blocks, pid % blocks * BLOCK
    cells = begin + tl.arange(0, BLOCK)
    sequence, inside = batch * whole + cells, cells < whole
    late, early = cells >= step, cells < whole - step  # in the sequence, too
    if places is not None:
        start, end = chunk_steps(batch, T, NT, places, C)
        batch, passed = chunk_sequence(batch, 0, 1, NT, places, C)
        sequence, left = start * step + cells, (end - start) * step
        inside = inside & (cells < left)
        late, early = late | (passed > 0), cells < left - step
    if LATE:
        values = tl.load(x + sequence - step, mask=inside & late, other=0)
        if HAS_FIRST:
            starts = tl.load(first + batch * step + cells, mask=cells < step, other=0)
            values = tl.where(late, values, starts)
    else:
        values = tl.load(x + sequence + step, mask=inside & early, other=0)
    tl.store(out + sequence, values, mask=inside)


def launch_step(plan: Plan, x: Slot, first: Slot | None, bounds: Slot | None, *, late: bool) -> Slot:
    out, (rows, T, H, K) = plan.like(x), x.shape
    packing, steps = Packing.of(plan, bounds, T, STEPS), T
    if packing is not None:
        rows, steps = packing.count, STEPS
    x, first, words = (each and each.view(WORDS.get(each.dtype, each.dtype)) for each in (x, first, out))
    plan.launch(
        la_step, (rows * triton.cdiv(steps * H * K, BLOCK),), x, first or x, words, T, H, rows,
        packing and packing.places, K=K, C=STEPS, BLOCK=BLOCK, LATE=late, HAS_FIRST=first is not None,
        num_warps=4,
    )  # fmt: skip
    return out


@planned
def earlier(
    plan: Plan, x: Slot, bounds: Slot | None, *, keep: bool = False, begins: bool = False
) -> tuple[Slot]:
    """x one step early, and 0 in its last step.

    keep: whether a backward pass may follow; begins: also from the first step of x.
    """
    if keep:
        gradient = replace(x, aligned=True)
        plan.expect(later, gradient, first_of(gradient, bounds) if begins else None, bounds)
    return (launch_step(plan, x, None, bounds, late=False),)


@planned
def later(plan: Plan, x: Slot, first: Slot | None, bounds: Slot | None, *, keep: bool = False) -> tuple[Slot]:
    """x one step late, after first (B · H · K) or 0. keep: whether a backward pass may follow."""
    if keep:
        plan.expect(earlier, replace(x, aligned=True), bounds)
    return (launch_step(plan, x, first, bounds, late=True),)


def first_of(x: Slot, bounds: Slot | None) -> Slot:
    """The gradient of x's first step as it is expected: flat, since torch strides one step as it likes."""
    size = x.numel() // max(1, x.shape[1]) * (bounds.shape[0] - 1 if bounds else 1)
    return replace(x, shape=torch.Size((size,)), strides=(1,))


def flat(x: Tensor | None) -> Tensor | None:
    """x in one contiguous row."""
    return None if x is None else packed(x).view(-1)


class Early(torch.autograd.Function):
    """x one step early, and the first step of each sequence (B, 1, H, K). begins: whether that is used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bounds: Tensor | None, begins: bool) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(bounds)
        (early,) = earlier(packed(x), bounds, keep=True, begins=begins)
        return early, first_steps(x, bounds) if begins else None

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(ctx: Any, dout: Tensor, dbegin: Tensor | None) -> tuple[Tensor, None, None]:
        (dx,) = later(packed(dout), flat(dbegin), *ctx.saved_tensors)
        return dx, None, None


class Late(torch.autograd.Function):
    """x one step late, after first (B, 1, H, K), of each packed sequence, or 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor | None, bounds: Tensor | None) -> Tensor:
        ctx.has_first = first is not None
        ctx.save_for_backward(bounds)
        (out,) = later(packed(x), flat(first), bounds, keep=True)
        return out

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor | None, None]:
        dout, (bounds,) = packed(dout), ctx.saved_tensors
        (dx,) = earlier(dout, bounds)
        return dx, first_steps(dout, bounds) if ctx.has_first else None, None


def taken_early(x: Tensor, bounds: Tensor | None, begins: bool) -> tuple[Tensor, Tensor | None]:
    """The results of `Early`, without what a backward pass would need."""
    return earlier(packed(x), bounds)[0], first_steps(x, bounds) if begins else None


def taken_late(x: Tensor, first: Tensor | None, bounds: Tensor | None) -> Tensor:
    """The result of `Late`, without what a backward pass would need."""
    out: Tensor = later(packed(x), flat(first), bounds)[0]
    return out
