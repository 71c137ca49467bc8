"""A bench for one function in the calling process: its cases, and torch's settings as in a worker.

Nothing is registered.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ssmperf.authors.verification.binding import is_apply, taking_names
from ssmperf.engine import registry
from ssmperf.engine.cases.calls.dtypes import dtype_name
from ssmperf.engine.cases.case import Case, chosen_axes, split_source
from ssmperf.engine.cases.shape import DIMENSIONS
from ssmperf.engine.execute.context import Context
from ssmperf.engine.execute.request import select
from ssmperf.engine.operands.contract import Contract
from ssmperf.engine.operands.values import Values
from ssmperf.engine.plan.plan import PlannedSubject, subjects
from ssmperf.engine.plan.refusal import gate_kind
from ssmperf.engine.plan.run_options import Names
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.registry.declarations import Backend, Recurrence
from ssmperf.errors import UnknownName, Unsupported, UsageError

NO_CEILINGS = Ceilings(math.inf, {}, math.inf, math.inf)  # of a device on which nothing is timed


@dataclass
class Bench(Context):
    """A context for cases of a single backend, which need not be registered.

    entry: the backend.
    """

    entry: Backend = field(kw_only=True)

    def backend(self, case: Case) -> Backend:
        return self.entry


class UntimedBench(Bench):
    """A bench on which nothing is timed."""

    def time_first_call(self, case: Case, values: Values, expected: Contract) -> None:
        """Do nothing: no call is timed, and the first judged call is the first one."""


def selection_of(
    of: str,
    dtype: Any,
    gate_dtype: Any,
    regime: Names | None,
    layout: str,
    device: Any,
    seed: int,
    sizes: Mapping[str, int],
    *,
    preset: str | None,
    keywords: tuple[str, ...] = (),
    **forms: Any,
) -> tuple[Selection, str]:
    """Check the arguments, and give the selection that they make and its torch device.

    preset: whose sizes are taken where none are given; None means the device's default.
    keywords: other names of arguments, which the message about an unknown size offers.
    forms: packing and words of the call.

    Raises:
        UsageError: a name, letter or value is illegal.
    """
    recurrence = registry.recurrence(registry.recurrence_of(of))
    precise = chosen_axes()["dtype"].checked(dtype_name(dtype)) == "float64"
    selection, devices = select(
        models=(of,),
        preset=preset,
        device=str(device),
        dtype=(dtype,),
        gate_dtype=("float64" if precise else "float32",) if gate_dtype is None else (gate_dtype,),
        regime=regime,
        layout=layout,
        seed=seed,
        **forms,
    )
    problem = recurrence.call_problem(selection.call)
    if problem or (selection.packing is not None and not recurrence.packs):
        raise UsageError(f"call: {problem}" if problem else f"{recurrence.name} packs no sequences")
    letters = dict.fromkeys(letter for each in recurrence.presets[selection.preset_name] for letter in each)
    for letter, size in sizes.items():
        if letter == "G" and recurrence.shares_heads:
            continue
        if letter not in letters:
            raise UnknownName(
                f"size of {of}", letter, [*letters, *(() if letter in DIMENSIONS else keywords)]
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"the size {letter} must be a whole number of at least 1, got {size!r}")
    return selection, devices[0]


def entry_of(of: str, function: Callable[..., Any] | str, recurrence: Recurrence) -> Backend:
    """Look up a backend by name, or declare a function as one without registering it.

    Raises:
        UnknownName: no such backend. Unsupported: it cannot be imported here. UsageError: it is no function.
    """
    if isinstance(function, str):
        problem = registry.import_problem(of, function)
        if problem:
            raise Unsupported(f"{of}/{function} {problem}")
        return registry.backend(of, function)
    if not callable(function):
        raise UsageError(f"expected a function or the name of a backend, got {type(function).__name__}")
    named: Any = getattr(function, "func", function)  # of a functools.partial
    named = named.__self__ if is_apply(named) else named
    name = getattr(named, "__name__", None) or type(named).__name__
    return Backend(str(name), recurrence.name, taking_names(function, recurrence))


def subjects_of(
    of: str, selection: Selection, recurrence: Recurrence, gates: tuple[str, ...] | None
) -> list[PlannedSubject]:
    """List the subjects of a selection that have these gate kinds.

    Raises:
        UsageError: there are none.
    """
    kinds = recurrence.gate_kinds if of == recurrence.name else (registry.model(of).gate,)
    for kind in gates or ():
        if kind not in kinds:
            raise UnknownName(f"gate kind of {of}", kind, kinds)
    found = [
        subject
        for subject in subjects(selection)
        if gates is None or subject.model or split_source(subject.source)[1] in gates
    ]
    if not found:
        raise UsageError(f"{of} has no such gates under {', '.join(selection.regimes or ())}")
    return found


def refusal_of(case: Case, entry: Backend, selection: Selection) -> str | None:
    """Say why a backend by its declarations, or the case's model, does not take a case; None if both do."""
    if case.model and case.dtype not in registry.model(case.model).dtypes:
        return f"the model takes no {case.dtype}"
    return entry.refusal(
        device=case.device,
        dtype=case.dtype,
        pass_=case.pass_,
        gate_kind=gate_kind(case),
        length=case.shape["T"],
        shape=case.shape,
        capability=selection.device.capability,
        layout=case.layout,
    )


@contextlib.contextmanager
def like_a_worker(device: str) -> Iterator[None]:
    """Put torch's settings that change results to those of a worker, and back after the block."""
    dtype = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for type_ in {"cpu", torch.device(device).type}:
            stack.enter_context(torch.autocast(type_, enabled=False))
        if device.startswith("cuda"):
            stack.enter_context(torch.cuda.device(device))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        yield
