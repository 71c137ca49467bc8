"""Judge backends without an oracle: by closed forms, and by identities between two computations.

Both are given in float64 (see `ssmperf.engine.registry.checks`); a backend gets their operands in the case's
dtype. The definition must satisfy a closed form or identity before a backend is judged by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine import registry
from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge.tolerance import TWO_RESULTS, perturb, relative_error, tolerance
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.engine.operands.contract import well_formed, wrong_shape
from ssmperf.engine.operands.dtypes import widen
from ssmperf.engine.operands.time_axis import laid_out, length_of
from ssmperf.engine.registry.checks import Analytic, Compute, Identity
from ssmperf.engine.registry.declarations import Backend
from ssmperf.errors import Unsupported

Bound = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Known:
    """A closed form: its operands in a dtype, its answers by name, and the definition's errors in that dtype.

    unsound: why no backend can be judged by this closed form, or None.
    """

    operands: Mapping[str, Any]
    answers: Mapping[str, Tensor]
    low_errors: Mapping[str, float]
    unsound: str | None


@dataclass
class ComputeUnderTest:
    """Computes the recurrence `of` with a given function, and every other recurrence with its definition.

    check: called with the operands before the function; may raise Unsupported.
    bound: the error that is declared for some operands; `worst_bound` is the largest over all calls.
    refused: the last refusal of a call, whose results are NaN, so that what depends on them can be left out.
    """

    of: str
    function: Callable[..., Any]
    dtype: torch.dtype
    device: str = "cpu"
    layout: str = "channels_last"
    check: Callable[[Mapping[str, Any]], None] = lambda operands: None
    bound: Bound = lambda operands: None
    worst_bound: float | None = field(default=None, init=False)
    refused: Unsupported | None = field(default=None, init=False)

    def __call__(self, recurrence: str, /, **operands: Any) -> tuple[Any, Any]:
        if recurrence != self.of:
            output, state = registry.recurrence(recurrence).definition(**operands)
            return output, state
        cast = narrow(operands, self.dtype, self.device, self.layout)
        try:
            self.check(cast)
            bound = self.bound(cast)
            if bound is not None:
                self.worst_bound = max(bound, self.worst_bound or 0.0)
            with torch.no_grad():
                results = well_formed(self.function)(**cast)
        except Unsupported as refusal:
            self.refused = refusal
            exact = registry.recurrence(recurrence).definition(**operands)
            results = tuple(torch.full_like(x, math.nan) if isinstance(x, Tensor) else x for x in exact)
        output, state = (widen(x.cpu(), torch.float64) if isinstance(x, Tensor) else x for x in results)
        return output, state


def narrow(
    operands: Mapping[str, Any], dtype: torch.dtype, device: str, layout: str = "channels_last"
) -> dict[str, Any]:
    """Move operands to a real dtype, a device and a layout.

    Complex operands get the dtype's complex counterpart, complex64 at least.
    """

    def cast_value(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        target = torch.promote_types(dtype, torch.float32) if value.is_complex() else dtype
        return widen(value.detach(), target).to(device).contiguous()

    cast = {name: cast_value(value) for name, value in operands.items()}
    return laid_out(cast, layout, length_of(cast))


def results_by_name(output: Any, state: Any) -> dict[str, Tensor]:
    """Map output and final state to their names, without those that are None."""
    pairs = (("output", output), ("final_state", state))
    return {name: value for name, value in pairs if value is not None}


def make_refusal_check(backend: Backend, device: str) -> Callable[[Mapping[str, Any]], None]:
    """Make a function that raises Unsupported, with the reason, for operands that a backend does not take."""

    def check(operands: Mapping[str, Any]) -> None:
        recurrence = registry.recurrence(registry.recurrence_of(backend.of))
        kind, length = recurrence.gate_kind(operands), length_of(operands)
        reason = backend.refusal(device=device.partition(":")[0], gate_kind=kind, length=length)
        if reason:
            raise Unsupported(reason)

    return check


def prepare_analytic(entry: Analytic, dtype: torch.dtype, device: str, layout: str) -> Known:
    """Prepare a closed form in a dtype and layout. The definition, in float64, must give its answers."""
    wide, output, state = entry.function()
    answers = results_by_name(output, state)
    definition = registry.recurrence(entry.of).definition
    exact = results_by_name(*definition(**wide))
    moved = results_by_name(*definition(**perturb(wide, torch.float64)))
    unsound = None
    for name, answer in answers.items():
        error = relative_error(exact[name], answer)
        if not error <= tolerance(relative_error(moved[name], exact[name]), torch.float64, gradient=False):
            unsound = f"the definition does not give this closed form: {name} is off by {error:.2e}"
    operands = narrow(wide, dtype, device, layout)
    low = results_by_name(
        *definition(**perturb(narrow(wide, dtype, "cpu"), torch.promote_types(dtype, torch.float32)))
    )
    low_errors = {name: relative_error(low[name].to(dtype), answer) if not answer.is_complex()
                  else relative_error(low[name], answer) for name, answer in answers.items()}  # fmt: skip
    return Known(operands, answers, low_errors, unsound)


def judge_analytic(known: Known, backend: Backend, dtype: torch.dtype, device: str, bound: Bound) -> Verdict:
    """Compare a backend's results with a closed form.

    Raises:
        Unsupported: the backend does not take these operands.
        BrokenContract: it returns something other than (output, final_state).
    """
    if known.unsound:
        return Verdict(Status.WRONG, known.unsound)
    make_refusal_check(backend, device)(known.operands)
    with torch.no_grad():
        found = results_by_name(*well_formed(backend.function)(**known.operands))
    declared = bound(known.operands)
    errors, limits = {}, {}
    for name, answer in known.answers.items():
        if name not in found:
            return Verdict(Status.WRONG, f"{name} is None, must be a tensor as the closed form says")
        problem = wrong_shape(name, found[name].shape, answer.shape)
        if problem:
            return Verdict(Status.WRONG, problem)
        errors[name] = relative_error(found[name].cpu(), answer)
        limits[name] = tolerance(known.low_errors[name], dtype, gradient=False, bound=declared)
    return verdict_of(errors, limits, "the closed form")


def rehearse(entry: Identity, dtype: torch.dtype) -> tuple[dict[str, float], str | None]:
    """Measure how far apart the definition, in a low precision, puts the sides of an identity.

    Returns:
        The gap per comparison, and the reason why no backend can be judged by the identity, or None. In
        float64 the definition must satisfy the identity.
    """
    definition = registry.recurrence(entry.of).definition
    working = torch.promote_types(dtype, torch.float32)

    def moved(**operands: Any) -> Any:
        return definition(**perturb(operands, working))

    for label, error in _gaps(entry, ComputeUnderTest(entry.of, definition, torch.float64)).items():
        if not error <= tolerance(0.0, torch.float64, gradient=True):
            return {}, f"the definition does not fulfil this identity: {label} is off by {error:.2e}"
    return _gaps(entry, ComputeUnderTest(entry.of, moved, dtype)), None


def _gaps(entry: Identity, compute: ComputeUnderTest) -> dict[str, float]:
    """Measure the relative difference of the two sides of each comparison.

    Those that depend on a refused call are left out.

    Raises:
        Unsupported: none is left.
    """
    found = {}
    for label, left, right in entry.function(compute):
        if compute.refused is None or not bool((left + right).isnan().any()):
            found[label] = relative_error(left, right)
    if not found and compute.refused is not None:
        raise compute.refused
    return found


def judge_identity(
    entry: Identity, rehearsed: tuple[dict[str, float], str | None], backend: Backend, dtype: torch.dtype,
    device: str, bound: Bound, layout: str,
) -> Verdict:  # fmt: skip
    """Compare both sides of an identity as a backend computes them; each side may err by its tolerance.

    Raises:
        Unsupported: the backend does not take the operands of one side.
        BrokenContract: it returns something other than (output, final_state).
    """
    low_errors, unsound = rehearsed
    if unsound:
        return Verdict(Status.WRONG, unsound)
    check = make_refusal_check(backend, device)
    compute = ComputeUnderTest(entry.of, backend.function, dtype, device, layout, check, bound)
    errors = _gaps(entry, compute)
    limits = {
        label: TWO_RESULTS
        * tolerance(low_errors[label], dtype, gradient=dtype == torch.float64, bound=compute.worst_bound)
        for label in errors
    }
    return verdict_of(errors, limits, "the other side")


def first_length(entry: Identity | Analytic) -> int:
    """Find T of a closed form, or of the first computation of an identity."""
    if isinstance(entry, Analytic):
        return length_of(entry.function()[0])

    class LengthFound(Exception):
        pass

    def report_length(recurrence: str, /, **operands: Any) -> tuple[Any, Any]:
        raise LengthFound(length_of(operands))

    compute: Compute = report_length
    try:
        list(entry.function(compute))
    except LengthFound as found:
        return int(found.args[0])
    return 1


def verdict_of(errors: Mapping[str, float], limits: Mapping[str, float], other: str) -> Verdict:
    """Judge errors by their limits; `other` names the other side of the comparison in the reason."""
    for name, error in errors.items():
        if not error <= limits[name]:
            status = Status.NAN if error != error else Status.WRONG
            reason = f"{name}: {error:.2e} away from {other}, above the tolerance {limits[name]:.2e}"
            return Verdict(status, reason, errors, limits)
    return Verdict(Status.OK, None, errors, limits)
