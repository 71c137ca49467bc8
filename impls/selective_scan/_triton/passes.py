"""The launches of a pass, planned once per kind of call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..._triton.ahead import start
from ..._triton.plan import Plan, Slot, planned
from .backward import selective_scan_backward
from .forward import selective_scan_forward
from .groups import Arriving, Fused, Gradients, Operands, Summaries
from .schedule import Call, Schedule
from .streamed import selective_scan_forward_streamed, selective_scan_summary_streamed
from .summary import selective_scan_summary

FLOAT = torch.float32


@planned
def forward_pass(
    plan: Plan, x: Slot, delta: Slot, k: Slot, q: Slot, A: Slot | None, state: Slot | None,
    skip: Slot | None, z: Slot | None, bias: Slot | None, final: Slot | None, bounds: Slot | None, *,
    N: int, call: Call, saves: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """o, the final states; where it `saves`, checkpoints (B, checkpoints, states, D) and a job for `wait`.

    All operands are contiguous, k and q in whole words of 8 bytes, of whose numbers N are states.
    final: given for packed sequences, since no program sees one without steps.
    """
    operands, fused = Operands(x, delta, k, q, A), Fused(skip, z, bias)
    schedule = Schedule.of("forward", call, x, k, q, N, fused, operands[:4], sequences_of(bounds))
    table = table_of(plan, schedule, bounds)
    o = plan.like(x)
    final = final or plan.empty((schedule.B, schedule.D, N), FLOAT)
    planes = (schedule.B, schedule.checkpoints, schedule.rows, schedule.D)
    saved = plan.empty(planes, FLOAT) if saves else None
    common: dict[str, Any] = {
        "operands": operands, "state": state, "o": o, "final": final, "saved": saved,
        "summaries": summarise(plan, schedule, operands, Fused(bias=bias), table, reverse=False),
        "checkpoints": schedule.checkpoints, "blocks": schedule.blocks,
        **schedule.sizes, **schedule.constants,
    }  # fmt: skip
    if schedule.cut.stages:
        plan.launch(selective_scan_forward_streamed, (schedule.programs,), **common)
    else:
        plan.launch(selective_scan_forward, (schedule.programs,), fused=fused, table=table, **common)
    job = None
    if saved is not None and on_gpu(x):
        dstate = final if call.packed else None
        # gradients are like o and final
        given = (x, delta, k, q, A, skip, z, bias, saved, o, final, dstate, bounds)
        keys = tuple(None if slot is None else slot.key for slot in given)
        job = start((call, N, *keys), lambda: partial(backward_pass.prepare, *given, N=N, call=call))
    return o, final, saved, job


def on_gpu(x: Slot) -> bool:
    return x.device.type == "cuda"


@planned
def backward_pass(
    plan: Plan, x: Slot, delta: Slot, k: Slot, q: Slot, A: Slot | None, skip: Slot | None, z: Slot | None,
    bias: Slot | None, saved: Slot, do: Slot, dfinal: Slot, dstate: Slot | None, bounds: Slot | None, *,
    N: int, call: Call,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """The fields of `groups.Gradients`: sums over channels, batches and segments are left to do.

    Operands as `forward_pass` takes them. dstate: given for packed sequences.
    """
    operands, fused = Operands(x, delta, k, q, A), Fused(skip, z, bias)
    schedule = Schedule.of("backward", call, x, k, q, N, fused, (*operands[:4], do), sequences_of(bounds))
    table = table_of(plan, schedule, bounds)
    cut, blocks, per_channel = (
        schedule.cut,
        schedule.channel_blocks,
        (schedule.B, schedule.segments, schedule.D),
    )
    gradients = Gradients(
        x=plan.like(x),
        delta=plan.like(delta),
        kq=plan.empty((schedule.B, blocks, schedule.T, cut.groups, 2, cut.states), FLOAT),
        A=A and plan.empty((schedule.B, schedule.segments, schedule.rows, schedule.D), FLOAT),
        state=dstate or plan.like(dfinal),
        skip=skip and plan.empty(per_channel, FLOAT),
        z=z and plan.like(z),
        bias=bias and plan.empty(per_channel, FLOAT),
    )
    reversed_operands = operands._replace(x=do)
    plan.launch(
        selective_scan_backward, (schedule.programs,),
        operands=operands, fused=fused, table=table, saved=saved, arriving=Arriving(do, dfinal),
        summaries=summarise(plan, schedule, reversed_operands, Fused(z=z, bias=bias), table, reverse=True),
        scratch=plan.empty((schedule.scratch_blocks, schedule.rows, cut.block), FLOAT),
        gradients=gradients, checkpoints=schedule.checkpoints, stretches=schedule.stretches,
        **schedule.sizes, **schedule.constants,
    )  # fmt: skip
    return gradients


def table_of(plan: Plan, schedule: Schedule, bounds: Slot | None) -> Slot | None:
    """Launch what finds the segments of packed sequences."""
    if schedule.packed is None or bounds is None:
        return None
    return schedule.packed.table(plan, bounds)


def sequences_of(bounds: Slot | None) -> int:
    return 0 if bounds is None else bounds.shape[0] - 1


def summarise(
    plan: Plan, schedule: Schedule, operands: Operands, fused: Fused, table: Slot | None, *,
    reverse: bool,
) -> Summaries | None:  # fmt: skip
    """Launch what finds the segments' summaries; None with one segment per sequence.

    operands: reverse, with the gradient of o as x. fused: reverse, without skip; forward, without z too.
    """
    packed = schedule.packed
    count = schedule.B * (schedule.segments - 1)
    if packed is not None:
        count = packed.segments if packed.several else 0
    if count == 0:
        return None
    planes = (schedule.B, schedule.segments, schedule.rows, schedule.D)
    sums = (schedule.B, schedule.segments, schedule.D)
    summaries = Summaries(
        plan.empty(planes, FLOAT), plan.empty(sums if schedule.call.gate == "exp" else planes, FLOAT)
    )
    own = schedule.of_summary("backward_summary" if reverse else "forward_summary")
    common: dict[str, Any] = {
        "operands": operands, "summaries": summaries, "blocks": own.blocks, "REVERSE": reverse,
        **own.sizes, **own.constants,
    }  # fmt: skip
    if own.cut.stages:
        plan.launch(selective_scan_summary_streamed, (count * own.channel_blocks,), **common)
    else:
        grid = (count * own.channel_blocks,)
        plan.launch(selective_scan_summary, grid, fused=fused, table=table, **common)
    return summaries
