"""The bonus of a read before the write, added in one pass over the operands.

o_t = S_{t-1}ᵀ q_t + w_t v_t with w_t = Σ_c q_tc u_c k_tc. The first term is what a read after the write gives
one step earlier, for queries that come one step early: here `before`.

So q, k and v go two ways, which `Fork` parts and `Join` brings together. A backward pass meets `Join` first,
which sends dbefore through the read after the write, and do directly to `Fork`. There one kernel adds the
gradients of both ways.
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
from ..._triton.sequences import Packing, chunk_sequence, chunk_steps, first_steps, head_offset
from .blocks import load_chunk, locate_heads_first, store_chunk
from .chunks import COUNTS
from .step import earlier, first_of, flat, later

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


@triton.jit
def load_late(
    x, first, token, start, left, bh, H, W: tl.constexpr, C: tl.constexpr, BW: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):  # fmt: skip
    """C steps of x (B, T, H, W) one step late, from row `token` on; float32.

    start: the number of that step in its sequence. first (B, H, W), or 0, is what step 0 has.
    """
    steps, columns = start + tl.arange(0, C)[:, None], tl.arange(0, BW)[None, :]
    rows = x + (token - H) * W + tl.arange(0, C)[:, None] * (H * W)
    inside = (tl.arange(0, C)[:, None] < left) & (columns < W)
    tile = tl.load(rows + columns, mask=inside & (steps > 0), other=0.0).to(tl.float32)
    if HAS_FIRST:
        begin = tl.load(first + bh * W + columns, mask=columns < W, other=0.0).to(tl.float32)
        tile = tl.where(steps == 0, begin, tile)
    return tile


@triton.jit(do_not_specialize=COUNTS)
def la_bonus(
    q, k, v, u, before, first, out, T, H, NT, places,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):  # fmt: skip
    """out, `before` and v (B, T, H, V); first: S_0ᵀ q_0 (B, H, V), else 0."""
    _, chunk, bh = locate_heads_first(H, NT, 1)
    row = head_offset(bh, T, H)
    start, end = chunk_steps(chunk, T, NT, places, C)
    token, left = row + start * H, end - start
    own, passed = chunk_sequence(chunk, bh, H, NT, places, C)
    _, _, _, weight = weighted(q, k, u, token, bh % H, left, H, K, C, BK)
    values = load_chunk(v + token * V, left, H * V, tl.arange(0, BV), C, V).to(tl.float32)
    result = load_late(before, first, token, passed, left, own, H, V, C, BV, HAS_FIRST)
    result += weight[:, None] * values
    store_chunk(out + token * V, result, left, H * V, C, V, BV)


@triton.jit(do_not_specialize=COUNTS)
def la_bonus_grads(
    q, k, v, u, do, dearly, dbegin, dk, dv, dq, du, T, H, NT, places,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    HAS_FIRST: tl.constexpr,
):  # fmt: skip
    """dq; du in parts (B, chunks, H, K) float32; dk and dv gain what the bonus adds.

    dearly: gradient of the queries one step early; dbegin (B, H, K): of those of the first step, else 0.
    """
    _, chunk, bh = locate_heads_first(H, NT, 1)
    row = head_offset(bh, T, H)
    start, end = chunk_steps(chunk, T, NT, places, C)
    token, left = row + start * H, end - start
    own, passed = chunk_sequence(chunk, bh, H, NT, places, C)
    q_tile, k_tile, gain, weight = weighted(q, k, u, token, bh % H, left, H, K, C, BK)
    keys, values = tl.arange(0, BK), tl.arange(0, BV)
    do_tile = load_chunk(do + token * V, left, H * V, values, C, V).to(tl.float32)
    v_tile = load_chunk(v + token * V, left, H * V, values, C, V).to(tl.float32)
    dweight = tl.sum(do_tile * v_tile, axis=1)[:, None]
    parts = tl.sum(dweight * q_tile * k_tile, axis=0)
    tl.store(du + ((bh // H * NT + chunk) * H + bh % H) * K + keys, parts, mask=keys < K)

    dv_tile = load_chunk(dv + token * V, left, H * V, values, C, V).to(tl.float32)
    store_chunk(dv + token * V, dv_tile + weight[:, None] * do_tile, left, H * V, C, V, BV)
    dk_tile = load_chunk(dk + token * K, left, H * K, keys, C, K).to(tl.float32)
    store_chunk(dk + token * K, dk_tile + dweight * gain * q_tile, left, H * K, C, K, BK)
    dq_tile = load_late(dearly, dbegin, token, passed, left, own, H, K, C, BK, HAS_FIRST)
    store_chunk(dq + token * K, dq_tile + dweight * gain * k_tile, left, H * K, C, K, BK)


def sizes_of(
    plan: Plan, v: Slot, K: int, bounds: Slot | None
) -> tuple[int, tuple[int, int, int, Slot | None], dict[str, int]]:
    """Programs, (T, H, chunks, their places) and block sizes."""
    B, T, H, V = v.shape
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(V)
    C = max(1, ELEMENTS // max(BK, BV))
    packing = Packing.of(plan, bounds, T, C)
    chunks = packing.count if packing else triton.cdiv(T, C)
    sizes = T, H, chunks, packing and packing.places
    return B * H * chunks, sizes, {"K": K, "V": V, "C": C, "BK": BK, "BV": BV}


@planned
def bonus_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, u: Slot, before: Slot, first: Slot | None, bounds: Slot | None, *,
    keep: bool,
) -> tuple[Slot]:  # fmt: skip
    """keep: whether a backward pass may follow."""
    programs, sizes, blocks = sizes_of(plan, v, q.shape[-1], bounds)
    out = plan.like(before)
    plan.launch(
        la_bonus, (programs,), q, k, v, u, before, first or before, out, *sizes, **blocks,
        HAS_FIRST=first is not None, num_warps=4,
    )  # fmt: skip
    if keep:
        do, dearly, dk, dv = (replace(each, aligned=True) for each in (before, q, k, v))
        plan.expect(earlier, do, bounds)
        begin = first and first_of(dearly, bounds)
        plan.expect(bonus_grads, q, k, v, u, do, dearly, begin, dk, dv, bounds)
    return (out,)


@planned
def bonus_grads(
    plan: Plan, q: Slot, k: Slot, v: Slot, u: Slot, do: Slot, dearly: Slot, dbegin: Slot | None, dk: Slot,
    dv: Slot, bounds: Slot | None,
) -> tuple[Slot, ...]:  # fmt: skip
    """dq, dk, dv and parts of du, of the bonus and of the walk; dk and dv are added to in place."""
    programs, sizes, blocks = sizes_of(plan, v, q.shape[-1], bounds)
    B, _, H, K = q.shape
    dq, du = plan.like(q), plan.empty((B, sizes[2], H, K), torch.float32)
    plan.launch(
        la_bonus_grads, (programs,), q, k, v, u, do, dearly, dbegin or dearly, dk, dv, dq, du, *sizes,
        **blocks, HAS_FIRST=dbegin is not None, num_warps=4,
    )  # fmt: skip
    return dq, dk, dv, du


class Fork(torch.autograd.Function):
    """Queries one step early, those of the first, k and v for the read after the write, and v for `Join`.

    q, k, v: contiguous and real; u (H, K) float32. begins: whether the queries of the first step are used.
    A call that uses its last state only does not reach `Join`; the other three always have gradients. Nothing
    else holds those of k and v, so they are added to in place.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, bounds: Tensor | None, begins: bool
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(q, k, v, u, bounds)
        ctx.set_materialize_grads(False)
        return forked(q, k, v, u, bounds, begins)

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(
        ctx: Any, dearly: Tensor, dbegin: Tensor | None, dk: Tensor, dv: Tensor, do: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """do: the gradient of the results of `Join`."""
        dearly, dk, dv = packed(dearly), packed(dk), packed(dv)
        q, k, v, u, bounds = ctx.saved_tensors
        if do is None:  # only the last state was used
            return later(dearly, None, bounds)[0], dk, dv, None, None, None
        dq, dk, dv, du = bonus_grads(q, k, v, u, do, dearly, flat(dbegin), dk, dv, bounds)
        return dq, dk, dv, du.sum((0, 1)), None, None


class Join(torch.autograd.Function):
    """o (B, T, H, V): see `bonus_pass`. q, k, u: have their gradients from `Fork`, to which v leads."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, u: Tensor, before: Tensor, first: Tensor | None,
        bounds: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.has_first = first is not None
        ctx.save_for_backward(bounds)
        (out,) = bonus_pass(q, k, v, u, before, flat(first), bounds, keep=True)
        return out

    @staticmethod
    @once_differentiable("linear_attention/triton")
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        do, (bounds,) = packed(do), ctx.saved_tensors
        (dbefore,) = earlier(do, bounds)
        dfirst = first_steps(do, bounds) if ctx.has_first else None
        return None, None, do, None, dbefore, dfirst, None


def forked(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, bounds: Tensor | None, begins: bool
) -> tuple[Any, ...]:
    """The results of `Fork`."""
    return earlier(q, bounds)[0], first_steps(q, bounds) if begins else None, k, v, v


def joined(
    q: Tensor, k: Tensor, v: Tensor, u: Tensor, before: Tensor, first: Tensor | None, bounds: Tensor | None
) -> Tensor:
    """The result of `Join`, without what a backward pass would need."""
    out: Tensor = bonus_pass(q, k, v, u, before, flat(first), bounds, keep=False)[0]
    return out
