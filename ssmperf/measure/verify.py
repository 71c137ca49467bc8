"""Judging a backend against the float64 oracle before any time is taken.

Each case is judged twice, on fresh values written into the same buffers: output and final state
first, then (where the pass has them) every gradient. A cached result, a stale graph, a changed input,
an unwritten row or a lazily evaluated result is `wrong`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf.errors import Unsupported
from ssmperf.measure.oracle import Evaluation, evaluate, widen
from ssmperf.measure.poison import poisoned
from ssmperf.measure.segments import differentiable
from ssmperf.operands import steps
from ssmperf.record import Status

# Rounding bands, relative to the largest reference value (RECURRENCES.md §6.1): forward, gradient.
BANDS = {
    torch.float64: (1e-12, 1e-11),
    torch.float32: (1e-5, 1e-4),
    torch.bfloat16: (2.0**-7, 2.0**-7),
    torch.float16: (2.0**-10, 2.0**-10),
}


@dataclass(frozen=True)
class Values:
    """Operands of a case (with `initial_state` where there is one) and what arrives from the loss.

    grad_state is None for a recurrence without a state.
    """

    operands: Mapping[str, Any]
    grad_output: Tensor
    grad_state: Tensor | None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.operands.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Reference:
    """The oracle's answer for some values, and the error of an independent low-precision evaluation."""

    exact: Evaluation
    low_errors: Mapping[str, float]
    output_dtype: torch.dtype
    state_dtype: torch.dtype | None
    output_scale: float | None = None  # what errors of the output are relative to, if not to its largest


@dataclass(frozen=True)
class Verdict:
    """How a judgement ended. Errors and tolerances are relative to the largest reference value.

    output: what the backend returned, for a later look.
    """

    status: Status
    reason: str | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=dict)
    output: Tensor | None = field(default=None, compare=False, repr=False)


def tolerance(low_error: float, dtype: torch.dtype, *, gradient: bool, bound: float | None = None) -> float:
    """Largest relative error that is right: 2 × (low-precision error + rounding band), or a declared bound.

    low_error: error of an independent low-precision evaluation of the same operands.
    bound: what an approximate backend declares for this decay span.
    """
    derived = 2 * (low_error + BANDS[dtype][gradient])
    return max(derived, bound or 0.0)


def relative_error(actual: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """Largest absolute difference over the largest absolute reference (absolute, where that is 0).

    scale: what to divide by instead.
    """
    if actual.numel() == 0:
        return 0.0
    difference = (widen(actual, torch.float64) - widen(expected, torch.float64)).abs().max().item()
    if scale is None:
        scale = float(expected.abs().max().item())
    return float(difference) / (scale or 1.0)


def draw_cotangents(output: Tensor, state: Tensor | None, seed: int) -> tuple[Tensor, Tensor | None]:
    """Random standard-normal gradients of the loss at the output and at the final state, if there is one."""
    generator = torch.Generator(output.device).manual_seed(seed)

    def normal_like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)

    return normal_like(output), None if state is None else normal_like(state)


def contract(definition: Callable[..., Any], operands: Mapping[str, Any], length: int) -> tuple[Any, Any]:
    """Output and state of the definition's first step: their dtypes and trailing shapes."""
    output, state = definition(**steps(operands, 0, 1, length))
    return output, state


def refer(
    definition: Callable[..., Any],
    values: Values,
    *,
    length: int,
    dtype: torch.dtype,
    gradients: bool,
    low: Callable[..., Any] | None = None,
    residual: Tensor | None = None,
) -> Reference:
    """The float64 answer for some values, and how far an independent low-precision evaluation is off.

    That evaluation is the definition in float32 (float64 for a float64 case) on operands moved by
    up to half a unit in the last place of the case's dtype, its output rounded to that dtype.

    low: what to evaluate instead, of no state: in the case's own dtype throughout, and twice, with the
        operands as they are too, for there the rounding inside counts and not that of the operands.
    residual: a part of the output that is given: errors are relative to what is added to it.

    Raises:
        Unsupported: these values overflow the dtype, so that no error could be told from another.
    """
    grad_output, grad_state = (values.grad_output, values.grad_state) if gradients else (None, None)
    exact = evaluate(
        definition, values.operands, length=length, grad_output=grad_output, grad_state=grad_state
    )
    if low is None:
        working = torch.promote_types(dtype, torch.float32)
        output, state = contract(definition, values.operands, length)
        output_dtype, state_dtype = output.dtype, None if state is None else state.dtype
        samples: list[Mapping[str, Any]] = [shake(values.operands, working)]
    else:
        working = output_dtype = dtype
        state_dtype = None
        samples = [shake(values.operands, dtype), values.operands]
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


def judge(
    function: Callable[..., Any],
    values: Values,
    reference: Reference,
    *,
    dtype: torch.dtype,
    gradients: bool,
    bound: float | None = None,
    poison: bool = True,
) -> Verdict:
    """Call a backend once on these values and compare all that it gives with the reference.

    poison: whether uninitialised memory reads as NaN during the call.
    """
    if bound is not None and not 0 <= bound < 1:
        return Verdict(Status.WRONG, f"its declared error bound {bound:g} is none: it must be below 1")
    tensors = values.tensors
    watched = {**tensors, "the incoming gradient": values.grad_output}
    before = {name: value.detach().clone() for name, value in watched.items()}
    memory = poisoned(values.grad_output.device, like=list(watched.values())) if poison else nullcontext()
    try:
        for value in tensors.values():
            value.requires_grad_(gradients)
        with memory:
            with torch.set_grad_enabled(gradients):
                result = function(**values.operands)
            problem = _malformed(result, reference) or _unfinished(result[0])
            if problem:
                return Verdict(Status.WRONG, problem)
            output, state = result
            found = _gradients(output, state, tensors, values) if gradients else {}
    finally:
        for value in tensors.values():
            value.requires_grad_(False)
    changed = [name for name, value in watched.items() if not torch.equal(value.detach(), before[name])]
    if changed:
        return Verdict(Status.WRONG, f"it changed its input {', '.join(changed)}")
    verdict = _compare(
        output.detach(), state, {} if isinstance(found, str) else found, reference, dtype, bound
    )
    if isinstance(found, str) and verdict.status is Status.OK:
        return Verdict(Status.WRONG, found, verdict.errors, verdict.tolerances)
    return verdict


def compare_gradients(
    found: Mapping[str, Tensor], reference: Reference, *, dtype: torch.dtype, bound: float | None
) -> Verdict:
    """Judge gradients alone, by operand name."""
    return _compare(None, None, found, reference, dtype, bound)


def _compare(
    output: Tensor | None,
    state: Tensor | None,
    gradients: Mapping[str, Tensor],
    reference: Reference,
    dtype: torch.dtype,
    bound: float | None,
) -> Verdict:
    exact = reference.exact
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    if output is not None:
        pairs["output"] = (output, exact.output)
    if state is not None and exact.final_state is not None:
        pairs["final_state"] = (state.detach(), exact.final_state)
    pairs |= {name: (gradient, exact.gradients[name]) for name, gradient in gradients.items()}
    errors: dict[str, float] = {}
    limits: dict[str, float] = {}
    verdict: Verdict | None = None
    for name, (actual, expected) in pairs.items():
        label = name if name in ("output", "final_state") else f"gradient of {name}"
        scale = reference.output_scale if name == "output" else None
        errors[label] = relative_error(actual, expected, scale)
        limits[label] = tolerance(reference.low_errors[name], dtype, gradient=name in gradients, bound=bound)
        if verdict is None:
            verdict = _verdict_of(label, actual, expected, errors[label], limits[label])
    if verdict is None:
        return Verdict(Status.OK, None, errors, limits, output)
    return Verdict(verdict.status, verdict.reason, errors, limits, output)


def _verdict_of(label: str, actual: Tensor, expected: Tensor, error: float, limit: float) -> Verdict | None:
    strange = ~torch.isfinite(actual)
    count = int(strange.sum().item())
    if count and bool(torch.isfinite(expected).all()):
        where = tuple(int(i) for i in strange.nonzero()[0])
        return Verdict(
            Status.NAN, f"{label}: {count} of {actual.numel()} values are not finite, first at {where}"
        )
    if not error <= limit:
        return Verdict(
            Status.WRONG, f"{label}: relative error {error:.2e} is above the tolerance {limit:.2e}"
        )
    return None


def _malformed(result: Any, reference: Reference) -> str | None:
    if not isinstance(result, tuple) or len(result) != 2:
        return f"it returned {type(result).__name__}, the contract is (output, final_state)"
    for label, value, expected, dtype in (
        ("output", result[0], reference.exact.output, reference.output_dtype),
        ("final_state", result[1], reference.exact.final_state, reference.state_dtype),
    ):
        if expected is None:
            if value is not None:
                return f"{label} is a {type(value).__name__}: this recurrence has none"
            continue
        if type(value) is not Tensor:
            return f"{label} is a {type(value).__name__}, not a plain tensor"
        if value.shape != expected.shape:
            return f"{label} has shape {tuple(value.shape)}, the contract says {tuple(expected.shape)}"
        if value.dtype != dtype:
            return f"{label} is {value.dtype}, the contract says {dtype}"
    return None


def _unfinished(output: Tensor) -> str | None:
    """Whether work on another stream was still writing the output when the call returned."""
    if output.device.type != "cuda":
        return None
    at_return = output.detach().clone()
    torch.cuda.synchronize(output.device)
    if torch.equal(at_return.isfinite(), output.isfinite()) and torch.equal(
        at_return[at_return.isfinite()], output.detach()[at_return.isfinite()]
    ):
        return None
    return "its output was still being written when it returned"


def _gradients(
    output: Tensor, state: Tensor | None, leaves: Mapping[str, Tensor], values: Values
) -> dict[str, Tensor] | str:
    """Gradients of all leaves, or what is wrong with the graph."""
    ends = [
        (tensor, gradient)
        for tensor, gradient in ((output, values.grad_output), (state, values.grad_state))
        if tensor is not None and gradient is not None and tensor.requires_grad
    ]
    if not output.requires_grad:
        return "its output has no graph: no gradient can flow"
    found = torch.autograd.grad(
        [tensor for tensor, _ in ends],
        list(leaves.values()),
        [gradient.to(tensor.dtype) for tensor, gradient in ends],
        allow_unused=True,
    )
    missing = [name for name, gradient in zip(leaves, found, strict=True) if gradient is None]
    if missing:
        return f"no gradient reaches {', '.join(missing)}"
    return dict(zip(leaves, found, strict=True))


def shake(operands: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Operands moved by up to half a unit in the last place of their own dtype, each element on its own."""
    shaken: dict[str, Any] = {}
    for name, value in operands.items():
        if differentiable(value):
            real = value.dtype.to_real() if value.is_complex() else value.dtype
            generator = torch.Generator(value.device).manual_seed(len(shaken))
            noise = torch.rand(value.shape, dtype=dtype, device=value.device, generator=generator) * 2 - 1
            factor = 1 + torch.finfo(real).eps / 2 * noise
            value = widen(value, dtype)
            if value.is_complex():  # part by part: a complex product makes -inf + iφ no number
                value = torch.complex(value.real * factor, value.imag * factor)
            else:
                value = value * factor
        shaken[name] = value
    return shaken
