"""From a selection to cases: which to run, and which to record as unsupported, with the reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ssmperf import registry
from ssmperf.axes import Axis, spread
from ssmperf.case import CHECKS, DTYPES, LAYOUTS, PASSES, Case, Shape, split_source
from ssmperf.errors import UnknownName, UsageError
from ssmperf.recurrence import Backend

PRESETS = ("smoke", "standard", "long")
LEVELS = ("op", "block")  # of what is measured: a recurrence, or a model's whole layer
TIMINGS = ("native", "end-to-end")
SEEDS = 2**63
USUAL_REGIMES = ("sigmoid",)  # of a recurrence that is named without a regime
LONGEST_CALL_S = 1.0
SECONDS_PER_LAUNCH = 8e-6
BYTES_PER_SECOND = 1.5e12  # what an unfused kernel reaches on a large GPU
BACKWARD_FACTOR = 2.5
BACKWARD_LAUNCHES = 5.0  # of an autograd backward over a loop, each forward launch
PASSES_OVER_WORKSPACE = 4
MEMORY_SHARE = 0.6  # operands, gradients and the oracle take the rest


@dataclass(frozen=True, slots=True)
class Device:
    """The device that a plan is for, as far as it can be known without a CUDA context."""

    type: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user asked for. None means the default of the suite.

    models: names of models, or of recurrences to be run bare, under gate regimes.
    """

    device: Device = Device("cpu")
    models: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    preset: str | None = None
    axes: tuple[Axis, ...] = ()
    dtypes: tuple[str, ...] | None = None
    passes: tuple[str, ...] | None = None
    regimes: tuple[str, ...] | None = None
    gate_dtypes: tuple[str, ...] = ("float32",)
    layouts: tuple[str, ...] = ("channels_last",)
    level: str = "op"
    timing: str = "native"
    seed: int = 0

    def __post_init__(self) -> None:
        from ssmperf.regimes import REGIMES  # imports torch

        for values, valid, what in (
            (self.dtypes or (), DTYPES, "dtype"),
            (self.gate_dtypes, DTYPES, "gate dtype"),
            (self.passes or (), PASSES, "pass"),
            ((self.preset,) if self.preset else (), PRESETS, "preset"),
            (self.layouts, LAYOUTS, "layout"),
            ((self.level,), LEVELS, "level"),
            ((self.timing,), TIMINGS, "timing"),
        ):
            for value in values:
                if value not in valid:
                    raise UnknownName(what, value, valid)
        if not 0 <= self.seed < SEEDS:
            raise UsageError(f"the seed must be from 0 to {SEEDS - 1}, got {self.seed}")
        lengths = next((axis.sizes for axis in self.axes if axis.name == "T"), (1,))
        if self.passes == ("decode",) and lengths != (1,):
            raise UsageError("the pass decode takes one token, so its T is 1: leave out the axis T")
        for source in self.regimes or ():
            if split_source(source)[0] not in (*REGIMES, *CHECKS):
                raise UnknownName("regime", source, [*REGIMES, *(f"{check}/NAME" for check in CHECKS)])
        for name in self.models or ():
            registry.recurrence_of(name)
        if self.level == "block":
            self._check_block()
        if self.backends is not None:
            registry.check_backend_names(self.backends)

    def _check_block(self) -> None:
        bare = [name for name in self.models or () if name in registry.recurrences()]
        if bare:
            raise UsageError(f"--level block is for models, and {', '.join(bare)} is a recurrence")
        if self.regimes is not None:
            raise UsageError("--level block takes no regime: the block makes the operands")
        if self.gate_dtypes != ("float32",):
            raise UsageError("--level block takes no gate dtype: the model chooses it")

    @property
    def preset_name(self) -> str:
        return self.preset or ("smoke" if self.device.type == "cpu" else "standard")


@dataclass(frozen=True, slots=True)
class Subject:
    """What cases are about: a model, or a bare recurrence, with the source of its operands."""

    recurrence: str
    source: str
    shapes: tuple[Shape, ...]
    model: str | None = None

    @property
    def owner(self) -> str:
        """Whose backends are run."""
        return self.model or self.recurrence


@dataclass(frozen=True, slots=True)
class Planned:
    """A case, and why it is not run (None: it is)."""

    case: Case
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All cases of a run, in the order in which they are run: neighbours share operands."""

    cases: tuple[Planned, ...]

    @property
    def to_run(self) -> list[Case]:
        return [planned.case for planned in self.cases if planned.refusal is None]

    @property
    def refused(self) -> list[Planned]:
        return [planned for planned in self.cases if planned.refusal is not None]


def make_plan(selection: Selection, suites: Sequence[str]) -> Plan:
    """The plan of a selection for some suites.

    Raises:
        UnknownName: no such suite.
        UsageError: nothing is selected.
    """
    if not suites:
        raise UsageError(
            f"no suite is named: pass --suite with one or more of {', '.join(registry.suites())}"
        )
    cases: dict[str, Case] = {}
    for name in suites:
        asked = registry.suite(name)
        confined = registry.confined("suite", name)
        if confined:
            raise UsageError(confined)
        if selection.level not in asked.levels:
            raise UsageError(f"the suite {name} has no level {selection.level}")
        for pass_ in selection.passes or ():
            if pass_ not in asked.passes:
                raise UsageError(f"the suite {name} has no pass {pass_} (it has {', '.join(asked.passes)})")
        for case in asked.cases(selection):
            cases.setdefault(case.id, case)
    if not cases:
        raise UsageError(_empty(selection))
    for axis in selection.axes:
        if not any(axis.name in case.shape for case in cases.values()):
            raise UsageError(f"axis {axis.name!r} is no dimension of the selected models")
    planned = [Planned(case, refusal(case, selection)) for case in cases.values()]
    return Plan(tuple(sorted(planned, key=lambda item: _order(item.case))))


def product(
    selection: Selection,
    suite: str,
    *,
    passes: tuple[str, ...],
    dtypes: tuple[str, ...],
    cache: str,
    shapes: Callable[[tuple[Shape, ...]], tuple[Shape, ...]] = lambda shapes: shapes,
    subjects: Iterable[Subject] | None = None,
) -> Iterator[Case]:
    """All cases of a selection for a suite with these defaults, one for each legal combination.

    Of the pass `decode` T is 1, whatever the shapes say, and what is then the same is one case.


    shapes: turns a preset's shapes into the suite's own; not applied where the user gave axes.
    subjects: what the cases are about, `chosen(selection)` if None.
    """
    for subject in chosen(selection) if subjects is None else subjects:
        sizes = spread(subject.shapes, selection.axes) if selection.axes else shapes(subject.shapes)
        taken = DTYPES if subject.model is None else registry.model(subject.model).dtypes
        able = [dtype for dtype in dtypes if dtype in taken] or ["float32"]
        tokens = tuple(dict.fromkeys(shape.with_(T=1) for shape in sizes))
        sizes_of = {p: tokens if p == "decode" else sizes for p in selection.passes or passes}
        for (pass_, shape), dtype, gate_dtype, layout, name in itertools.product(
            [(pass_, shape) for pass_, its in sizes_of.items() for shape in its],
            selection.dtypes or able,
            selection.gate_dtypes,
            selection.layouts,
            _backends_of(subject.owner, selection.backends),
        ):
            yield Case(
                suite=suite,
                recurrence=subject.recurrence,
                backend=name,
                shape=shape,
                model=subject.model,
                dtype=dtype,
                gate_dtype="float64" if dtype == "float64" else gate_dtype,
                layout=layout,
                operand_source=subject.source,
                device=selection.device.type,
                pass_=pass_,
                cache=cache,
                timing=selection.timing,
                level=selection.level,
                seed=selection.seed,
            )


def refusal(case: Case, selection: Selection) -> str | None:
    """Why a case cannot be run on the selection's device, or None."""
    owner = case.model or case.recurrence
    problem = registry.import_problem(owner, case.backend)
    if problem:
        return problem
    backend = registry.backend(owner, case.backend)
    confined = _confined(case, backend)
    if confined:
        return confined
    model = registry.model(case.model) if case.model else None
    if model and case.dtype not in model.dtypes:
        return f"no {case.dtype}: the model takes {', '.join(model.dtypes)}"
    if case.decodes and not registry.recurrence(case.recurrence).has_state:
        return f"no decode pass: {case.recurrence} has no state to go on from"
    if case.level == "block" and case.decodes:
        return "no decode pass at level block: a block is run from the beginning of its sequence"
    if case.level == "block" and case.layout != "channels_last":
        return f"no {case.layout} layout at level block: a block lays out the operands itself"
    gate = _gate_kind(case)
    return backend.refusal(
        device=case.device,
        dtype=case.dtype,
        pass_=case.pass_,
        gate_kind=gate,
        length=case.shape["T"],
        capability=selection.device.capability,
        layout=case.layout,
    ) or _unaffordable(backend, case, selection)


def _confined(case: Case, backend: Backend) -> str | None:
    things = [("recurrence", case.recurrence), ("backend", f"{backend.of}/{backend.name}")]
    things += [("model", case.model)] if case.model else []
    return next(filter(None, (registry.confined(kind, label) for kind, label in things)), None)


def _unaffordable(backend: Backend, case: Case, selection: Selection) -> str | None:
    """Predicted calls beyond a second, or beyond the device's memory, are skipped by the presets."""
    if case.device == "cpu" or selection.axes or split_source(case.operand_source)[0] in CHECKS:
        return None
    memory_bytes = _workspace_bytes(backend, case, _gate_kind(case) or "")
    memory = selection.device.memory_bytes
    if memory is not None and memory_bytes > MEMORY_SHARE * memory:
        return (
            f"predicted workspace {memory_bytes / 2**30:.0f} GiB is more than {MEMORY_SHARE:.0%} of the "
            f"device's {memory / 2**30:.0f} GiB (choose a shape with --axis to try)"
        )
    launches = backend.launches(case.shape) if backend.launches else 0.0
    factor = BACKWARD_LAUNCHES if case.gradients else 1.0
    seconds = factor * launches * SECONDS_PER_LAUNCH + PASSES_OVER_WORKSPACE * memory_bytes / BYTES_PER_SECOND
    if seconds > LONGEST_CALL_S:
        return (
            f"predicted {seconds:.1f} s a call is more than the preset's {LONGEST_CALL_S:.0f} s "
            "(choose a shape with --axis to try)"
        )
    return None


def _workspace_bytes(backend: Backend, case: Case, gate: str) -> float:
    itemsize = 8 if case.dtype == "float64" or gate.endswith("_complex") else 4
    forward = backend.workspace(case.shape, itemsize, gate) if backend.workspace else 0.0
    if not case.gradients:
        return forward
    if backend.saved is not None:
        return forward + backend.saved(case.shape, itemsize, gate)
    return BACKWARD_FACTOR * forward


def chosen(selection: Selection, *, families: bool = True) -> Iterator[Subject]:
    """What a selection names. Without names: every model, or every recurrence under the regimes named.

    families: whether every model includes the listed members of families, or only what has a name of its own.
    """
    if selection.models is None and selection.regimes:
        yield from bare(selection, registry.recurrences(), selection.regimes)
        return
    every = (name for name in registry.models() if families or ":" not in name)
    for name in every if selection.models is None else selection.models:
        if name in registry.recurrences():
            yield from bare(selection, (name,), selection.regimes or USUAL_REGIMES)
            continue
        entry = registry.model(name)
        for source in selection.regimes or ("model",):
            if split_source(source)[1] in (None, entry.gate):
                shapes = entry.shapes(selection.preset_name)
                yield Subject(entry.recurrence, source, shapes, name)


def bare(selection: Selection, recurrences: Iterable[str], regimes: Iterable[str]) -> Iterator[Subject]:
    """Recurrences under regimes, REGIME or REGIME/KIND: a subject for each gate kind that one has."""
    for name, source in itertools.product(recurrences, regimes):
        entry = registry.recurrence(name)
        regime, wanted = split_source(source)
        for kind in entry.gate_kinds if regime not in CHECKS else ():
            if wanted in (None, kind) and (regime != "phase" or kind.endswith("_complex")):
                yield Subject(name, f"{regime}/{kind}", entry.presets.get(selection.preset_name, ()))


def _gate_kind(case: Case) -> str | None:
    if split_source(case.operand_source)[0] in CHECKS:
        return None  # its operands say what it is
    return registry.model(case.model).gate if case.model else case.gate_kind


def _backends_of(owner: str, chosen: tuple[str, ...] | None) -> list[str]:
    names = registry.backend_names(owner)
    return names if chosen is None else [name for name in names if name in chosen]


def _order(case: Case) -> tuple[object, ...]:
    return (
        case.model or "",
        case.recurrence,
        case.operand_source,
        tuple(case.shape.values()),
        case.dtype,
        case.gate_dtype,
        case.suite,
        case.backend,
        PASSES.index(case.pass_),
    )


def _empty(selection: Selection) -> str:
    wanted = ", ".join(selection.backends or ())
    owners: Iterable[str] = selection.models or registry.models()
    known = sorted({name for owner in owners for name in registry.backend_names(owner)})
    return f"nothing is selected: no chosen model has the backend {wanted} (they have {', '.join(known)})"
