"""One step where no gradient is wanted: every state is read once and written once, all side by side."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .exchange import over_groups
from .options import advance_held, channel_values, held_rates, held_steps, sigmoid, softplus, step_size
from .steps import advance, constant, decay_rates, gates, load_state, store_state, tile


@triton.jit
def fetch_row(k, stride, group, N: tl.constexpr, M: tl.constexpr):
    """M tensors (1, G) of k (N,)."""
    values = ()
    for j in tl.static_range(M):
        n = group * M + j
        values += (tl.load(k + n * stride, mask=n < N, other=0.0).to(tl.float32),)
    return values


@triton.jit
def selective_scan_forward_decode(
    x, delta, k, q, A, state, skip, z, bias, o, final,
    x_batch, x_channel, delta_batch, delta_channel, k_batch, k_state, q_batch, q_state, z_batch, z_channel,
    D: tl.constexpr, N: tl.constexpr, GATE: tl.constexpr, HELD: tl.constexpr, SOFTPLUS: tl.constexpr,
    EVEN: tl.constexpr, FLUSH: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """A program, one warp: all N states of BD channels of a batch element."""
    blocks = tl.cdiv(D, BD)
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    channel, group, in_channels = tile(tl.program_id(0) % blocks, D, BD, G, 1, EVEN)

    rates = decay_rates(A, N, channel, group, in_channels, GATE, M)
    inverse = held_rates(rates, HELD, M)
    shift = channel_values(bias, channel, in_channels)
    weight = channel_values(skip, channel, in_channels)
    if state is not None:
        S = load_state(state + batch * D * N, channel, group, N, in_channels, M)
    else:
        S = constant(0.0, BD, G, M)
    value = channel_values(x + batch * x_batch, channel * x_channel, in_channels)[0]
    size = channel_values(delta + batch * delta_batch, channel * delta_channel, in_channels)[0]
    keys = fetch_row(k + batch * k_batch, k_state, group, N, M)
    queries = fetch_row(q + batch * q_batch, q_state, group, N, M)
    if bias is not None:
        size += shift[0]
    if SOFTPLUS:
        size = softplus(size)
    size = step_size(size, HELD)

    gate = gates(size, rates, keys, GATE, FLUSH, M)
    if HELD:
        S = advance_held(S, gate, held_steps(size, gate, rates, inverse, M), keys, value, M)
    else:
        S = advance(S, gate, keys, size * value, M)
    store_state(final + batch * D * N, S, channel, group, N, in_channels, M)
    total = S[0] * queries[0]
    for j in tl.static_range(1, M):
        total = tl.fma(S[j], queries[j], total)
    if skip is not None:
        total += weight[0] * (1.0 / G) * value  # in the sum of G of them
    output = over_groups((total,), 1, 1)[0]
    if z is not None:
        gating = channel_values(z + batch * z_batch, channel * z_channel, in_channels)[0]
        output *= gating * sigmoid(gating)
    tl.store(o + batch * D + channel, output.to(o.dtype.element_ty), mask=in_channels & (group == 0))


def decode(
    x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None, gate: str, *,
    zoh: bool = False, skip: Tensor | None = None, output_gate: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, 1, D) and S_1 (B, D, N) of one step; x, delta, k, q and the output gate with any strides."""
    (B, _, D), N = x.shape, k.shape[2]
    o = torch.empty(B, 1, D, dtype=x.dtype, device=x.device)
    final = torch.empty(B, D, N, dtype=torch.float32, device=x.device)
    rows = max(4, triton.next_power_of_2(N))
    states = 4 if rows <= 128 else 8  # 16 bytes a thread, side by side; a warp has 32 groups at most
    channels = 32 * states // rows
    with torch.cuda.device_of(x):
        selective_scan_forward_decode[(B * triton.cdiv(D, channels),)](
            x, delta, k, q, packed(A), packed(state), packed(skip), output_gate, packed(delta_bias), o, final,
            *strides(x), *strides(delta), *strides(k), *strides(q), *strides(output_gate),
            D=D, N=N, GATE=gate, HELD=zoh, SOFTPLUS=delta_softplus, EVEN=D % channels == 0,
            FLUSH=not triton.knobs.runtime.interpret, BD=channels, G=rows // states, M=states, num_warps=1,
        )  # fmt: skip
    return o, final


def packed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def strides(x: Tensor | None) -> tuple[int, int]:
    """Over the batch and the last axis."""
    return (0, 0) if x is None else (x.stride(0), x.stride(2))
