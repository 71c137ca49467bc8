"""One step where no gradient is wanted: h = a·h_0 + b, all of batch and channels side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._triton.arithmetic import load, polar, store, times_plus
from ..._triton.host import flush, strides
from ..._triton.plan import Plan, Slot, planned
from .function import bits

BLOCK = 128  # channels of a warp: 16 bytes of a float32 stream a thread


@triton.jit
def scan_forward_decode(
    log_a, phase, b, state, h, final,
    C, a_batch, a_channel, p_batch, p_channel, b_batch, b_channel, s_batch, s_channel,
    COMPLEX: tl.constexpr, FLUSH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(C, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    x = load(b + batch * b_batch + channel * b_channel, inside)
    at_phase = phase + batch * p_batch + channel * p_channel if phase is not None else None
    gate = polar(log_a + batch * a_batch + channel * a_channel, at_phase, inside, FLUSH)
    hr, hi = x
    if state is not None:
        past = load(state + batch * s_batch + channel * s_channel, inside)
        hr, hi = times_plus(gate[0], gate[1], past[0], past[1], x[0], x[1], COMPLEX)
    store(h + batch * C + channel, hr, hi, inside)
    store(final + batch * C + channel, hr, hi, inside)


@planned
def step(plan: Plan, log_a: Slot, phase: Slot | None, b: Slot, state: Slot | None) -> tuple[Slot, Slot]:
    """The launch behind `decode`, for a state (B, C)."""
    B, _, C = b.shape
    wide = torch.float32 if phase is None else torch.complex64
    h = plan.like(b, b.dtype if phase is None else wide)
    final = plan.empty((B, C), wide)
    plan.launch(
        scan_forward_decode, (B * triton.cdiv(C, BLOCK),),
        log_a, phase, b.bits(), bits(state), h.bits(), final.bits(),
        C, *strides(log_a, 0, 2), *strides(phase, 0, 2), *strides(b, 0, 2), *strides(state, 0, 1),
        COMPLEX=phase is not None, FLUSH=flush(), BLOCK=BLOCK, num_warps=1,
    )  # fmt: skip
    return h, final


def decode(log_a: Tensor, phase: Tensor | None, b: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """h (B, 1, C) and h_1 (B, C) of b (B, 1, C) and gates (B|1, 1, C|1), all with any strides."""
    if b.is_conj():
        b = b.resolve_conj()
    if state is not None and state.is_conj():
        state = state.resolve_conj()
    h, final = step(log_a, phase, b, state)
    return h, final
