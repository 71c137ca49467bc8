"""The bonus of a read before the write, added in one pass over the operands.

o_t = S_{t-1}ᵀ q_t + w_t v_t with w_t = Σ_c q_tc u_c k_tc. The first term is what a read after the write gives
one step earlier, for queries that come one step early: here `before`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._triton.plan import Plan, Slot, packed, planned
from .blocks import head_offset, load_chunk, locate_heads_first
from .chunks import COUNTS

ELEMENTS = 4096  # of a program's tile; fewer steps where rows are wider


@triton.jit
def weighted(
    q, k, u, token, head, left, H, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """C steps of q, of k and of q ⊙ u from row `token` on, and the bonus (1, BK) of the head; float32."""
    keys = tl.arange(0, BK)
    q_tile = load_chunk(q + token * K, left, H * K, keys, C, K).to(tl.float32)
    k_tile = load_chunk(k + token * K, left, H * K, keys, C, K).to(tl.float32)
    gain = tl.load(u + head * K + keys, mask=keys < K, other=0.0)[None, :]
    return q_tile, k_tile, gain, tl.sum(q_tile * gain * k_tile, axis=1)


@triton.jit(do_not_specialize=COUNTS)
def la_bonus(
    q, k, v, u, before, first, out, T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):  # fmt: skip
    """out, `before` and v (B, T, H, V); first: S_0ᵀ q_0 (B, H, V), else 0."""
    _, chunk, bh = locate_heads_first(H, NT, 1)
    token, left = head_offset(bh, T, H) + chunk * C * H, T - chunk * C
    _, _, _, weight = weighted(q, k, u, token, bh % H, left, H, K, C, BK)
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, BV)[None, :]
    inside, at = (rows < left) & (columns < V), rows * (H * V) + columns
    starts = chunk * C + rows == 0
    result = tl.load(before + (token - H) * V + at, mask=inside & (rows + chunk * C > 0), other=0.0)
    result = result.to(tl.float32)
    if HAS_FIRST:
        begin = tl.load(first + bh * V + columns, mask=columns < V, other=0.0).to(tl.float32)
        result = tl.where(starts, begin, result)
    result += weight[:, None] * tl.load(v + token * V + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * V + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def la_bonus_grads(
    q, k, v, u, do, dq, dk, dv, du, dbefore, T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradients of what the bonus adds; du: parts (B·H, chunks, K) float32.

    dbefore: do one step early, and 0 in the last step, which nothing reads.
    """
    _, chunk, bh = locate_heads_first(H, NT, 1)
    token, left = head_offset(bh, T, H) + chunk * C * H, T - chunk * C
    q_tile, k_tile, gain, weight = weighted(q, k, u, token, bh % H, left, H, K, C, BK)
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, BV)[None, :]
    inside, at = (rows < left) & (columns < V), rows * (H * V) + columns
    incoming = tl.load(do + token * V + at, mask=inside, other=0.0)
    tl.store(dbefore + (token - H) * V + at, incoming, mask=inside & (rows + chunk * C > 0))
    tl.store(dbefore + token * V + at, tl.zeros_like(incoming), mask=inside & (rows == left - 1))
    incoming = incoming.to(tl.float32)
    values = tl.load(v + token * V + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dv + token * V + at, (weight[:, None] * incoming).to(dv.dtype.element_ty), mask=inside)

    dweight = tl.sum(incoming * values, axis=1)[:, None]
    keys = tl.arange(0, BK)[None, :]
    known, cells = (rows < left) & (keys < K), token * K + rows * (H * K) + keys
    tl.store(dq + cells, (dweight * gain * k_tile).to(dq.dtype.element_ty), mask=known)
    tl.store(dk + cells, (dweight * gain * q_tile).to(dk.dtype.element_ty), mask=known)
    parts = tl.sum(dweight * q_tile * k_tile, axis=0)
    tl.store(du + (bh * NT + chunk) * K + tl.arange(0, BK), parts, mask=tl.arange(0, BK) < K)


def sizes_of(v: Slot, K: int) -> tuple[int, tuple[int, int, int], dict[str, int]]:
    """Programs, (T, H, chunks) and block sizes."""
    B, T, H, V = v.shape
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    C = max(1, ELEMENTS // max(BK, BV))
    chunks = triton.cdiv(T, C)
    return B * H * chunks, (T, H, chunks), {"K": K, "V": V, "C": C, "BK": BK, "BV": BV}


@planned
def bonus_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, u: Slot, before: Slot, first: Slot | None, *, keep: bool
) -> tuple[Slot]:
    """keep: whether a backward pass may follow."""
    programs, sizes, blocks = sizes_of(v, q.shape[-1])
    out = plan.like(before)
    plan.launch(
        la_bonus, (programs,), q, k, v, u, before, before if first is None else first, out, *sizes, **blocks,
        HAS_FIRST=first is not None, num_warps=4,
    )  # fmt: skip
    if keep:
        plan.expect(bonus_grads, q, k, v, u, replace(before, aligned=True))
    return (out,)


@planned
def bonus_grads(plan: Plan, q: Slot, k: Slot, v: Slot, u: Slot, do: Slot) -> tuple[Slot, ...]:
    programs, sizes, blocks = sizes_of(v, q.shape[-1])
    dq, dk, dv, dbefore = (plan.like(x) for x in (q, k, v, do))
    du = plan.empty((v.shape[0], v.shape[2], sizes[-1], q.shape[-1]), torch.float32)
    plan.launch(
        la_bonus_grads, (programs,), q, k, v, u, do, dq, dk, dv, du, dbefore, *sizes, **blocks, num_warps=4
    )
    return dq, dk, dv, du, dbefore


class Bonus(torch.autograd.Function):
    """o (B, T, H, V) of contiguous real operands; u (H, K) float32, first (B, H, V) or None."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, before: Tensor, first: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, u)
        ctx.has_first = first is not None
        (out,) = bonus_pass(q, k, v, u, before, first, keep=True)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        do = packed(do)
        dq, dk, dv, du, dbefore = bonus_grads(*ctx.saved_tensors, do)
        return dq, dk, dv, du.sum((0, 2)), dbefore, do[:, 0] if ctx.has_first else None


def added(q: Tensor, k: Tensor, v: Tensor, u: Tensor, before: Tensor, first: Tensor | None) -> Tensor:
    """o, without what a backward pass would need."""
    out: Tensor = bonus_pass(q, k, v, u, before, first, keep=False)[0]
    return out


def with_bonus(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, before: Tensor, first: Tensor | None, *, traced: bool
) -> Tensor:
    """o of the read before the write. traced: whether a gradient may be asked for."""
    q, k, v, u, before = (packed(x) for x in (q, k, v, u.float(), before))
    first = None if first is None else packed(first)
    run = Bonus.apply if traced else added
    o: Tensor = run(q, k, v, u, before, first)
    return o
