"""The launches of a pass, as functions of its tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.ahead import launch

from .backward import selective_scan_backward
from .forward import selective_scan_forward
from .groups import Arriving, Gradients, Operands, Fused, Summaries
from .plan import Plan, loop_bound
from .streamed import selective_scan_forward_streamed, selective_scan_summary_streamed
from .summary import selective_scan_summary
from .tiles import CHECKPOINT


def whole_words(k: Tensor) -> Tensor:
    """k or q (B, T, N) in rows of whole words of 8 bytes, contiguous, filled up with zeros."""
    per = 8 // k.element_size()
    if k.shape[2] % per:
        k = torch.nn.functional.pad(k, (0, -k.shape[2] % per))
    k = k.contiguous()
    return k.clone() if k.data_ptr() % 8 else k


def empty(*shape: int, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def summarise(plan: Plan, operands: Operands, fused: Fused, *, reverse: bool) -> Summaries | None:
    """What each segment but the last (reverse: the first) does to the state; None with no such segment.

    operands: reverse, the gradient of o for x. fused: reverse, without skip; forward, without z too.
    """
    count, inner = plan.inner(reverse=reverse)
    if count == 0:
        return None
    states = empty(plan.B, plan.segments, plan.rows, plan.D, like=operands.x)
    decays = torch.empty_like(states)
    if plan.gate == "exp":
        decays = empty(plan.B, plan.segments, plan.D, like=operands.x)
    summaries = Summaries(states, decays)
    own = plan.of_summary("backward_summary" if reverse else "forward_summary")
    counts = {
        "T": plan.T, "length": plan.length, "segments": plan.segments,
        "blocks": loop_bound(plan.length // own.cut.steps),
    }  # fmt: skip
    if own.cut.stages:
        launch(
            selective_scan_summary_streamed, count * own.channel_blocks,
            operands=operands, summaries=summaries, REVERSE=reverse, **counts, **own.constants,
        )  # fmt: skip
    else:
        launch(
            selective_scan_summary, count * own.channel_blocks,
            operands=operands, fused=fused, table=plan.table, inner=inner, summaries=summaries,
            REVERSE=reverse, **counts, **own.constants,
        )  # fmt: skip
    return summaries


def scan(
    plan: Plan, operands: Operands, fused: Fused, state: Tensor | None, o: Tensor, final: Tensor,
    saved: Tensor | None,
) -> None:  # fmt: skip
    """The forward pass: o, the final states, and, where `saved` is given, the states at checkpoints."""
    summaries = summarise(plan, operands, Fused(bias=fused.bias), reverse=False)
    common = {
        "operands": operands, "state": state, "summaries": summaries, "o": o, "final": final, "saved": saved,
        "T": plan.T, "length": plan.length, "segments": plan.segments, "checkpoints": plan.checkpoints,
        "blocks": loop_bound(plan.length // plan.cut.steps),
    }  # fmt: skip
    if plan.cut.stages:
        launch(selective_scan_forward_streamed, plan.programs, **common, **plan.constants)
    else:
        launch(
            selective_scan_forward, plan.programs,
            fused=fused, table=plan.table, **common, **plan.constants,
        )  # fmt: skip


def scan_back(plan: Plan, operands: Operands, fused: Fused, saved: Tensor, arriving: Arriving) -> Gradients:
    """The backward pass: gradients, sums over channels, batches and segments left to do."""
    x, delta, A = operands.x, operands.delta, operands.A
    per_channel = (plan.B, plan.segments, plan.D)
    gradients = Gradients(
        x=torch.empty_like(x),
        delta=torch.empty_like(delta),
        kq=empty(plan.B, plan.channel_blocks, plan.T, plan.cut.groups, 2, plan.cut.states, like=x),
        A=None if A is None else empty(plan.B, plan.segments, plan.rows, plan.D, like=x),
        # A packed sequence without steps passes its gradient on: no program sees it.
        state=torch.empty_like(arriving.final) if plan.packed is None else arriving.final.clone(),
        skip=None if fused.skip is None else empty(*per_channel, like=x),
        z=None if fused.z is None else torch.empty_like(fused.z),
        bias=None if fused.bias is None else empty(*per_channel, like=x),
    )
    scratch = empty(plan.scratch_blocks, plan.rows, plan.cut.block, like=x)
    summaries = summarise(
        plan, operands._replace(x=arriving.o), Fused(z=fused.z, bias=fused.bias), reverse=True
    )
    launch(
        selective_scan_backward, plan.programs,
        operands=operands, fused=fused, table=plan.table, saved=saved, arriving=arriving,
        summaries=summaries, scratch=scratch, gradients=gradients,
        T=plan.T, length=plan.length, segments=plan.segments, checkpoints=plan.checkpoints,
        stretches=loop_bound(plan.length // CHECKPOINT), **plan.constants,
    )  # fmt: skip
    return gradients
