"""One step where no gradient is wanted: all of batch and channels side by side, in their own scales."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._triton.arithmetic import exp2
from ..._triton.host import flush, strides
from ..._triton.plan import Plan, Slot, planned
from .arithmetic import EMPTY, LOG2E, follow, read

BLOCK = 128  # channels of a warp


@triton.jit
def ratio_scan_forward_decode(
    log_w, bonus, k, v, state, y, final,
    C, w_batch, w_channel, u_channel, k_batch, k_channel, v_batch, v_channel, s_batch, s_row, s_channel,
    FLUSH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(C, BLOCK)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    w = tl.load(log_w + batch * w_batch + channel * w_channel, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(k + batch * k_batch + channel * k_channel, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(v + batch * v_batch + channel * v_channel, mask=inside, other=0.0).to(tl.float32)
    u = None
    if bonus is not None:
        u = tl.load(bonus + channel * u_channel, mask=inside, other=0.0).to(tl.float32)
    old_m = tl.full([BLOCK], EMPTY, tl.float32)
    old_p = tl.zeros([BLOCK], tl.float32)
    old_q = tl.zeros([BLOCK], tl.float32)
    if state is not None:
        at = state + batch * s_batch + channel * s_channel
        old_p = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        old_q = tl.load(at + s_row, mask=inside, other=0.0).to(tl.float32)
        old_m = tl.load(at + 2 * s_row, mask=inside, other=0.0).to(tl.float32)

    one = tl.full([BLOCK], 1.0, tl.float32)
    m, p, q = follow(old_m, old_p, old_q, w, key, value, one)
    present = exp2((key - m) * LOG2E, FLUSH)
    out, _, _ = read(key, value, present, p, q, old_p, old_q, old_m, u, False, FLUSH)
    tl.store(y + batch * C + channel, out.to(y.dtype.element_ty), mask=inside)
    to = final + batch * 3 * C + channel
    tl.store(to, p, mask=inside)
    tl.store(to + C, q, mask=inside)
    tl.store(to + 2 * C, m, mask=inside)


@planned
def step(
    plan: Plan, log_w: Slot, k: Slot, v: Slot, state: Slot | None, bonus: Slot | None
) -> tuple[Slot, Slot]:
    """The launch behind `decode`."""
    B, _, C = k.shape
    y, final = plan.empty((B, 1, C), v.dtype), plan.empty((B, 3, C), torch.float32)
    over_bonus = 0 if bonus is None or bonus.numel() == 1 else bonus.stride(0)
    over_state = (0, 0, 0) if state is None else state.strides
    plan.launch(
        ratio_scan_forward_decode, (B * triton.cdiv(C, BLOCK),), log_w, bonus, k, v, state, y, final,
        C, *strides(log_w, 0, 2), over_bonus, k.stride(0), k.stride(2), v.stride(0), v.stride(2), *over_state,
        FLUSH=flush(), BLOCK=BLOCK, num_warps=1,
    )  # fmt: skip
    return y, final


def decode(
    log_w: Tensor, k: Tensor, v: Tensor, state: Tensor | None, bonus: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y (B, 1, C) and the state (B, 3, C) after k and v (B, 1, C), decays (B|1, 1, C|1), of any strides."""
    y, final = step(log_w, k, v, state, bonus)
    return y, final
