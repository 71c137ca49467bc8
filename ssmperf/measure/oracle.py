"""The float64 oracle of a recurrence: its literal loop, forward and by autograd, at any length.

Autograd of a long literal loop keeps every step. So the loop runs in segments: forward without a
graph, keeping the states between segments; then backward from the last segment to the first, each
given its initial state and the adjoint of its final state. That is the same arithmetic as autograd of
the whole loop, in bounded memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.errors import Unsupported
from ssmperf.operands import has_time, length_of, steps

SEGMENT_BYTES = {"cuda": 4 * 2**30, "cpu": 2**28}
KEPT_PER_STEP = 8  # tensors of the state's size that autograd keeps for one step, at most

# operands by name -> output, final state (None where the recurrence has none)
Definition = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Output, final state (None without one) and, where asked for, the gradients by operand name."""

    output: Tensor
    final_state: Tensor | None
    gradients: Mapping[str, Tensor]


def widen(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point or complex tensor in a real dtype or its complex counterpart."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.to(dtype.to_complex() if value.is_complex() else dtype)


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
    """Evaluate a definition in a dtype; with `grad_output`, also the gradient of every tensor operand given.

    operands: by name, `initial_state` among them if there is one.
    grad_output, grad_state: the loss's gradients at the output and (optional) at the final state.
    segment: steps a segment, chosen from the state's size if None. Without a state there is one segment.
    """
    wide = {name: widen(value, dtype) for name, value in operands.items()}
    if "initial_state" not in inspect.signature(definition).parameters:
        return _evaluate_whole(definition, wide, None if grad_output is None else widen(grad_output, dtype))
    state = wide.pop("initial_state", None)
    with torch.no_grad():
        if segment is None:
            segment = _segment_length(definition, wide, state, length)
        starts = list(range(0, length, segment))
        states, outputs = [state], []
        for start in starts:
            piece = steps(wide, start, start + segment, length)
            output, state = definition(**piece, initial_state=states[-1])
            outputs.append(output)
            states.append(state)
    result = torch.cat(outputs, dim=1)
    if grad_output is None:
        return Evaluation(result, states[-1], {})
    adjoint = torch.zeros_like(states[-1]) if grad_state is None else widen(grad_state, dtype)
    gradients = _backward(
        definition, wide, states, starts, segment, length, widen(grad_output, dtype), adjoint
    )
    return Evaluation(result, states[-1], gradients)


def as_backend(definition: Definition, dtype: torch.dtype) -> Definition:
    """A definition as a backend: evaluated in a dtype, differentiable once, in bounded memory at any length.

    Results and gradients have the dtypes of the contract.
    """

    has_state = "initial_state" in inspect.signature(definition).parameters

    def compute(**operands: Any) -> tuple[Any, Any]:
        if not has_state and operands.pop("initial_state", None) is not None:
            raise Unsupported("this definition takes no initial state")
        names = [name for name, value in operands.items() if isinstance(value, Tensor)]
        others = {name: value for name, value in operands.items() if name not in names}
        tensors = (operands[name] for name in names)
        output, state = _Evaluated.apply(definition, dtype, names, others, *tensors)  # type: ignore[no-untyped-call]
        return output, state

    return compute


class _Evaluated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        definition: Definition,
        dtype: torch.dtype,
        names: list[str],
        others: dict[str, Any],
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        operands = {**others, **dict(zip(names, tensors, strict=True))}
        length = length_of(operands)
        ctx.save_for_backward(*tensors)
        ctx.call = definition, dtype, names, others, length
        found = evaluate(definition, operands, length=length, dtype=dtype)
        output, state = definition(**steps(operands, 0, 1, length))
        final = None if found.final_state is None else found.final_state.to(state.dtype)
        return found.output.to(output.dtype), final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_state: Tensor | None) -> tuple[Any, ...]:
        definition, dtype, names, others, length = ctx.call
        tensors = dict(zip(names, ctx.saved_tensors, strict=True))
        found = evaluate(
            definition,
            {**others, **tensors},
            length=length,
            dtype=dtype,
            grad_output=grad_output,
            grad_state=grad_state,
        )
        given = (found.gradients[name].to(value.dtype) for name, value in tensors.items())
        return None, None, None, None, *given


def _evaluate_whole(
    definition: Definition,
    operands: Mapping[str, Any],
    grad_output: Tensor | None,
) -> Evaluation:
    leaves = {
        name: value.detach().requires_grad_(grad_output is not None)
        for name, value in operands.items()
        if isinstance(value, Tensor)
    }
    with torch.set_grad_enabled(grad_output is not None):
        output, _ = definition(**{**operands, **leaves})
    if grad_output is None:
        return Evaluation(output, None, {})
    found = torch.autograd.grad(output, list(leaves.values()), grad_output)
    return Evaluation(output.detach(), None, dict(zip(leaves, found, strict=True)))


def _backward(
    definition: Definition,
    operands: Mapping[str, Any],
    states: list[Tensor | None],
    starts: list[int],
    segment: int,
    length: int,
    grad_output: Tensor,
    adjoint: Tensor,
) -> dict[str, Tensor]:
    tensors = {name: value for name, value in operands.items() if isinstance(value, Tensor)}
    timed = {name for name, value in tensors.items() if has_time(name, value, length)}
    pieces: dict[str, list[Tensor]] = {name: [] for name in timed}
    totals = {name: torch.zeros_like(value) for name, value in tensors.items() if name not in timed}
    for index in reversed(range(len(starts))):
        start, stop = starts[index], min(starts[index] + segment, length)
        leaves = {
            name: value.detach().requires_grad_()
            for name, value in steps(tensors, start, stop, length).items()
        }
        constants = {name: value for name, value in operands.items() if name not in tensors}
        begin = states[index]
        if begin is not None:
            leaves["initial_state"] = begin.detach().requires_grad_()
        with torch.enable_grad():
            output, final = definition(**leaves, **constants)
        found = torch.autograd.grad(
            [output, final],
            list(leaves.values()),
            [grad_output[:, start:stop], adjoint],
            allow_unused=True,
            materialize_grads=True,
        )
        by_name: dict[str, Any] = dict(zip(leaves, found, strict=True))
        adjoint = by_name.pop("initial_state", None)
        for name, gradient in by_name.items():
            if name in timed:
                pieces[name].append(gradient)
            else:
                totals[name] += gradient
    joined = {name: torch.cat(parts[::-1], dim=1) for name, parts in pieces.items()}
    return {**joined, **totals, **({} if adjoint is None else {"initial_state": adjoint})}


def _segment_length(
    definition: Definition,
    operands: Mapping[str, Any],
    state: Any,
    length: int,
) -> int:
    _, after = definition(**steps(operands, 0, 1, length), initial_state=state)
    step = KEPT_PER_STEP * after.numel() * after.element_size()
    return max(1, min(length, int(SEGMENT_BYTES[after.device.type] // step)))
