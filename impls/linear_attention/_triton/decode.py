"""One step where no gradient is wanted: the state is read and written once, in strips of values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._triton.arithmetic import load, polar, store, times
from ..._triton.host import flush, strides
from ..._triton.plan import Plan, Slot, planned
from ...scan.common import nearest_turn

VALUES = 32  # of a program: 128 bytes of each row of a float32 state


@triton.jit
def load_vector(x, channels, stride, W: tl.constexpr):
    """Some of W channels, float32, that lie `stride` apart from x on."""
    return tl.load(x + channels * stride, mask=channels < W, other=0.0).to(tl.float32)


@triton.jit
def linear_attention_forward_decode(
    q, k, v, log_a, phase, log_b, bonus, state, o, final,
    H, q_batch, q_head, q_key, k_batch, k_head, k_key, v_batch, v_head, v_value,
    a_batch, a_head, a_key, p_batch, p_head, p_key, b_batch, b_head, b_value, u_head, u_key,
    s_batch, s_head, s_key, s_value,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    PRE: tl.constexpr, COMPLEX: tl.constexpr, FLUSH: tl.constexpr,
):  # fmt: skip
    """S = (α βᵀ) ⊙ S_0 + k vᵀ and o = Sᵀ q; PRE: o = (S_0 + diag(u) k vᵀ)ᵀ q. A program has BV values."""
    strip = tl.program_id(0) % tl.cdiv(V, BV)
    bh = (tl.program_id(0) // tl.cdiv(V, BV)).to(tl.int64)
    batch, head = bh // H, bh % H
    keys, values = tl.arange(0, BK), strip * BV + tl.arange(0, BV)
    inside = (keys < K)[:, None] & (values < V)[None, :]
    query = load_vector(q + batch * q_batch + head * q_head, keys, q_key, K)
    key = load_vector(k + batch * k_batch + head * k_head, keys, k_key, K)
    value = load_vector(v + batch * v_batch + head * v_head, values, v_value, V)
    write = key[:, None] * value[None, :]
    past = tl.zeros((BK, BV), dtype=tl.float32)
    past_imag = tl.zeros((BK, BV), dtype=tl.float32)
    if state is not None:
        at = state + batch * s_batch + head * s_head + keys[:, None] * s_key + values[None, :] * s_value
        past, past_imag = load(at, inside)
    gate = tl.full((BK,), 1.0, dtype=tl.float32)
    gate_imag = tl.zeros((BK,), dtype=tl.float32)
    at_phase = phase + batch * p_batch + head * p_head + keys * p_key if phase is not None else None
    if log_a is not None:
        at_gate = log_a + batch * a_batch + head * a_head + keys * a_key
        gate, gate_imag = polar(at_gate, at_phase, keys < K, FLUSH)
    real, imag = times(gate[:, None], gate_imag[:, None], past, past_imag, COMPLEX)
    if log_b is not None:
        factor = tl.exp(load_vector(log_b + batch * b_batch + head * b_head, values, b_value, V))
        real = real * factor[None, :]
        imag = imag * factor[None, :]
    real += write
    store(final + bh * K * V + keys[:, None] * V + values[None, :], real, imag, inside)
    seen = real
    if PRE:
        seen = past
        if bonus is not None:
            seen = past + load_vector(bonus + head * u_head, keys, u_key, K)[:, None] * write
    out = tl.sum(query[:, None] * seen, axis=0)
    tl.store(o + bh * V + values, out.to(o.dtype.element_ty), mask=values < V)


@planned
def step(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, phase: Slot | None, log_b: Slot | None,
    bonus: Slot | None, state: Slot | None, *, read: str,
) -> tuple[Slot, Slot]:  # fmt: skip
    """The launch behind `decode`."""
    (B, _, H, K), V = q.shape, v.shape[-1]
    o = plan.empty(v.shape, v.dtype)
    is_complex = phase is not None
    final = plan.empty((B, H, K, V), torch.complex64 if is_complex else torch.float32)
    BV = min(VALUES, triton.next_power_of_2(V))
    plan.launch(
        linear_attention_forward_decode, (B * H * triton.cdiv(V, BV),),
        q, k, v, log_a, phase, log_b, bonus, None if state is None else state.bits(), o, final.bits(), H,
        *(stride for slot in (q, k, v, log_a, phase, log_b) for stride in strides(slot, 0, 2, 3)),
        *strides(bonus, 0, 1), *strides(state, 0, 1, 2, 3),
        K=K, V=V, BK=triton.next_power_of_2(K), BV=BV, PRE=read == "pre", COMPLEX=is_complex, FLUSH=flush(),
        num_warps=4,
    )  # fmt: skip
    return o, final


def decode(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, log_b: Tensor | None,
    bonus: Tensor | None, state: Tensor | None, read: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, 1, H, V) and the state after one step of real operands with any strides; gates in any shape."""
    if phase is not None and log_a is None:
        log_a = phase.new_zeros(1).expand(phase.shape)
    if phase is not None and phase.dtype == torch.float64:
        phase = nearest_turn(phase).float()  # the kernel takes whole turns away in float32
    if state is not None and state.is_complex():
        state = state.real if phase is None else state.to(torch.complex64).resolve_conj()
    gates = [None if gate is None else four_axes(gate) for gate in (log_a, phase)]
    o, final = step(q, k, v, *gates, log_b, bonus, state, read=read)
    return o, final


def four_axes(gate: Tensor) -> Tensor:
    """View a key gate of one step, in any legal shape, as (B|1, 1, H, K|1)."""
    if gate.dim() in (1, 3):
        gate = gate.unsqueeze(-1)
    return gate if gate.dim() == 4 else gate[None, None]
