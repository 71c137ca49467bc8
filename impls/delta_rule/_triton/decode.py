"""One step where no gradient is wanted: the state is read and written once, in strips of values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._triton.host import strides
from ..._triton.plan import Plan, Slot, planned

VALUES = 32  # of a program: 128 bytes of each row of a float32 state


@triton.jit
def delta_decode(
    q, k, v, beta, log_a, state, o, final, H, q_batch, q_head, q_key, k_batch, k_head, k_key,
    v_batch, v_head, v_value, b_batch, b_head, a_batch, a_head, s_batch, s_head, s_key, s_value,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """S = α S_0 + β k (v − α S_0ᵀ k)ᵀ and o = Sᵀ q. A program has BV values."""
    strip = tl.program_id(0) % tl.cdiv(V, BV)
    bh = (tl.program_id(0) // tl.cdiv(V, BV)).to(tl.int64)
    batch, head = bh // H, bh % H
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    has_key, has_value = keys < K, values < V
    inside = has_key[:, None] & has_value[None, :]
    at_query = q + batch * q_batch + head // SHARED * q_head + keys * q_key
    query = tl.load(at_query, mask=has_key, other=0.0).to(tl.float32)
    at_key = k + batch * k_batch + head // SHARED * k_head + keys * k_key
    key = tl.load(at_key, mask=has_key, other=0.0).to(tl.float32)
    at_value = v + batch * v_batch + head * v_head + values * v_value
    value = tl.load(at_value, mask=has_value, other=0.0).to(tl.float32)
    rate = tl.load(beta + batch * b_batch + head * b_head).to(tl.float32)
    held = tl.zeros((BK, BV), tl.float32)
    if state is not None:
        at = state + batch * s_batch + head * s_head + keys[:, None] * s_key + values[None, :] * s_value
        held += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if log_a is not None:
        held = held * tl.exp(tl.load(log_a + batch * a_batch + head * a_head).to(tl.float32))
    missing = rate * (value - tl.sum(key[:, None] * held, axis=0))
    held += key[:, None] * missing[None, :]
    tl.store(final + bh * K * V + keys[:, None] * V + values[None, :], held, mask=inside)
    out = tl.sum(query[:, None] * held, axis=0)
    tl.store(o + bh * V + values, out.to(o.dtype.element_ty), mask=has_value)


@planned
def step(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, state: Slot | None
) -> tuple[Slot, Slot]:
    """The launch behind `decode`."""
    (B, _, H, V), K = v.shape, q.shape[-1]
    o, final = plan.empty(v.shape, v.dtype), plan.empty((B, H, K, V), torch.float32)
    BV = min(VALUES, triton.next_power_of_2(V))
    plan.launch(
        delta_decode, (B * H * triton.cdiv(V, BV),), q, k, v, beta, log_a, state, o, final, H,
        *(stride for slot in (q, k, v) for stride in strides(slot, 0, 2, 3)), *strides(beta, 0, 2),
        *strides(log_a, 0, 2), *strides(state, 0, 1, 2, 3),
        K=K, V=V, BK=triton.next_power_of_2(K), BV=BV, SHARED=H // q.shape[2], num_warps=4,
    )  # fmt: skip
    return o, final


def decode(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """o (B, 1, H, V) and the state after one step, of operands with any strides; gates (H,) or (B, 1, H)."""
    if log_a is not None and log_a.dim() == 1:
        log_a = log_a[None, None]
    o, final = step(q, k, v, beta, log_a, state)
    return o, final
