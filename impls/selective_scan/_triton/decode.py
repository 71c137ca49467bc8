"""One step where no gradient is wanted: every state is read once and written once, all side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .function import processors
from .options import sigmoid, softplus
from .steps import HUGE, LOG2_E, exponential2

STATES = 256  # of a warp: 32 bytes of state a thread
ENOUGH = 16  # warps a multiprocessor; with more, four to a program


@triton.jit
def held(z, gate):
    """(e^z − 1) / z, and 1 at 0; gate is e^z."""
    near = tl.where(tl.abs(z) < 0.5, z, 0.0)
    series = 1.0 + near / 9
    for i in tl.static_range(7):
        series = 1.0 + near / (8 - i) * series
    return tl.where(tl.abs(z) < 0.5, series, (gate - 1.0) / tl.where(tl.abs(z) < 0.5, 1.0, z))


@triton.jit
def selective_scan_forward_decode(
    x, delta, k, q, A, state, skip, z, bias, o, final,
    D, x_batch, x_channel, delta_batch, delta_channel, k_batch, k_state, q_batch, q_state, z_batch, z_channel,
    N: tl.constexpr, GATE: tl.constexpr, ZOH: tl.constexpr, SOFTPLUS: tl.constexpr, FLUSH: tl.constexpr,
    BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A program: all N states of BD channels of a batch element."""
    blocks = tl.cdiv(D, BD)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel = tl.program_id(0) % blocks * BD + tl.arange(0, BD)
    n = tl.arange(0, BN)
    is_channel = channel < D
    is_state = n < N
    inside = is_channel[:, None] & is_state[None, :]
    at = channel[:, None] * N + n[None, :]

    value = tl.load(x + batch * x_batch + channel * x_channel, mask=is_channel, other=0.0).to(tl.float32)
    size = tl.load(delta + batch * delta_batch + channel * delta_channel, mask=is_channel, other=0.0)
    size = size.to(tl.float32)
    if bias is not None:
        size += tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    if SOFTPLUS:
        size = softplus(size)
    if ZOH:
        size = tl.minimum(size, HUGE)
    key = tl.load(k + batch * k_batch + n * k_state, mask=is_state, other=0.0).to(tl.float32)[None, :]
    query = tl.load(q + batch * q_batch + n * q_state, mask=is_state, other=0.0).to(tl.float32)[None, :]

    written = tl.broadcast_to((size * value)[:, None], (BD, BN))
    if GATE == "exp":
        rate = tl.load(A + at, mask=inside, other=0.0).to(tl.float32)
        exponent = tl.minimum(size, HUGE)[:, None] * tl.minimum(tl.maximum(rate, -HUGE), HUGE)
        gate = exponential2(exponent * LOG2_E, FLUSH)
        if ZOH:
            written = written * held(exponent, gate)
    else:
        gate = 1.0 - size[:, None] * (key * key)
    S = written * key
    if state is not None:
        past = tl.load(state + batch * D * N + at, mask=inside, other=0.0).to(tl.float32)
        S = gate * past + S
    tl.store(final + batch * D * N + at, S, mask=inside)

    total = tl.sum(S * query, axis=1)
    if skip is not None:
        total += tl.load(skip + channel, mask=is_channel, other=0.0).to(tl.float32) * value
    if z is not None:
        opening = tl.load(z + batch * z_batch + channel * z_channel, mask=is_channel, other=0.0).to(
            tl.float32
        )
        total = total * (opening * sigmoid(opening))
    tl.store(o + batch * D + channel, total.to(o.dtype.element_ty), mask=is_channel)


def decode(
    x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None, gate: str, *,
    zoh: bool = False, skip: Tensor | None = None, output_gate: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, 1, D) and S_1 (B, D, N) of one step; x, delta, k, q and the output gate with any strides."""
    (B, _, D), N = x.shape, k.shape[2]
    o = torch.empty(B, 1, D, dtype=x.dtype, device=x.device)
    final = torch.empty(B, D, N, dtype=torch.float32, device=x.device)
    states = triton.next_power_of_2(N)
    warps = 1 if B * D * states <= STATES * ENOUGH * processors(x.device) else 4
    channels = max(1, STATES * warps // states)
    with torch.cuda.device_of(x):
        selective_scan_forward_decode[(B * triton.cdiv(D, channels),)](
            x, delta, k, q, packed(A), packed(state), packed(skip), output_gate, packed(delta_bias), o, final,
            D, *strides(x), *strides(delta), *strides(k), *strides(q), *strides(output_gate),
            N=N, GATE=gate, ZOH=zoh, SOFTPLUS=delta_softplus, FLUSH=not triton.knobs.runtime.interpret,
            BD=channels, BN=states, num_warps=warps,
        )  # fmt: skip
    return o, final


def packed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def strides(x: Tensor | None) -> tuple[int, int]:
    """Over the batch and the last axis."""
    return (0, 0) if x is None else (x.stride(0), x.stride(2))
