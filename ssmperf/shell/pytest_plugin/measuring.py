"""Measure one function in this process: judge it, then time it as the throughput suite does.

A run gives a foreign backend a process of its own; here it shares the test session's. So nothing limits its
time and memory, what it leaves behind is not looked at, and no call is captured in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ssmperf.authors.verification.bench import (
    Bench,
    entry_of,
    like_a_worker,
    refusal_of,
    selection_of,
    subjects_of,
)
from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.context import Settings
from ssmperf.engine.execute.request import Request, select
from ssmperf.engine.execute.worker import run_case
from ssmperf.engine.machine.ceilings import measure_ceilings
from ssmperf.engine.machine.environment import SHARED_PROCESS, capture, env_id
from ssmperf.engine.plan.run_options import Names, RunOptions, names
from ssmperf.engine.plan.selection import Selection
from ssmperf.engine.plan.sizes import one_token
from ssmperf.engine.plan.workloads.phases import are_workloads
from ssmperf.engine.registry.cost import Ceilings
from ssmperf.engine.registry.declarations import Backend
from ssmperf.errors import UsageError

SUITE = "throughput"


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """The choices about a measurement, beside its sizes.

    pass_: forward, backward, forward_backward or decode.
    dtype, gate_dtype, regime, layout, device, seed: as for `ssmperf.verify`; one regime only.
    gates: the gate kind; None means the first one of the recurrence, or the model's own.
    cache: "cold" or "hot"; None means cold on a GPU. A CPU is always measured hot.
    preset: smoke, standard or long, whose sizes and sampling are taken where none are given; None means smoke
        on a CPU and standard on a GPU.
    time, precision, samples: how long to sample, as for `ssmperf.run`.
    name: the name under which the function is recorded; None means its own.
    """

    pass_: str = "forward"
    dtype: Any = "float32"
    gate_dtype: Any = None
    regime: str | None = None
    gates: str | None = None
    layout: str = "channels_last"
    device: Any = "auto"
    seed: int = 0
    cache: str | None = None
    preset: str | None = None
    time: float | None = None
    precision: float | str | None = None
    samples: int | None = None
    name: str | None = None


FIELDS = tuple(field.name for field in dataclasses.fields(MeasureOptions))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case to measure in this process.

    refusal: why the backend or the model does not take it, or None. device: torch's name of the device.
    threads: number of torch's threads on a CPU; None leaves it.
    """

    case: Case
    entry: Backend
    refusal: str | None
    device: str
    settings: Settings
    threads: int | None
    by_name: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """The environment of a device in this process, its id, and the device's ceilings."""

    env_id: str
    environment: Mapping[str, Any]
    ceilings: Ceilings


def wanted(of: str, function: Callable[..., Any] | str, **given: Any) -> Wanted:
    """Describe the wanted measurement. given: fields of `MeasureOptions`, and sizes by letter.

    of: a recurrence, a model, or a workload such as qwen3-next-80b:train, whose first form is measured.

    Raises:
        UsageError: a name, letter or value is illegal. Unsupported: a backend cannot be imported here.
    """
    choices = MeasureOptions(**{name: value for name, value in given.items() if name in FIELDS})
    sizes = {name: value for name, value in given.items() if name not in FIELDS}
    if are_workloads(of):
        form = _first_form(of, choices, sizes, given.get("pass_"))
        of, sizes = (form.models or ())[0], {each.name: each.sizes[0] for each in form.sizes}
        choices = replace(choices, pass_=(form.passes or (choices.pass_,))[0])
    selection, device = selection_of(
        of,
        choices.dtype,
        choices.gate_dtype,
        _one("regime", choices.regime),
        choices.layout,
        choices.device,
        choices.seed,
        sizes,
        preset=choices.preset,
        keywords=FIELDS,
    )
    recurrence = registry.recurrence(registry.recurrence_of(of))
    entry = _named(of, entry_of(of, function, recurrence), choices.name, by_name=isinstance(function, str))
    subject = subjects_of(of, selection, recurrence, names(_one("gates", choices.gates)))[0]
    shape = subject.shapes[len(subject.shapes) // 2].with_(**sizes)
    if choices.pass_ == "decode":
        if sizes.get("T", 1) != 1:
            raise UsageError(f"the pass decode takes one token: T must be 1, got {sizes['T']}")
        shape = one_token((shape,), grows=recurrence.grows)[0]
    on_cpu = selection.device.type == "cpu"
    case = Case(
        SUITE,
        subject.recurrence,
        entry.name,
        shape,
        subject.model,
        **{name: selection.chosen(name)[0] for name in ("dtype", "gate_dtype", "layout")},
        operand_source=subject.source,
        device=selection.device.type,
        pass_=choices.pass_,
        cache=choices.cache or ("hot" if on_cpu else "cold"),
        seed=choices.seed,
    )
    if on_cpu and case.cache == "cold":
        raise UsageError("a CPU is always measured with a hot cache, got cache='cold'")
    if case.decodes and not recurrence.has_state:
        raise UsageError(f"no decode pass: {recurrence.name} has no state to continue from")
    scale = Request(
        (SUITE,),
        selection,
        (device,),
        Path(),
        RunOptions.from_json(
            {"time": choices.time, "precision": choices.precision, "samples": choices.samples}
        ),
    ).scale
    settings = Settings.of(scale)
    threads = scale.threads if on_cpu and "OMP_NUM_THREADS" not in os.environ else None
    refusal = refusal_of(case, entry, selection)
    return Wanted(case, entry, refusal, device, settings, threads, isinstance(function, str))


def facts_of(wanted: Wanted) -> Facts:
    """Measure the ceilings of a case's device, which takes up to 2 s, and describe the environment."""
    with _surroundings(wanted):
        ceilings = measure_ceilings(wanted.device)
        environment = {**capture(wanted.device, ceilings), SHARED_PROCESS: "pytest"}
    return Facts(env_id(environment), environment, ceilings)


def measured(
    wanted: Wanted,
    facts: Facts,
    *,
    nonce: int,
    command: str,
    passed_on: tuple[type[BaseException], ...],
) -> Record:
    """Judge a case and, if it is right, time it.

    nonce: added to the number of every draw of values. command: repeats the case.
    passed_on: kinds of exceptions that are not the function's.
    """
    case = wanted.case
    if wanted.refusal:
        return Record(case, Status.UNSUPPORTED, wanted.refusal, facts.env_id, {"command": command})
    with _surroundings(wanted):
        context = _TimingBench(
            wanted.device,
            facts.env_id,
            wanted.settings,
            facts.ceilings,
            nonce=nonce,
            graphs=False,
            entry=wanted.entry,
            repeats=command,
            by_name=wanted.by_name,
        )
        return run_case(case, context, passed_on=passed_on)


@dataclass
class _TimingBench(Bench):
    """A bench on which a case is timed.

    repeats: the command that repeats the case. by_name: whether the backend is a registered one.
    """

    repeats: str = dataclasses.field(kw_only=True)
    by_name: bool = dataclasses.field(kw_only=True)

    def command(self, case: Case) -> str:
        return self.repeats

    def is_guest(self, case: Case) -> bool:
        return not self.by_name or super().is_guest(case)


def _named(of: str, entry: Backend, name: str | None, *, by_name: bool) -> Backend:
    """Give a function the name under which it is recorded.

    Raises:
        UsageError: a registered backend, whose cases would be the same ones, has that name.
    """
    if by_name:
        if name is not None:
            raise UsageError(f"the backend {entry.name} has a name: leave out name={name!r}")
        return entry
    if name is not None and not (isinstance(name, str) and name.isprintable() and name):
        raise UsageError(f"the name must be a printable text, got {name!r}")
    found = replace(entry, name=name or entry.name)
    if found.name in registry.backend_names(of):
        raise UsageError(
            f"{found.name} is a registered backend of {of}: measure that by its name, or give "
            "the function another `name`"
        )
    return found


def _first_form(
    workload: str, choices: MeasureOptions, sizes: Mapping[str, int], pass_: str | None
) -> Selection:
    """Give the selection of a workload's first form, with the sizes and the pass that are named.

    Raises:
        UnknownName, UsageError: there is no such workload, or a size is named that it decides.
    """
    chosen, _ = select(
        preset=choices.preset,
        device=str(choices.device),
        axis=[f"{letter}={size}" for letter, size in sizes.items()],
        workload=workload,
        pass_=pass_,
    )
    return chosen.parts[0]


def _one(label: str, value: Any) -> Names | None:
    """Check that at most one name was given. Raises UsageError."""
    found = names(value)
    if found is not None and len(found) > 1:
        raise UsageError(f"a measurement has one of the {label}, got {', '.join(found)}")
    return found


@contextlib.contextmanager
def _surroundings(wanted: Wanted) -> Iterator[None]:
    """Put torch's settings, threads and stream to those of a worker, and back after the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(like_a_worker(wanted.device))
        if wanted.device.startswith("cuda"):
            torch.cuda.synchronize(wanted.device)
            stack.callback(torch.cuda.synchronize, wanted.device)
            stack.enter_context(torch.cuda.stream(torch.cuda.Stream(wanted.device)))
        elif wanted.threads:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(wanted.threads)
        yield
