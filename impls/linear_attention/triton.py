"""Chunkwise Triton kernels for real and complex key gates, and for value gates.

See docs/recurrences.md#chunkwise.

A complex gate is turned away, so that the kernels see real gates and channels only: see `_triton.turns`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from triton import knobs

from ssmperf.authoring import Unsupported, backend

from .._triton.plan import packed
from ..scan.common import differentiates, shared_heads
from ._signature import Arguments, whole_signature
from ._triton.bonus import Fork, Join, forked, joined
from ._triton.decode import decode
from ._triton.function import LinearAttention, attended, expanded, narrowed
from ._triton.padded import whole_width, widened
from ._triton.step import Early, Late, taken_early, taken_late
from ._triton.value_gates import ValuedAttention, attended_valued


@backend(
    "linear_attention",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    needs=("triton",),
    capability=(8, 0),
    causal="tolerance",  # sums of gates begin at the middle of a block, so later steps round earlier ones
    kernels=(
        "la_increment",
        "la_carry",
        "la_output",
        "la_walk",
        "la_steps",
        "linear_attention_forward_decode",
    ),
)
@partial(whole_signature, shares_heads=True, packs=True)
def triton(x: Arguments) -> tuple[Tensor, Tensor]:
    """Triton kernels that walk through chunks, or run them beside each other; resets and any decay are exact.

    Operands of half types go through half-precision tensor cores with float32 sums; float32 ones through
    float32 products. Phases add up in float64. With value gates, kernels take one step after another.
    cu_seqlens is read by kernels alone.

    Raises:
        Unsupported: float64 operands, or bfloat16 ones in Triton's interpreter.
    """
    q, k, v = x.q, x.k, x.v
    operands = q.dtype
    if not q.dtype == k.dtype == v.dtype:
        operands = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if operands.to_real() == torch.float64:
        raise Unsupported("no float64 operands (float32, bfloat16, float16 and complex64)")
    real = x.phase is None and not operands.is_complex
    if real and x.initial_state is not None:
        x.initial_state = x.initial_state.real
    per_head = x.log_a is None or x.log_a.dim() in (1, 3)
    few = per_head and operands.itemsize == 2 and x.log_b is None and x.phase is None and x.read == "post"
    if not few:
        q, k = shared_heads(q, k, v)
    elif expanded(q, k, v.shape[2]) and not differentiates(q, k):
        q, k = q[:, :, :1], k[:, :, :1]
    every = (q, k, v, x.log_a, x.phase, x.log_b, x.bonus, x.initial_state)
    one = q.shape[1] == 1 and x.cu_seqlens is None
    if one and not operands.is_complex and not differentiates(*every):
        q, k = shared_heads(q, k, v)
        return decode(q, k, v, x.log_a, x.phase, x.log_b, x.bonus, x.initial_state, x.read)
    x.q, x.k = q, k
    if x.log_b is not None:
        x.log_b = x.log_b.expand(v.shape)
    if x.read == "pre":
        return _read_before_write(x)
    if real:
        o, state, _ = _real(x, q, k, v, x.initial_state, operands, few=few)
    else:
        o, state = _complex(x, operands)
    return (o if o.is_complex() or o.dtype == v.dtype else o.to(v.dtype)), state


def _real(
    x: Arguments,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    dtype: torch.dtype,
    *,
    pairs: bool = False,
    few: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """o, S_T and the angles of its frame, of real q, k, v and state, with the gates and bounds of x.

    See `LinearAttention` and `ValuedAttention`. few: whether a head that is expanded to all may be taken as
    it is.
    """
    log_a, log_b, phase, bounds = x.log_a, x.log_b, x.phase, x.cu_seqlens
    if dtype == torch.bfloat16 and knobs.runtime.interpret:
        raise Unsupported("Triton's interpreter multiplies bfloat16 matrices as integers")
    if not (few and q.dtype == k.dtype == dtype and expanded(q, k, v.shape[2])):
        q, k = _contiguous(q, dtype), _contiguous(k, dtype)
    v = _contiguous(v, dtype)
    if log_a is not None:
        log_a = _contiguous(_by_channel(log_a, v), torch.float32)
    if phase is not None:
        phase = _contiguous(_by_channel(phase, v), phase.dtype)
    if state is not None:
        state = _contiguous(state, torch.float32)
    traced = differentiates(q, k, v, log_a, log_b, phase, state)
    if log_b is None:
        run = LinearAttention.apply if traced else attended
        o, last, angles = run(q, k, v, log_a, phase, state, bounds, pairs)
    else:
        valued = ValuedAttention.apply if traced else attended_valued
        V, more = v.shape[-1], whole_width(v) - v.shape[-1]
        # both parts of complex values share their gates, so these may be fewer than V
        v, log_b = widened(v, more), widened(_contiguous(log_b, log_b.dtype), more)
        state = None if state is None else widened(state, more)
        o, last, angles = valued(q, k, v, log_a, log_b, phase, state, bounds, pairs)
        o, last = narrowed(o, V), narrowed(last, V)
    return o, last, angles


def _by_channel(gate: Tensor, v: Tensor) -> Tensor:
    """View a gate as (H, K|1) or (B, T, H, K|1)."""
    if gate.dim() in (1, 3):
        gate = gate.unsqueeze(-1)
    if gate.dim() == 4 and gate.shape[:3] != v.shape[:3]:
        gate = gate.expand(*v.shape[:3], -1)
    return gate


def _contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype and contiguous: itself where it is both."""
    if x.dtype != dtype:
        x = x.to(dtype)
    return x if x.is_contiguous() else x.contiguous()


def _complex(x: Arguments, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same with complex gates or operands: real and imaginary parts as channels beside each other."""
    state, bounds, real, pairs = x.initial_state, x.cu_seqlens, dtype.to_real(), dtype.is_complex
    # once, as gradients of both calls below are added up in the dtype that these take
    q, k, v = (each if each.is_complex() else each.to(real) for each in (x.q, x.k, x.v))
    K, V = q.shape[-1], v.shape[-1]
    values = torch.cat([v.real, v.imag], -1) if v.is_complex() else v
    if state is not None:
        state = state.to(torch.complex64)
        state = torch.cat([state.real, state.imag], -2)
        state = torch.cat([state, torch.zeros_like(state)], -1) if v.is_complex() else state
    queries, keys = q, k
    if pairs:
        (q_re, q_im), (k_re, k_im) = _parts(q), _parts(k)
        queries, keys = torch.cat([q_re, -q_im], -1), torch.cat([k_re, k_im], -1)
    o, last, angles = _real(x, queries, keys, values, state, real, pairs=pairs)
    if pairs:
        # the imaginary part of q·S reads the same states with another query
        queries = torch.cat([q_im, q_re], -1)
        o_im, *_ = _real(x, queries, keys, values, state, real, pairs=True)
        if v.is_complex():
            o, o_im = o[..., :V] - o_im[..., V:], o_im[..., :V] + o[..., V:]
        o = torch.complex(o.float(), o_im.float())
    re, im = last[:, :, :K], last[:, :, K:]
    if v.is_complex():
        re, im = re[..., :V] - im[..., V:], im[..., :V] + re[..., V:]
    last = torch.complex(re, im)
    if angles is not None:
        n, H = last.shape[:2]
        end = (angles[:, -1] if bounds is None else angles[-n * H :]).view(n, H, -1, 1)
        last = last * torch.polar(torch.ones_like(end), end)
    return o, last


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x.real, x.imag) if x.is_complex() else (x, torch.zeros_like(x))


def _read_before_write(x: Arguments) -> tuple[Tensor, Tensor]:
    """o_t = q_t S_{t-1} + Σ_c q_tc u_c k_tc · v_t: post-read with q one step early, after a first read."""
    q, k, v, state, bonus, bounds = x.q, x.k, x.v, x.initial_state, x.bonus, x.cu_seqlens
    late = {
        "log_a": x.log_a,
        "log_b": x.log_b,
        "initial_state": state,
        "phase": x.phase,
        "cu_seqlens": bounds,
    }
    traced = differentiates(q, k, v, x.log_a, x.log_b, state, x.phase, bonus)
    if bonus is None or x.complex_operands:
        take_early, take_late = (Early.apply, Late.apply) if traced else (taken_early, taken_late)
        early, begin = take_early(q, bounds, state is not None)
        before, last = triton(early, k, v, **late)
        o: Tensor = take_late(before, _first_read(begin, state, before, last), bounds)
        if bonus is not None:
            weight = (q.to(torch.promote_types(q.dtype, torch.float32)) * bonus * k).sum(-1, keepdim=True)
            o = (o + weight * v).to(o.dtype)
        return o, last
    fork, join = (Fork.apply, Join.apply) if traced else (forked, joined)
    q, k, v, u = (packed(each) for each in (q, k, v, bonus.float()))
    early, begin, keys, values, v = fork(q, k, v, u, bounds, state is not None)
    before, last = triton(early, keys, values, **late)
    return join(q, k, v, u, packed(before), _first_read(begin, state, before, last), bounds), last


def _first_read(begin: Tensor | None, state: Tensor | None, o: Tensor, last: Tensor) -> Tensor | None:
    """S_0ᵀ q_0 (B, 1, H, V) in the dtype of o; begin: q_0 (B, 1, H, K)."""
    if state is None or begin is None:
        return None
    wide = torch.promote_types(begin.dtype, last.dtype)
    first = torch.einsum("bthk,bhkv->bthv", begin.to(wide), state.to(wide))
    return (first if o.is_complex() else first.real).to(o.dtype)
