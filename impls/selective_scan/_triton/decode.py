"""One step where no gradient is wanted: every state is read once and written once, all side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..._triton.plan import Plan, Slot, planned
from .function import dense
from .groups import Fused, Operands, Task, Tile, constants
from .lane_sums import over_groups
from .options import add_skip, sigmoid, softplus
from .schedule import Call
from .segments import initial_state
from .states import lanes_of, split_program, store_state
from .steps import advance, gates, load_fixed, read
from .zoh import finite_size


class Strides(NamedTuple):
    """Give the strides of every operand of a step, over the batch and over its last axis."""

    x: Any
    delta: Any
    k: Any
    q: Any
    z: Any


@triton.jit
def selective_scan_forward_decode(
    operands, fused, state, o, final, strides, TASK: tl.constexpr, TILE: tl.constexpr
):
    """Take one step of a batch element, for a block of channels and all their states."""
    channels, index = split_program(TASK.D, TILE)
    batch = index.to(tl.int64)
    lanes = lanes_of(channels, TASK.D, TILE.EVEN, TILE)
    fixed = load_fixed(operands.A, fused, lanes, TASK, TILE.STATES)
    S = initial_state(state, batch, lanes, TASK, TILE)
    value = load_strided(operands.x, strides.x, batch, lanes)
    size = load_step_size(operands.delta, strides.delta, batch, lanes, fixed, TASK)
    keys = load_row(operands.k, strides.k, batch, lanes, TASK.N, TILE.STATES)
    queries = load_row(operands.q, strides.q, batch, lanes, TASK.N, TILE.STATES)

    gate = gates(size, fixed.rates, keys, TASK.GATE, TILE.STATES)
    S = advance(S, gate, size, keys, value, fixed, TASK.ZOH, TILE.STATES)
    store_state(final + batch * TASK.D * TASK.N, S, lanes, TASK.N, TILE.STATES)

    total = add_skip(read(S, queries, TILE.STATES), fixed, value, TILE.GROUPS)
    output = over_groups((total,), 1, 1)[0]
    if fused.z is not None:
        gating = load_strided(fused.z, strides.z, batch, lanes)
        output *= gating * sigmoid(gating)
    to = o + batch * TASK.D + lanes.channel
    tl.store(to, output.to(o.dtype.element_ty), mask=lanes.inside & (lanes.group == 0))


@triton.jit
def load_strided(x, stride, batch, lanes):
    """One tensor (BD, G) of x (B, 1, D). stride: over the batch and over channels."""
    values = tl.load(x + batch * stride[0] + lanes.channel * stride[1], mask=lanes.inside, other=0.0)
    return values.to(tl.float32)


@triton.jit
def load_step_size(delta, stride, batch, lanes, fixed, TASK: tl.constexpr):
    size = load_strided(delta, stride, batch, lanes)
    if len(fixed.bias) > 0:
        size += fixed.bias[0]
    if TASK.SOFTPLUS:
        size = softplus(size)
    return finite_size(size, TASK.ZOH)


@triton.jit
def load_row(k, stride, batch, lanes, N: tl.constexpr, M: tl.constexpr):
    """M tensors (1, G) of k (B, 1, N). stride: over the batch and over states."""
    values = ()
    for j in tl.static_range(M):
        n = lanes.group * M + j
        values += (tl.load(k + batch * stride[0] + n * stride[1], mask=n < N, other=0.0).to(tl.float32),)
    return values


@planned
def step(
    plan: Plan, x: Slot, delta: Slot, k: Slot, q: Slot, A: Slot | None, state: Slot | None,
    skip: Slot | None, z: Slot | None, bias: Slot | None, *, call: Call,
) -> tuple[Slot, Slot]:  # fmt: skip
    """The launch behind `decode`; A, state, skip and bias are contiguous."""
    (B, _, D), N = x.shape, k.shape[2]
    o, final = plan.empty(x.shape, x.dtype), plan.empty((B, D, N), torch.float32)
    rows = max(4, triton.next_power_of_2(N))
    states = 4 if rows <= 128 else 8  # 16 bytes per thread, side by side; a warp has 32 groups at most
    channels = 32 * states // rows
    tile = Tile(
        STEPS=1, CHANNELS=channels, GROUPS=rows // states, STATES=states, ADJACENT=1,
        BLOCKS=1, EVEN=D % channels == 0, WHOLE=True, STAGES=0,
    )  # fmt: skip
    plan.launch(
        selective_scan_forward_decode, (B * triton.cdiv(D, channels),),
        operands=Operands(x, delta, k, q, A), fused=Fused(skip, z, bias), state=state, o=o, final=final,
        strides=Strides(*(each and (each.strides[0], each.strides[2]) for each in (x, delta, k, q, z))),
        TASK=constants(Task(D, N, call.gate, call.zoh, call.softplus, False, False)), TILE=constants(tile),
        num_warps=1,
    )  # fmt: skip
    return o, final


def decode(
    x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None, call: Call, *,
    skip: Tensor | None = None, output_gate: Tensor | None = None, delta_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (B, 1, D) and S_1 (B, D, N) of one step; x, delta, k, q and the output gate with any strides."""
    o, final = step(
        x, delta, k, q, dense(A), dense(state), dense(skip), output_gate, dense(delta_bias), call=call
    )
    return o, final
