"""The float64 oracle of a recurrence: its literal loop, forward and by autograd, at any length.

Autograd of a long literal loop keeps every step in memory, and launching the steps takes long. The loop is
therefore cut into segments. Only the states and adjoints between segments are kept, which bounds the memory.
To save launches, many segments of a small state run in parallel as one batch, and on a GPU one segment of a
larger state is recorded and replayed for the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.judge.loops.parallel_segments import ParallelSegments, segment_length
from ssmperf.engine.judge.loops.segments import (
    Definition,
    Gradients,
    Loop,
    Pass,
    SequentialSegments,
    measure_step,
    sequential_segments,
)
from ssmperf.engine.judge.tolerance import BANDS, add_noise, is_wider, perturb
from ssmperf.engine.operands.contract import TIME
from ssmperf.engine.operands.dtypes import differentiable, widen
from ssmperf.engine.operands.time_axis import cut, has_time, length_of, steps, with_time
from ssmperf.engine.registry.declarations import PACKED
from ssmperf.errors import Unsupported

STATE = "initial_state"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Output, final state (None if the recurrence has none) and, if requested, gradients by operand name."""

    output: Tensor
    final_state: Tensor | None
    gradients: Mapping[str, Tensor]


def evaluate(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    length: int,
    dtype: torch.dtype = torch.float64,
    grad_output: Tensor | None = None,
    grad_state: Tensor | None = None,
    segment: int | None = None,
) -> Evaluation:
    """Evaluate a definition in a dtype and, given `grad_output`, the gradients of all its tensor operands.

    operands: by name, including `initial_state` if there is one.
    grad_output, grad_state: gradients of the loss at the output and (optional) at the final state.
    segment: steps per segment, for segments that run one after another; None chooses the fastest method. A
        recurrence without a state always runs as one segment.
    """
    if operands.get(PACKED) is not None:
        return _evaluate_packed(
            definition, operands, length=length, dtype=dtype, grad_output=grad_output, grad_state=grad_state
        )
    wide = {name: widen(value, dtype) for name, value in operands.items()}
    if STATE not in inspect.signature(definition).parameters:
        return _evaluate_whole(definition, wide, None if grad_output is None else widen(grad_output, dtype))
    state = wide.pop(STATE, None)
    loop = _method(Loop(definition, wide, with_time(wide, length), length), state, segment)
    output, final = loop.forward(state)
    if grad_output is None:
        return Evaluation(output, final, {})
    adjoint = torch.zeros_like(final) if grad_state is None else widen(grad_state, dtype)
    gradients, start = loop.backward(widen(grad_output, dtype), adjoint)
    of_state = {} if start is None else {STATE: start}
    return Evaluation(output, final, {**gradients, **of_state})


def _evaluate_packed(
    definition: Definition,
    operands: Mapping[str, Any],
    *,
    length: int,
    dtype: torch.dtype,
    grad_output: Tensor | None,
    grad_state: Tensor | None,
) -> Evaluation:
    """Evaluate each of the packed sequences by itself. One without steps keeps its state.

    The definition never sees the bounds, so that it may be wrong about them.
    """
    bounds: list[int] = operands[PACKED].tolist()
    whole = {name: value for name, value in operands.items() if name not in (PACKED, STATE)}
    timed, before = with_time(whole, length), operands.get(STATE)
    found: list[Evaluation | None] = []
    for number, (first, end) in enumerate(pairwise(bounds)):
        own = cut(whole, timed, first, end)
        if before is not None:
            own[STATE] = before[number : number + 1]
        found.append(
            None
            if first == end
            else evaluate(
                definition,
                own,
                length=end - first,
                dtype=dtype,
                grad_output=None if grad_output is None else grad_output[:, first:end],
                grad_state=None if grad_state is None else grad_state[number : number + 1],
            )
        )
    known = [each for each in found if each is not None]
    outputs, one = torch.cat([each.output for each in known], TIME), known[0].final_state

    def of_each(kept: Tensor | None, own: Callable[[Evaluation], Tensor | None]) -> Tensor:
        """Put together what each sequence has one of; one without steps has what is kept, or zeros."""
        assert one is not None
        parts = []
        for number, each in enumerate(found):
            part = own(each) if each else None
            if part is None and kept is not None:
                part = kept[number : number + 1]
            if part is not None and part.is_complex() and not one.is_complex():
                part = part.real  # as a call without complex operands takes a complex state
            parts.append(torch.zeros_like(one) if part is None else part.to(one.dtype))
        return torch.cat(parts)

    states = None if one is None else of_each(before, lambda each: each.final_state)
    if grad_output is None:
        return Evaluation(outputs, states, {})
    gradients = Gradients(timed)
    for each in reversed(known):
        gradients.add({name: value for name, value in each.gradients.items() if name != STATE})
    of_operands = gradients.join()
    if before is not None:
        of_operands[STATE] = of_each(grad_state, lambda each: each.gradients.get(STATE))
    return Evaluation(outputs, states, of_operands)


def _method(loop: Loop, state: Tensor | None, segment: int | None) -> Pass:
    """Choose how to run a loop: in parallel segments if that is faster, otherwise in sequential ones."""
    if segment is not None:
        return SequentialSegments(loop, segment)
    step = measure_step(loop.definition, loop.operands, loop.timed, state) if loop.timed else None
    if step is None:
        return SequentialSegments(loop, loop.length)
    rows = segment_length(step, loop.length, loop.device, loop.definition)
    if rows is not None:
        return ParallelSegments(loop, rows, step)
    return sequential_segments(loop, step)


def as_backend(
    definition: Definition, dtype: torch.dtype, *, erring_in: torch.dtype | None = None, draw: int = 0
) -> Definition:
    """Turn a definition into a backend that evaluates it in a dtype, in bounded memory at any length.

    The backend is differentiable once. Its results and gradients have the dtypes of the contract.

    erring_in: dtype of a case in which the backend errs as a right one may: operands and results are moved by
        up to half a unit in the last place, and gradients of operands wider than this dtype, such as gates,
        by its rounding band. Without the move, results would be rounded as those of an exact evaluation.
    draw: of these moves.
    """

    has_state = STATE in inspect.signature(definition).parameters

    def compute(**operands: Any) -> tuple[Any, Any]:
        if not has_state and operands.pop(STATE, None) is not None:
            raise Unsupported("this definition takes no initial state")
        names = [name for name, value in operands.items() if differentiable(value)]
        others = {name: value for name, value in operands.items() if name not in names}
        tensors = (operands[name] for name in names)
        output, state = _Evaluated.apply(definition, dtype, erring_in, draw, names, others, *tensors)  # type: ignore[no-untyped-call]
        return output, state

    return compute


class _Evaluated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        definition: Definition,
        dtype: torch.dtype,
        erring_in: torch.dtype | None,
        draw: int,
        names: list[str],
        others: dict[str, Any],
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        operands = {**others, **dict(zip(names, tensors, strict=True))}
        length = length_of(operands)
        ctx.save_for_backward(*tensors)
        ctx.call = definition, dtype, erring_in, draw, names, others, length
        given = operands if erring_in is None else perturb(operands, dtype, draw=draw)
        found = evaluate(definition, given, length=length, dtype=dtype)
        output, state = definition(**steps(operands, 0, 1, length))
        final = None if found.final_state is None else found.final_state.to(state.dtype)
        if erring_in is None:
            return found.output.to(output.dtype), final
        moved = perturb({"output": found.output.to(output.dtype)}, dtype, draw=draw)["output"]
        return moved.to(output.dtype), final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor | None) -> tuple[Any, ...]:
        definition, dtype, erring_in, draw, names, others, length = ctx.call
        tensors = dict(zip(names, ctx.saved_tensors, strict=True))
        operands = {**others, **tensors}
        found = evaluate(
            definition,
            operands if erring_in is None else perturb(operands, dtype, draw=draw),
            length=length,
            dtype=dtype,
            grad_output=grad_output,
            grad_state=grad_state,
        )
        gradients = {name: found.gradients[name].to(value.dtype) for name, value in tensors.items()}
        if erring_in is not None:
            moved = perturb(gradients, dtype, draw=draw)
            for name in gradients:
                if is_wider(tensors[name].dtype, erring_in):
                    timed = has_time(name, tensors[name], length)
                    moved[name] = add_noise(moved[name], BANDS[erring_in][True], timed=timed, draw=draw)
            gradients = {name: moved[name].to(value.dtype) for name, value in tensors.items()}
        return None, None, None, None, None, None, *gradients.values()


def _evaluate_whole(
    definition: Definition,
    operands: Mapping[str, Any],
    grad_output: Tensor | None,
) -> Evaluation:
    leaves = {
        name: value.detach().requires_grad_(grad_output is not None)
        for name, value in operands.items()
        if differentiable(value)
    }
    with torch.set_grad_enabled(grad_output is not None):
        output, _ = definition(**{**operands, **leaves})
    if grad_output is None:
        return Evaluation(output, None, {})
    found = torch.autograd.grad(output, list(leaves.values()), grad_output)
    return Evaluation(output.detach(), None, dict(zip(leaves, found, strict=True)))
