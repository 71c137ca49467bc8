"""Subject: the function that a case calls, with its values. It is an operation, or a layer around one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import DS, DY, STATE, STATELESS, Call, parse
from ssmperf.engine.cases.case import Case
from ssmperf.engine.operands.build import build_operands, initial_state
from ssmperf.engine.operands.calls.forms import in_memory, wanted
from ssmperf.engine.operands.calls.memory import one_number, viewed
from ssmperf.engine.operands.layer_subject import LayerSubject
from ssmperf.engine.operands.time_axis import laid_out
from ssmperf.engine.operands.values import Values, contract, draw_cotangents

GRADIENTS = {"output": "grad_output", "final_state": "grad_state"}  # fields of `Values`


class Subject(Protocol):
    """The function and values of a case, whatever its backend."""

    @property
    def case(self) -> Case: ...

    def values(self, number: int, *, with_state: bool) -> Values:
        """Draw values: operands, and random gradients of the loss at the results.

        number: number of the draw (0, 1, ...).
        with_state: include a random initial state and a gradient at the final state, if there are states.
        """
        ...

    def function(self, compute: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
        """Make the function that takes the operands by name and computes the recurrence with `compute`.

        dtype: of the parameters that the function holds.
        """
        ...

    def residual(self, values: Values) -> Tensor | None:
        """Return the part of the output that is passed through unchanged; None for an operation."""
        ...

    def inner(self, values: Values) -> Values | None:
        """Return the values of the recurrence inside a layer with these values; None for an operation."""
        ...

    def lower(self, operands: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the operands that the recurrence gets when the subject is called with these."""
        ...


@dataclass(frozen=True)
class OperationSubject:
    """A recurrence on the operands of a model or a regime."""

    case: Case
    device: str

    def values(self, number: int, *, with_state: bool) -> Values:
        case, device = self.case, self.device
        recurrence, T = registry.recurrence(case.recurrence), case.shape["T"]
        operands = build_operands(case, draw=number, device=device)
        call = parse(case.call)
        if with_state and recurrence.has_state and STATELESS not in call.circumstances:
            state = initial_state(case, operands, draw=number, device=device)
            operands |= in_memory({STATE: state}, call)
        output, state = contract(recurrence.definition, operands, T)
        full = output.new_empty(output.shape[0], T, *output.shape[2:])
        grad_output, grad_state = draw_cotangents(full, state, seed=17 + number)
        grad_output = laid_out({"output": grad_output}, case.layout, T)["output"]
        if not with_state and grad_state is not None:
            grad_state = torch.zeros_like(grad_state)
        values = Values(
            operands, grad_output, grad_state, wanted(operands, call), circumstances=call.circumstances
        )
        return arriving(values, call)

    def function(self, compute: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
        return compute

    def residual(self, values: Values) -> Tensor | None:
        return None

    def inner(self, values: Values) -> Values | None:
        return None

    def lower(self, operands: Mapping[str, Any]) -> Mapping[str, Any]:
        return operands


def arriving(values: Values, call: Call) -> Values:
    """Show the gradients at the results as a call has them: as views, or not at all."""
    found: dict[str, Any] = {}
    missing = set()
    for name, result in ((DY, "output"), (DS, "final_state")):
        field, view = GRADIENTS[result], call.views.get(name)
        gradient: Tensor | None = getattr(values, field)
        if view is None or gradient is None:
            continue
        if view == "missing":
            missing.add(result)
            found[field] = torch.zeros_like(gradient)
        else:
            found[field] = one_number(gradient) if view == "expanded" else viewed(gradient, view)
    return replace(values, **found, missing=frozenset(missing))


def subject_of(case: Case, device: str) -> Subject:
    """Make the subject of a case on a torch device."""
    return LayerSubject(case, device) if case.level == "block" else OperationSubject(case, device)
