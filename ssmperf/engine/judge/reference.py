"""Reference: the oracle's float64 answer for some values, and the error of a low precision on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.call import AUTOCAST
from ssmperf.engine.judge.oracle import Evaluation, as_backend, evaluate
from ssmperf.engine.judge.tolerance import (
    BANDS,
    SHORTEST_ROW,
    gate_noise,
    is_wider,
    perturb,
    relative_error,
    row_axes,
    row_errors,
    row_sizes,
    state_noise,
)
from ssmperf.engine.operands.contract import Contract
from ssmperf.engine.operands.dtypes import dtype_of, widen
from ssmperf.engine.operands.subject import Subject
from ssmperf.engine.operands.time_axis import has_time, length_of
from ssmperf.engine.operands.values import Values, contract
from ssmperf.errors import Unsupported

DRAWS = 8  # low-precision evaluations for a second judgement


@dataclass(frozen=True)
class Reference:
    """The oracle's answer for some values, and the error of an independent low-precision evaluation.

    output_scale: value to which errors of the output are relative; None means its largest value.
    row_axes: axes that one row covers, by object ("output", "final_state", an operand for its gradient).
        Objects that are too small for rows, or 0, are left out, and so are gradients of operands wider than
        the case's dtype, such as gates in half precision: fused kernels find them as differences of sums
        whose terms have the digits of the dtype alone.
    row_sizes: 2-norms of the rows by object; for a layer, of its part beside the residual.
    low_row_errors: largest row error of the low-precision evaluation by object, rounded as results are.
    noise: error of each element, by operand, that the gradient of a log gate, phase or state may have.
    inner_values, inner: for a layer, the recurrence's values inside it, and the reference for them.
    factors: multiples of the tolerance that a result's rounding asks for; 1 where none is given.
    """

    exact: Evaluation
    low_errors: Mapping[str, float]
    output_dtype: torch.dtype
    state_dtype: torch.dtype | None
    output_scale: float | None = None
    row_axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    row_sizes: Mapping[str, Tensor] = field(default_factory=dict)
    low_row_errors: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    inner_values: Values | None = None
    inner: Reference | None = None
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

    def expected(self, name: str) -> Tensor:
        """Look up the exact value of an object."""
        return _objects(self.exact)[name]


def make_reference(
    subject: Subject, definition: Callable[..., Any], values: Values, *, gradients: bool, draws: int = 1
) -> Reference:
    """Evaluate a definition on a subject's values in float64, and independently in a low precision.

    A layer is judged twice. The recurrence inside it is judged like an operation, on the operands that the
    layer gives it, since a norm or a residual may hide its errors. The whole layer is compared with the layer
    in the case's dtype around the definition in float64, so that what the rest of the layer rounds does not
    count; the low-precision evaluation is the same layer around the definition in float32 or wider, on moved
    operands. Errors of its output are relative to what the layer adds to x.

    draws: number of low-precision evaluations of a layer, of whose errors the largest count.

    Raises:
        Unsupported: these values overflow the case's dtype.
    """
    case, dtype = subject.case, dtype_of(subject.case.dtype)
    length, mixes = case.shape["T"], registry.recurrence(case.recurrence).stepwise
    inner_values = subject.inner(values)
    if inner_values is None:
        found = reference_of(definition, values, length=length, dtype=dtype, gradients=gradients, mixes=mixes)
        return (
            _autocast(found, subject, definition, gradients=gradients)
            if AUTOCAST in values.circumstances
            else found
        )
    inner_length = length_of(inner_values.operands)
    inner = reference_of(
        definition, inner_values, length=inner_length, dtype=dtype, gradients=gradients, mixes=mixes
    )
    inner = replace(inner, exact=replace(inner.exact, final_state=None), state_dtype=None)
    working = torch.promote_types(dtype, torch.float32)
    whole = reference_of(
        subject.function(as_backend(definition, torch.float64), dtype),
        values,
        length=length,
        dtype=dtype,
        gradients=gradients,
        lows=[
            subject.function(as_backend(definition, working, erring_in=dtype, draw=draw), dtype)
            for draw in range(draws)
        ],
        residual=subject.residual(values),
    )
    return replace(whole, inner_values=inner_values, inner=inner)


def _autocast(
    reference: Reference, subject: Any, definition: Callable[..., Any], *, gradients: bool
) -> Reference:
    """Allow the errors of bfloat16 operands, to which autocast may round those of a wider dtype."""
    half = replace(subject, case=replace(subject.case, dtype="bfloat16", gate_dtype="float32"))
    values, length = half.values(0, with_state=True), subject.case.shape["T"]
    low = reference_of(
        definition, values, length=length, dtype=torch.bfloat16, gradients=gradients
    ).low_errors
    band = BANDS[torch.bfloat16][gradients]
    errors = {name: max(error, low.get(name, 0.0) + band) for name, error in reference.low_errors.items()}
    return replace(reference, low_errors=errors, row_axes={})


def exact_evaluation(
    subject: Subject, definition: Callable[..., Any], values: Values, *, gradients: bool
) -> Evaluation:
    """Evaluate a subject as the exact part of its reference is evaluated, and nothing else."""
    case = subject.case
    function, dtype = definition, torch.float64
    if subject.residual(values) is not None:
        dtype = dtype_of(case.dtype)
        function = subject.function(as_backend(definition, torch.float64), dtype)
    grad_output, grad_state = (values.grad_output, values.grad_state) if gradients else (None, None)
    return evaluate(
        function,
        values.operands,
        length=case.shape["T"],
        dtype=dtype,
        grad_output=grad_output,
        grad_state=grad_state,
    )


def reference_of(
    definition: Callable[..., Any],
    values: Values,
    *,
    length: int,
    dtype: torch.dtype,
    gradients: bool,
    lows: Sequence[Callable[..., Any]] = (),
    residual: Tensor | None = None,
    mixes: bool = False,
) -> Reference:
    """Evaluate a function in float64, and measure the error of an independent low-precision evaluation.

    The low-precision evaluation runs the definition in float32 (float64 for a float64 case) on operands
    moved by up to half a unit in the last place of the case's dtype, and rounds the output to that dtype.
    Incoming gradients are moved by up to a quarter: right backends round the factors by which they sum them.
    Gradients of log gates count as off by `gate_noise` at least, that of the initial state by `state_noise`.

    lows: functions without a state to evaluate instead of the definition, of whose errors the largest count.
        They and the definition, a layer that is precise only where it matters, are then evaluated in the
        case's dtype.
    residual: a part of the output that is passed through; errors are relative to what is added to it. The
        rounding of the sum counts among them.
    mixes: whether a step mixes the elements of the state.

    Raises:
        Unsupported: these values overflow the dtype, so that errors could not be measured.
    """
    precise = dtype if lows else torch.float64
    grad_output, grad_state = (values.grad_output, values.grad_state) if gradients else (None, None)
    arriving: dict[str, Any] = {"grad_output": grad_output, "grad_state": grad_state}
    exact = evaluate(definition, values.operands, length=length, dtype=precise, **arriving)
    if not lows:
        working = torch.promote_types(dtype, torch.float32)
        output, state = contract(definition, values.operands, length)
        output_dtype, state_dtype = output.dtype, None if state is None else state.dtype
        rounded = [_moved_evaluation(definition, values, length, dtype, gradients=gradients)]
    else:
        working = output_dtype = dtype
        state_dtype, operands = None, dict(values.operands)
        rounded = [evaluate(low, operands, length=length, dtype=dtype, **arriving) for low in lows]
    expected = _objects(exact)
    found = {name: [_objects(each)[name] for each in rounded] for name in expected}
    found["output"] = [each.to(output_dtype) for each in found["output"]]
    added = dict(expected)
    if residual is not None:
        added["output"] = widen(exact.output, torch.float64) - residual
        found["output"].append(perturb({"output": exact.output}, torch.float64)["output"])
    noise = {} if lows else _gate_noise(exact.gradients, values.operands, working)
    held = exact.gradients.get("initial_state")
    if mixes and grad_state is not None and held is not None and held.any():
        noise["initial_state"] = state_noise(grad_state, dtype)
    scale = None if residual is None else float(added["output"].abs().max())
    low_errors = {
        name: max(relative_error(low, value, scale if name == "output" else None) for low in found[name])
        for name, value in expected.items()
    }
    for name, amplitude in noise.items():
        low_errors[name] = max(low_errors[name], amplitude / float(exact.gradients[name].abs().max()))
    for name, of_operand in exact.gradients.items():
        low_errors[name] = max(low_errors[name], _underflow(of_operand, values.operands[name].dtype))
    overflown = {name for name, error in low_errors.items() if not math.isfinite(error)}
    overflown |= {
        f"gradient of {name}"
        for name, gradient in exact.gradients.items()
        if _too_large(gradient, values.operands[name].dtype, low_errors[name])
    }
    if overflown:
        raise Unsupported(f"these operands overflow {dtype} ({', '.join(sorted(overflown))})")
    axes, sizes, low_row_errors = {}, {}, {}
    for name, value in expected.items():
        covered = row_axes(value.shape, timed=name != "final_state" and has_time(name, value, length))
        gradient = name in exact.gradients
        if covered is None or not value.any():  # a row of zeros has no size
            continue
        if gradient and is_wider(values.operands[name].dtype, dtype):
            continue
        axes[name], sizes[name] = covered, row_sizes(added[name], covered, dtype)
        if gradient:
            found[name] = [each.to(values.operands[name].dtype) for each in found[name]]
        low_row_errors[name] = max(
            float(row_errors(each, value, covered, sizes[name]).max()) for each in found[name]
        )
    return Reference(exact, low_errors, output_dtype, state_dtype, scale, axes, sizes, low_row_errors, noise)


def _too_large(gradient: Tensor, dtype: torch.dtype, error: float) -> bool:
    """Tell whether a gradient may overflow the dtype of its operand, in which it is returned."""
    most, band = torch.finfo(dtype).max, BANDS[dtype.to_real()][True]
    return bool(gradient.abs().max() * (1 + error + band) > most) if gradient.numel() else False


def _underflow(gradient: Tensor, dtype: torch.dtype) -> float:
    """Give the largest relative error of rounding a gradient to its operand's smallest numbers.

    The rounding bands are those of normal numbers. In float16 a gradient below 3e-8 is rounded to 0.
    """
    largest = float(gradient.abs().max()) if gradient.numel() else 0.0
    info = torch.finfo(dtype)
    return min(1.0, info.smallest_normal * info.eps / 2 / largest) if largest else 0.0


def _moved_evaluation(
    definition: Callable[..., Any],
    values: Values,
    length: int,
    dtype: torch.dtype,
    *,
    gradients: bool,
    draw: int = 0,
    alike: bool = False,
) -> Evaluation:
    """Evaluate a definition in float32 or wider on moved values: see `reference_of` and `perturb`."""
    working = torch.promote_types(dtype, torch.float32)
    arriving: dict[str, Any] = {"grad_output": None, "grad_state": None}
    if gradients:
        arriving = {"grad_output": values.grad_output, "grad_state": values.grad_state}
    moved = perturb({**values.operands, **arriving}, working, gently=arriving, draw=draw, alike=alike)
    arriving = {name: moved.pop(name) for name in arriving}
    return evaluate(definition, moved, length=length, dtype=working, **arriving)


def small_results(reference: Reference) -> list[str]:
    """List the results of an operation whose elements are so few that their errors do not average out."""
    if reference.inner is not None:
        return []
    return [name for name, value in _objects(reference.exact).items() if value.numel() < SHORTEST_ROW]


def steadied(
    reference: Reference, subject: Subject, definition: Callable[..., Any], values: Values
) -> Reference:
    """Take the largest error of further low-precision evaluations.

    Of several for the small results: on so few elements, such as the gradient of one gate per head, one
    evaluation may happen to err ten times less than another. Of one for all results of an operation, also of
    that inside a layer, in which equal numbers are moved alike: rounding is a function, and where a text
    repeats its words, what kernels lose in rounding keys adds up.
    """
    length, dtype = subject.case.shape["T"], dtype_of(subject.case.dtype)
    if reference.inner is not None and reference.inner_values is not None:
        inside = reference.inner_values
        inner = _with_alike(reference.inner, definition, inside, length_of(inside.operands), dtype)
        return replace(reference, inner=inner)
    reference = _with_alike(reference, definition, values, length, dtype)
    small, errors = small_results(reference), dict(reference.low_errors)
    gradients = bool(reference.exact.gradients)
    for draw in range(1, DRAWS if small else 1):
        moved = _moved_evaluation(definition, values, length, dtype, gradients=gradients, draw=draw)
        found = _objects(moved)
        for name in small:
            errors[name] = max(errors[name], relative_error(found[name], reference.expected(name)))
    return replace(reference, low_errors=errors)


def _with_alike(
    reference: Reference,
    definition: Callable[..., Any],
    values: Values,
    length: int,
    dtype: torch.dtype,
) -> Reference:
    """Let the errors count of an evaluation of an operation in which equal numbers are moved alike."""
    gradients = reference.exact.gradients
    found = _objects(
        _moved_evaluation(definition, values, length, dtype, gradients=bool(gradients), alike=True)
    )
    found["output"] = found["output"].to(reference.output_dtype)
    errors, rows = dict(reference.low_errors), dict(reference.low_row_errors)
    for name, value in _objects(reference.exact).items():
        errors[name] = max(errors[name], relative_error(found[name], value))
        if name in reference.row_axes:
            rounded = found[name].to(values.operands[name].dtype) if name in gradients else found[name]
            worst = row_errors(rounded, value, reference.row_axes[name], reference.row_sizes[name])
            rows[name] = max(rows[name], float(worst.max()))
    return replace(reference, low_errors=errors, low_row_errors=rows)


def _gate_noise(
    gradients: Mapping[str, Tensor], operands: Mapping[str, Any], dtype: torch.dtype
) -> dict[str, float]:
    """Compute the noise of all gradients that are not 0 of log gates, and of the phase beside a log gate."""
    noise = {
        name: gate_noise(operands[name], gradient, dtype)
        for name, gradient in gradients.items()
        if name.startswith("log_")
    }
    if "phase" in gradients and noise:
        noise["phase"] = max(noise.values())
    return {name: amplitude for name, amplitude in noise.items() if gradients[name].any()}


def _objects(evaluation: Evaluation) -> dict[str, Tensor]:
    """Map the results of an evaluation, and its gradients by operand, to their names."""
    state = {} if evaluation.final_state is None else {"final_state": evaluation.final_state}
    return {"output": evaluation.output, **state, **evaluation.gradients}
