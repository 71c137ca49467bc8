"""Reference: the oracle's float64 answer for some values, and the error of a low precision on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf.errors import Unsupported
from ssmperf.judge.answer import Contract
from ssmperf.judge.oracle import Evaluation, as_backend, evaluate
from ssmperf.judge.tolerance import perturb, relative_error
from ssmperf.operands.dtypes import dtype_of
from ssmperf.operands.subject import Subject
from ssmperf.operands.values import Values, contract


@dataclass(frozen=True)
class Reference:
    """The oracle's answer for some values, and the error of an independent low-precision evaluation.

    output_scale: value to which errors of the output are relative; None means its largest value.
    factors: by which the tolerance of a result is larger than its rounding asks for; 1 where none is given.
    """

    exact: Evaluation
    low_errors: Mapping[str, float]
    output_dtype: torch.dtype
    state_dtype: torch.dtype | None
    output_scale: float | None = None
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        """The shapes and dtypes that a call's results must have."""
        state = self.exact.final_state
        return Contract(
            tuple(self.exact.output.shape),
            self.output_dtype,
            None if state is None else tuple(state.shape),
            None if state is None else self.state_dtype,
        )


def make_reference(
    subject: Subject, definition: Callable[..., Any], values: Values, *, gradients: bool
) -> Reference:
    """Evaluate a definition on a subject's values in float64, and independently in a low precision.

    For a layer, the exact evaluation runs the layer in float64 around the definition. The low-precision one
    runs the layer in the case's dtype around the definition in float32 or wider. Errors are then relative to
    what the layer adds to x.

    Raises:
        Unsupported: these values overflow the case's dtype.
    """
    case, dtype = subject.case, dtype_of(subject.case.dtype)
    residual = subject.residual(values)
    if residual is None:
        return reference_of(definition, values, length=case.shape["T"], dtype=dtype, gradients=gradients)
    low = subject.function(as_backend(definition, torch.promote_types(dtype, torch.float32)), dtype)
    return reference_of(
        wide_function(subject, definition, values),
        values,
        length=case.shape["T"],
        dtype=dtype,
        gradients=gradients,
        low=low,
        residual=residual,
    )


def wide_function(subject: Subject, definition: Callable[..., Any], values: Values) -> Callable[..., Any]:
    """Get what the oracle evaluates in float64: the definition, or the layer in float64 around it."""
    if subject.residual(values) is None:
        return definition
    return subject.function(as_backend(definition, torch.float64), torch.float64)


def reference_of(
    definition: Callable[..., Any],
    values: Values,
    *,
    length: int,
    dtype: torch.dtype,
    gradients: bool,
    low: Callable[..., Any] | None = None,
    residual: Tensor | None = None,
) -> Reference:
    """Evaluate a function in float64, and measure the error of an independent low-precision evaluation.

    The low-precision evaluation runs the definition in float32 (float64 for a float64 case) on operands
    moved by up to half a unit in the last place of the case's dtype, and rounds the output to that dtype.

    low: a function without a state to evaluate instead of the definition, entirely in the case's dtype. It is
        evaluated on moved and on unmoved operands, since the rounding inside it may outweigh that of the
        operands; the larger error counts.
    residual: a part of the output that is passed through; errors are relative to what is added to it.

    Raises:
        Unsupported: these values overflow the dtype, so that errors could not be measured.
    """
    grad_output, grad_state = (values.grad_output, values.grad_state) if gradients else (None, None)
    exact = evaluate(
        definition, values.operands, length=length, grad_output=grad_output, grad_state=grad_state
    )
    if low is None:
        working = torch.promote_types(dtype, torch.float32)
        output, state = contract(definition, values.operands, length)
        output_dtype, state_dtype = output.dtype, None if state is None else state.dtype
        samples: list[Mapping[str, Any]] = [perturb(values.operands, working)]
    else:
        working = output_dtype = dtype
        state_dtype = None
        samples = [perturb(values.operands, dtype), values.operands]
    scale = None if residual is None else float((exact.output - residual).abs().max())
    found = []
    for operands in samples:
        rounded = evaluate(
            low or definition,
            operands,
            length=length,
            dtype=working,
            grad_output=grad_output,
            grad_state=grad_state,
        )
        found.append(_errors(rounded, exact, output_dtype, scale))
    overflown = {name for errors in found for name, error in errors.items() if not math.isfinite(error)}
    if overflown:
        raise Unsupported(f"these operands overflow {dtype} ({', '.join(sorted(overflown))})")
    low_errors = {name: max(errors[name] for errors in found) for name in found[0]}
    return Reference(exact, low_errors, output_dtype, state_dtype, scale)


def _errors(
    rounded: Evaluation, exact: Evaluation, output_dtype: torch.dtype, scale: float | None
) -> dict[str, float]:
    errors = {"output": relative_error(rounded.output.to(output_dtype), exact.output, scale)}
    if exact.final_state is not None and rounded.final_state is not None:
        errors["final_state"] = relative_error(rounded.final_state, exact.final_state)
    for name, gradient in rounded.gradients.items():
        errors[name] = relative_error(gradient, exact.gradients[name])
    return errors
