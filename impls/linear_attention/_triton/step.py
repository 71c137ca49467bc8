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
from .chunks import COUNTS

BLOCK = 4096  # elements of a program
WORDS = {torch.complex32: torch.int32, torch.complex64: torch.int64}  # as which elements are copied


@triton.jit(do_not_specialize=COUNTS)
def la_step(
    x, first, out, T, H, K: tl.constexpr, BLOCK: tl.constexpr, LATE: tl.constexpr, HAS_FIRST: tl.constexpr
):  # fmt: skip
    """out: x (B, T, H, K) one step early, and 0 in the last step.

    LATE: one step late, after first (B, H, K) or 0. A sequence is copied as one row of T · H · K elements.
    """
    step = H * K
    whole = tl.cast(T, tl.int64) * step
    blocks = tl.cdiv(whole, BLOCK)
    pid = tl.program_id(0).to(tl.int64)
    batch, begin = pid // blocks, pid % blocks * BLOCK
    cells = begin + tl.arange(0, BLOCK)
    sequence = batch * whole + cells
    if LATE:
        values = tl.load(x + sequence - step, mask=(cells >= step) & (cells < whole), other=0)
        if HAS_FIRST:
            starts = cells < step
            values = tl.where(starts, tl.load(first + batch * step + cells, mask=starts, other=0), values)
    else:
        values = tl.load(x + sequence + step, mask=cells < whole - step, other=0)
    tl.store(out + sequence, values, mask=cells < whole)


def launch_step(plan: Plan, x: Slot, first: Slot | None, *, late: bool) -> Slot:
    out, (B, T, H, K) = plan.like(x), x.shape
    x, first, words = (each and each.view(WORDS.get(each.dtype, each.dtype)) for each in (x, first, out))
    plan.launch(
        la_step, (B * triton.cdiv(T * H * K, BLOCK),), x, first or x, words, T, H, K=K, BLOCK=BLOCK,
        LATE=late, HAS_FIRST=first is not None, num_warps=4,
    )  # fmt: skip
    return out


@planned
def earlier(plan: Plan, x: Slot, *, keep: bool = False, begins: bool = False) -> tuple[Slot]:
    """x one step early, and 0 in its last step.

    keep: whether a backward pass may follow; begins: also from the first step of x.
    """
    if keep:
        gradient = replace(x, aligned=True)
        plan.expect(later, gradient, first_of(gradient) if begins else None)
    return (launch_step(plan, x, None, late=False),)


@planned
def later(plan: Plan, x: Slot, first: Slot | None, *, keep: bool = False) -> tuple[Slot]:
    """x one step late, after first (B · H · K) or 0. keep: whether a backward pass may follow."""
    if keep:
        plan.expect(earlier, replace(x, aligned=True))
    return (launch_step(plan, x, first, late=True),)


def first_of(x: Slot) -> Slot:
    """The gradient of x's first step as it is expected: flat, since torch strides one step as it likes."""
    size = x.numel() // max(1, x.shape[1])
    return replace(x, shape=torch.Size((size,)), strides=(1,))


def flat(x: Tensor | None) -> Tensor | None:
    """x in one contiguous row."""
    return None if x is None else packed(x).view(-1)


class Early(torch.autograd.Function):
    """x one step early, and its first step (B, 1, H, K). begins: whether that is used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, begins: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return earlier(packed(x), keep=True, begins=begins)[0], x[:, :1]

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(ctx: Any, dout: Tensor, dbegin: Tensor | None) -> tuple[Tensor, None]:
        (dx,) = later(packed(dout), flat(dbegin))
        return dx, None


class Late(torch.autograd.Function):
    """x one step late, after first (B, 1, H, K) or 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor | None) -> Tensor:
        ctx.has_first = first is not None
        (out,) = later(packed(x), flat(first), keep=True)
        return out

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor | None]:
        dout = packed(dout)
        (dx,) = earlier(dout)
        return dx, dout[:, :1] if ctx.has_first else None


def taken_early(x: Tensor, begins: bool) -> tuple[Tensor, Tensor]:
    """The results of `Early`, without what a backward pass would need."""
    return earlier(packed(x))[0], x[:, :1]


def taken_late(x: Tensor, first: Tensor | None) -> Tensor:
    """The result of `Late`, without what a backward pass would need."""
    out: Tensor = later(packed(x), flat(first))[0]
    return out
