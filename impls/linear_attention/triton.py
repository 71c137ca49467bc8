"""Chunkwise Triton kernels for real and complex key gates.

See docs/recurrences.md#chunkwise.

A complex gate is rotated away: with Φ_t the sum of phases to step t, S_t = e^{iΦ_t} ⊙ S'_t, and S' has the
real gate, keys e^{-iΦ_t} k_t and queries e^{iΦ_t} q_t. Real and imaginary parts then lie side by side on
the key axis (and the value axis where v is complex), so that the kernels see real operands only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton import knobs

from ssmperf import Unsupported, backend

from ..scan.common import differentiates, nearest_turn
from ._signature import whole_signature
from ._triton.decode import decode
from ._triton.function import LinearAttention

REAL_GATES = ("none", "const", "scalar", "key")


@backend(
    "linear_attention",
    name="triton",
    devices=("cuda",),
    dtypes=("float32", "bfloat16", "float16"),
    gates=(*REAL_GATES, "const_complex", "scalar_complex", "key_complex"),
    needs=("triton",),
    capability=(8, 0),
    kernels=("la_increment", "la_carry", "la_output", "la_walk", "linear_attention_forward_decode"),
)
@whole_signature
def triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None = None,
    log_b: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    phase: Tensor | None = None,
    bonus: Tensor | None = None,
    read: str = "post",
) -> tuple[Tensor, Tensor]:
    """Triton kernels that walk through chunks, or run them beside each other; resets and any decay are exact.

    Operands of half types go through half-precision tensor cores with float32 sums; float32 ones through
    float32 products. Phases add up in float64.

    Raises:
        Unsupported: value gates (but for one step without gradients, which has a kernel of its own), float64
            operands, or bfloat16 ones in Triton's interpreter.
    """
    operands = q.dtype
    if not q.dtype == k.dtype == v.dtype:
        operands = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if operands.to_real() == torch.float64:
        raise Unsupported("no float64 operands (float32, bfloat16, float16 and complex64)")
    every = (q, k, v, log_a, phase, log_b, bonus, initial_state)
    if q.shape[1] == 1 and not operands.is_complex and not differentiates(*every):
        return decode(q, k, v, log_a, phase, log_b, bonus, initial_state, read)
    if log_b is not None:
        raise Unsupported("no value gates: log_b must be None, but for one step without gradients")
    if read == "pre":
        return _read_before_write(q, k, v, log_a, initial_state, phase, bonus)
    if phase is None and not operands.is_complex:
        o, state = _real(q, k, v, log_a, initial_state, operands)
    else:
        o, state = _rotated(q, k, v, log_a, initial_state, phase, operands)
    return (o if o.is_complex() or o.dtype == v.dtype else o.to(v.dtype)), state


def _real(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    state: Tensor | None,
    dtype: torch.dtype,
    phase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if dtype == torch.bfloat16 and knobs.runtime.interpret:
        raise Unsupported("Triton's interpreter multiplies bfloat16 matrices as integers")
    B, T, H, _ = q.shape
    if log_a is not None:
        if log_a.dim() == 1 or log_a.dim() == 3:
            log_a = log_a.unsqueeze(-1)
        if log_a.dim() == 4 and log_a.shape[:3] != (B, T, H):
            log_a = log_a.expand(B, T, H, -1)
        log_a = _contiguous(log_a, torch.float32)
    if state is not None:
        state = _contiguous(state, torch.float32)
    q, k, v = _contiguous(q, dtype), _contiguous(k, dtype), _contiguous(v, dtype)
    o, final = LinearAttention.apply(q, k, v, log_a, state, phase)  # type: ignore[no-untyped-call]
    return o, final


def _contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype and contiguous: itself where it is both."""
    if x.dtype != dtype:
        x = x.to(dtype)
    return x if x.is_contiguous() else x.contiguous()


def _rotated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    state: Tensor | None,
    phase: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The same with complex gates or operands, as a real recurrence of twice the width."""
    K, V, real = q.shape[-1], v.shape[-1], dtype.to_real()
    angle = None
    if phase is not None:
        phase = phase.unsqueeze(-1) if phase.dim() in (1, 3) else phase
        angle = _angles(phase, q.shape[1])
    q_re, q_im = _turn(q, angle)
    k_re, k_im = _turn(k, None if angle is None else -angle)
    keys = torch.cat([k_re, k_im], -1)
    values = torch.cat([v.real, v.imag], -1) if v.is_complex() else v
    if log_a is not None and log_a.shape[-1] == K and log_a.dim() in (2, 4):
        log_a = torch.cat([log_a, log_a], -1)
    if state is not None:
        state = state.to(torch.complex64)
        state = torch.cat([state.real, state.imag], -2)
        state = torch.cat([state, torch.zeros_like(state)], -1) if v.is_complex() else state

    o, last = _real(torch.cat([q_re, -q_im], -1), keys, values, log_a, state, real, phase)
    if dtype.is_complex:
        # the imaginary part of q·S reads the same states with another query
        o_im, _ = _real(torch.cat([q_im, q_re], -1), keys, values, log_a, state, real, phase)
        if v.is_complex():
            o, o_im = o[..., :V] - o_im[..., V:], o_im[..., :V] + o[..., V:]
        o = torch.complex(o.float(), o_im.float())
    re, im = last[:, :, :K], last[:, :, K:]
    if v.is_complex():
        re, im = re[..., :V] - im[..., V:], im[..., :V] + re[..., V:]
    last = torch.complex(re, im)
    if angle is not None:
        end = angle[:, -1]
        last = last * torch.polar(torch.ones_like(end), end).unsqueeze(-1)
    return o, last


@torch.no_grad()
def _angles(phase: Tensor, T: int) -> Tensor:
    """Sums of phases to each step, (B|1, T, H, K|1) float32 within ±π, added up in float64.

    No gradient flows through them: the phase's gradient comes from the autograd function, chunk by chunk.
    """
    if phase.dim() == 2:
        steps = torch.arange(1, T + 1, dtype=torch.float64, device=phase.device)
        total = phase.double() * steps[None, :, None, None]
    else:
        total = phase.double().cumsum(1)
    return nearest_turn(total).float()


def _turn(x: Tensor, angle: Tensor | None) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of e^{i angle} x, in the (real) dtype of x."""
    re, im = (x.real, x.imag) if x.is_complex() else (x, None)
    if angle is None:
        return re, torch.zeros_like(re) if im is None else im
    cos, sin = torch.cos(angle), torch.sin(angle)
    if im is None:
        return (re * cos).to(re.dtype), (re * sin).to(re.dtype)
    return re * cos - im * sin, re * sin + im * cos


def _read_before_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    state: Tensor | None,
    phase: Tensor | None,
    bonus: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """o_t = q_t S_{t-1} + Σ_c q_tc u_c k_tc · v_t: post-read with q one step early, after a first read."""
    early = torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], 1)
    o, last = triton(early, k, v, log_a, None, state, phase=phase)
    if state is None:
        first = torch.zeros_like(o[:, :1])
    else:
        wide = torch.promote_types(q.dtype, last.dtype)
        first = torch.einsum("bhk,bhkv->bhv", q[:, 0].to(wide), state.to(wide)).unsqueeze(1)
        first = (first if o.is_complex() else first.real).to(o.dtype)
    o = torch.cat([first, o[:, :-1]], 1)
    if bonus is not None:
        weight = (q.to(torch.promote_types(q.dtype, torch.float32)) * bonus * k).sum(-1, keepdim=True)
        o = (o + weight * v).to(o.dtype)
    return o, last
