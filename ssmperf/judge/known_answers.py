"""Judging backends by what is known without an oracle: closed forms, and identities between two ways.

Both come in float64 (see `ssmperf.checks`) and are put to a backend in the case's dtype. Each must hold of
the definition before a backend is judged by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssmperf import registry
from ssmperf.cases.record import Status
from ssmperf.errors import Unsupported
from ssmperf.judge.tolerance import perturb, relative_error, tolerance
from ssmperf.judge.verdict import Verdict
from ssmperf.operands.dtypes import widen
from ssmperf.operands.time_axis import laid_out, length_of
from ssmperf.registry.checks import Analytic, Compute, Identity
from ssmperf.registry.declarations import Backend

Bound = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Known:
    """A closed form's operands in a dtype, its answers by name, and the definition's error in that dtype.

    unsound: why no backend can be judged by it, or None.
    """

    operands: Mapping[str, Any]
    answers: Mapping[str, Tensor]
    low_errors: Mapping[str, float]
    unsound: str | None


@dataclass
class Calls:
    """Computes by some function where the recurrence is `of`, by the definition elsewhere; keeps the worst
    of the bounds that are declared for what it was called with."""

    of: str
    function: Callable[..., Any]
    dtype: torch.dtype
    device: str = "cpu"
    layout: str = "channels_last"
    check: Callable[[Mapping[str, Any]], None] = lambda operands: None
    bound: Bound = lambda operands: None
    worst_bound: float | None = field(default=None, init=False)

    def __call__(self, recurrence: str, /, **operands: Any) -> tuple[Any, Any]:
        if recurrence != self.of:
            output, state = registry.recurrence(recurrence).definition(**operands)
            return output, state
        cast = narrow(operands, self.dtype, self.device, self.layout)
        self.check(cast)
        bound = self.bound(cast)
        if bound is not None:
            self.worst_bound = max(bound, self.worst_bound or 0.0)
        with torch.no_grad():
            results = self.function(**cast)
        output, state = (widen(x.cpu(), torch.float64) if isinstance(x, Tensor) else x for x in results)
        return output, state


def narrow(
    operands: Mapping[str, Any], dtype: torch.dtype, device: str, layout: str = "channels_last"
) -> dict[str, Any]:
    """Operands in a real dtype (complex ones in its counterpart, complex64 at least), device and layout."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        target = torch.promote_types(dtype, torch.float32) if value.is_complex() else dtype
        return widen(value.detach(), target).to(device).contiguous()

    cast = {name: one(value) for name, value in operands.items()}
    return laid_out(cast, layout, length_of(cast))


def by_name(output: Any, state: Any) -> dict[str, Tensor]:
    """Those of output and final state that are given."""
    pairs = (("output", output), ("final_state", state))
    return {name: value for name, value in pairs if value is not None}


def refusing(backend: Backend, device: str) -> Callable[[Mapping[str, Any]], None]:
    """A check that raises Unsupported with the reason why a backend does not take some operands."""

    def check(operands: Mapping[str, Any]) -> None:
        recurrence = registry.recurrence(registry.recurrence_of(backend.of))
        kind, length = recurrence.gate_kind(operands), length_of(operands)
        reason = backend.refusal(device=device.partition(":")[0], gate_kind=kind, length=length)
        if reason:
            raise Unsupported(reason)

    return check


def prepare_analytic(entry: Analytic, dtype: torch.dtype, device: str, layout: str) -> Known:
    """A closed form in a dtype and layout. The definition, in float64, must give its answers."""
    wide, output, state = entry.function()
    answers = by_name(output, state)
    definition = registry.recurrence(entry.of).definition
    exact = by_name(*definition(**wide))
    moved = by_name(*definition(**perturb(wide, torch.float64)))
    unsound = None
    for name, answer in answers.items():
        error = relative_error(exact[name], answer)
        if not error <= tolerance(relative_error(moved[name], exact[name]), torch.float64, gradient=False):
            unsound = f"the definition does not give this closed form: {name} is off by {error:.2e}"
    operands = narrow(wide, dtype, device, layout)
    low = by_name(
        *definition(**perturb(narrow(wide, dtype, "cpu"), torch.promote_types(dtype, torch.float32)))
    )
    low_errors = {name: relative_error(low[name].to(dtype), answer) if not answer.is_complex()
                  else relative_error(low[name], answer) for name, answer in answers.items()}  # fmt: skip
    return Known(operands, answers, low_errors, unsound)


def judge_analytic(known: Known, backend: Backend, dtype: torch.dtype, device: str, bound: Bound) -> Verdict:
    """Compare a backend with a closed form.

    Raises:
        Unsupported: it does not take these operands.
    """
    if known.unsound:
        return Verdict(Status.WRONG, known.unsound)
    refusing(backend, device)(known.operands)
    with torch.no_grad():
        found = by_name(*backend.function(**known.operands))
    declared = bound(known.operands)
    errors, limits = {}, {}
    for name, answer in known.answers.items():
        if name not in found or found[name].shape != answer.shape:
            return Verdict(Status.WRONG, f"{name} has not the shape {tuple(answer.shape)} of the closed form")
        errors[name] = relative_error(found[name].cpu(), answer)
        limits[name] = tolerance(known.low_errors[name], dtype, gradient=False, bound=declared)
    return verdict_of(errors, limits, "the closed form")


def rehearse(entry: Identity, dtype: torch.dtype) -> tuple[dict[str, float], str | None]:
    """How far apart the sides of an identity are by the definition in a low precision; why it is unsound.

    In float64 the definition must fulfil the identity.
    """
    definition = registry.recurrence(entry.of).definition
    working = torch.promote_types(dtype, torch.float32)

    def moved(**operands: Any) -> Any:
        return definition(**perturb(operands, working))

    for label, error in _gaps(entry, Calls(entry.of, definition, torch.float64)).items():
        if not error <= tolerance(0.0, torch.float64, gradient=True):
            return {}, f"the definition does not fulfil this identity: {label} is off by {error:.2e}"
    return _gaps(entry, Calls(entry.of, moved, dtype)), None


def _gaps(entry: Identity, compute: Compute) -> dict[str, float]:
    """How far apart the two sides of each comparison are."""
    return {label: relative_error(left, right) for label, left, right in entry.function(compute)}


def judge_identity(
    entry: Identity, rehearsed: tuple[dict[str, float], str | None], backend: Backend, dtype: torch.dtype,
    device: str, bound: Bound, layout: str,
) -> Verdict:  # fmt: skip
    """Compare both sides of an identity as a backend computes them; each may be off by its tolerance.

    Raises:
        Unsupported: it does not take the operands of one side.
    """
    low_errors, unsound = rehearsed
    if unsound:
        return Verdict(Status.WRONG, unsound)
    compute = Calls(entry.of, backend.function, dtype, device, layout, refusing(backend, device), bound)
    errors = _gaps(entry, compute)
    limits = {
        label: 2
        * tolerance(low_errors[label], dtype, gradient=dtype == torch.float64, bound=compute.worst_bound)
        for label in errors
    }
    return verdict_of(errors, limits, "the other side")


def first_length(entry: Identity | Analytic) -> int:
    """T of a closed form, or of the first operands that an identity asks to compute."""
    if isinstance(entry, Analytic):
        return length_of(entry.function()[0])

    class Asked(Exception):
        pass

    def ask(recurrence: str, /, **operands: Any) -> tuple[Any, Any]:
        raise Asked(length_of(operands))

    asking: Compute = ask
    try:
        list(entry.function(asking))
    except Asked as asked:
        return int(asked.args[0])
    return 1


def verdict_of(errors: Mapping[str, float], limits: Mapping[str, float], other: str) -> Verdict:
    for name, error in errors.items():
        if not error <= limits[name]:
            status = Status.NAN if error != error else Status.WRONG
            reason = f"{name}: {error:.2e} away from {other}, above the tolerance {limits[name]:.2e}"
            return Verdict(status, reason, errors, limits)
    return Verdict(Status.OK, None, errors, limits)
