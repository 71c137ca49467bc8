"""Turn a selection into cases: those to run, and those to record as unsupported, with the reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ssmperf.engine import registry
from ssmperf.engine.cases.axis import Axis
from ssmperf.engine.cases.calls.dtypes import DTYPES
from ssmperf.engine.cases.case import Case, axes, split_source
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.plan.refusal import refusal
from ssmperf.engine.plan.selection import Selection, is_own, is_regime
from ssmperf.engine.plan.sizes import dimensions_of, one_token, packed, spread
from ssmperf.engine.registry.declarations import Recurrence
from ssmperf.errors import UsageError

USUAL_REGIMES = ("sigmoid",)  # for a recurrence that is selected without a regime


@dataclass(frozen=True, slots=True)
class PlannedSubject:
    """The subject of cases: a model or a bare recurrence, with the source of its operands."""

    recurrence: str
    source: str
    shapes: tuple[Shape, ...]
    model: str | None = None

    @property
    def owner(self) -> str:
        """The name of the model or recurrence whose backends are run."""
        return self.model or self.recurrence


@dataclass(frozen=True, slots=True)
class Planned:
    """A case, and the reason why it is not run (None if it is run)."""

    case: Case
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All cases of a run in the order in which they run, so that neighbouring cases share operands.

    workloads: ids of the cases of each workload and phase. Several may have the same.
    """

    cases: tuple[Planned, ...]
    workloads: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def to_run(self) -> list[Case]:
        return [planned.case for planned in self.cases if planned.refusal is None]

    @property
    def refused(self) -> list[Planned]:
        return [planned for planned in self.cases if planned.refusal is not None]


def make_plan(
    selection: Selection, suites: Sequence[str], weighs: Callable[[Case], bool] = lambda case: True
) -> Plan:
    """Plan the cases of a selection for some suites.

    weighs: whether to find out if a case is refused.

    Raises:
        UnknownName: there is no such suite.
        UsageError: nothing is selected.
    """
    if not suites:
        raise UsageError(
            f"no suite is named: pass --suite with one or more of {', '.join(registry.suites())}"
        )

    def check(cases: Sequence[Case]) -> None:
        if not cases:
            raise UsageError(_why_empty(selection))
        _check_forms(selection, _recurrences_of(cases))
        check_sizes(selection, cases)

    return unchecked_plan(selection, suites, check, weighs)


def unchecked_plan(
    selection: Selection,
    suites: Sequence[str],
    check: Callable[[Sequence[Case]], None] = lambda cases: None,
    weighs: Callable[[Case], bool] = lambda case: True,
) -> Plan:
    """Plan the cases of a selection, which may have none, or choices that mean nothing for them.

    check: called with all cases before any is weighed; see `make_plan`.
    """
    cases: dict[str, Case] = {}
    chosen_by: dict[str, Selection] = {}
    workloads: dict[str, dict[str, dict[str, None]]] = {}
    for part in selection.parts or (selection,):
        for case in itertools.chain.from_iterable(_cases_of(name, part) for name in suites):
            cases.setdefault(case.id, case)
            chosen_by.setdefault(case.id, part)
            if part.use is not None:
                workloads.setdefault(part.use.workload, {}).setdefault(part.use.phase, {})[case.id] = None
    check(list(cases.values()))
    planned = [
        Planned(case, _why_not(case, chosen_by[id_]) if weighs(case) else None) for id_, case in cases.items()
    ]
    by_phase = {
        name: {phase: tuple(ids) for phase, ids in phases.items()} for name, phases in workloads.items()
    }
    return Plan(in_order(planned), by_phase)


def in_order(planned: Iterable[Planned]) -> tuple[Planned, ...]:
    """Sort cases so that those with the same operands stand next to each other."""
    return tuple(sorted(planned, key=lambda item: _order(item.case)))


def _recurrences_of(cases: Iterable[Case]) -> list[Recurrence]:
    return [registry.recurrence(name) for name in {case.recurrence for case in cases}]


def check_sizes(selection: Selection, cases: Sequence[Case]) -> None:
    """Raise UsageError for a size that is named and that no case has."""
    shared = ("G",) if any(each.shares_heads for each in _recurrences_of(cases)) else ()
    owners = list(dict.fromkeys(case.owner for case in cases))
    for axis in selection.sizes:
        if axis.name not in shared and not any(axis.name in case.shape for case in cases):
            raise UsageError(
                f"axis {axis.name!r} is no dimension of the selected models: {dimensions_of(owners)}"
            )


def _check_forms(selection: Selection, recurrences: Sequence[Recurrence]) -> None:
    """Raise UsageError for packing or words of calls that none of the selected recurrences has."""
    if selection.packing is not None and not any(each.packs for each in recurrences):
        able = ", ".join(name for name, each in registry.recurrences().items() if each.packs)
        raise UsageError(f"packing: no selected recurrence packs sequences ({able} do)")
    problems = [each.call_problem(selection.call) for each in recurrences]
    if None not in problems:
        raise UsageError(f"call: {problems[0]}")


def _why_not(case: Case, selection: Selection) -> str | None:
    """Say why a case is not run: it cannot be, or its suite leaves it out to save time; None if it is run."""
    reason = refusal(case, selection)
    suite = registry.suite(case.suite)
    if reason is None and hasattr(suite, "left_out"):
        reason = suite.left_out(case, selection)
    return reason


def _cases_of(name: str, selection: Selection) -> Iterable[Case]:
    """List the cases that a suite makes of a selection. Raises UsageError if it cannot take the selection."""
    suite = registry.suite(name)
    confined = registry.hidden_from_workers("suite", name)
    if confined:
        raise UsageError(confined)
    if selection.level not in suite.levels:
        raise UsageError(
            f"the suite {name} has no level {selection.level} (it has {', '.join(suite.levels)})"
        )
    if selection.use is not None and not set(selection.passes or ()) <= set(suite.passes):
        return ()  # the suite has nothing to ask in this phase
    for pass_ in selection.passes or ():
        if pass_ not in suite.passes:
            raise UsageError(f"the suite {name} has no pass {pass_} (it has {', '.join(suite.passes)})")
    handed: Iterable[Selection] = selection.handed_to(suite.section)
    return itertools.chain.from_iterable(map(suite.cases, handed))


def product(
    selection: Selection,
    suite: str,
    *,
    passes: tuple[str, ...],
    dtypes: tuple[str, ...],
    cache: str,
    shapes: Callable[[tuple[Shape, ...]], tuple[Shape, ...]] = lambda shapes: shapes,
    about: Iterable[PlannedSubject] | None = None,
    peers: bool = True,
) -> Iterator[Case]:
    """Make one case per legal combination of a selection, for a suite with these defaults.

    A case of the pass `decode` has T = 1, whatever the shapes say; equal cases are then merged. A state that
    grows then holds as many steps as the shape says.

    shapes: turns a preset's shapes into the suite's own; not applied if the user gave sizes.
    about: subjects of the cases; None means `subjects(selection)`.
    peers: whether backends around other people's kernels are included if no backends are named.
    """
    for subject in subjects(selection) if about is None else about:
        recurrence = registry.recurrence(subject.recurrence)
        if selection.sizes:
            sizes = spread(subject.shapes, selection.sizes, shares_heads=recurrence.shares_heads)
        else:
            sizes = shapes(subject.shapes)
        if selection.packing is not None and recurrence.packs:
            sizes = packed(sizes, selection.packing)
        grows = recurrence.grows
        tokens = one_token(sizes, grows=grows, axes=selection.sizes)
        supported = DTYPES if subject.model is None else registry.model(subject.model).dtypes
        usual = {
            "dtype": tuple(dtype for dtype in dtypes if dtype in supported) or ("float32",),
            "pass_": passes,
        }
        fixed = {"operand_source": subject.source, "device": selection.device.type, "cache": cache}
        values = {
            name: (fixed[name],) if name in fixed else _values(selection, declared, usual.get(name))
            for name, declared in axes().items()
        }
        for combined in itertools.product(*values.values()):
            on = dict(zip(values, combined, strict=True))
            if on["dtype"] == "float64":
                on["gate_dtype"] = "float64"
            for shape in tokens if on["pass_"] == "decode" else sizes:
                for backend in _backends_of(subject.owner, selection.backends, peers=peers):
                    yield Case(suite, subject.recurrence, backend, shape, subject.model, **on)


def _values(selection: Selection, declared: Axis, usual: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """List the values of an axis: the user's choice, else the suite's usual ones, else the axis's default."""
    chosen_values = selection.chosen(declared.name)
    if chosen_values is None:
        return (declared.default,) if usual is None else usual
    return tuple(chosen_values) if declared.many else (chosen_values,)


def subjects(selection: Selection, *, families: bool = True) -> Iterator[PlannedSubject]:
    """List the subjects of a selection: the named models and recurrences.

    If none is named: all models or, if regimes are named, all recurrences under these.

    families: whether "all models" includes the listed members of families.
    """
    if selection.models is None and selection.regimes:
        yield from bare_subjects(selection, registry.recurrences(), selection.regimes)
        return
    every = (name for name in registry.models() if families or ":" not in name)
    for name in every if selection.models is None else selection.models:
        if name in registry.recurrences():
            yield from bare_subjects(selection, (name,), selection.regimes or USUAL_REGIMES)
            continue
        entry = registry.model(name)
        for source in selection.regimes or ("model",):
            if split_source(source)[1] in (None, entry.gate) or is_own(source):
                shapes = registry.shapes(entry, selection.preset_name)
                yield PlannedSubject(entry.recurrence, source, shapes, entry.name)


def bare_subjects(
    selection: Selection, recurrences: Iterable[str], regimes: Iterable[str]
) -> Iterator[PlannedSubject]:
    """List one subject per recurrence, regime and gate kind. A regime is REGIME or REGIME/KIND."""
    for name, source in itertools.product(recurrences, regimes):
        entry = registry.recurrence(name)
        regime, only_kind = split_source(source)
        for kind in entry.gate_kinds if is_regime(source) else ():
            if only_kind in (None, kind) and (regime != "phase" or kind.endswith("_complex")):
                yield PlannedSubject(name, f"{regime}/{kind}", entry.presets.get(selection.preset_name, ()))


def _backends_of(owner: str, chosen: tuple[str, ...] | None, *, peers: bool) -> list[str]:
    """List the backends that were named, or all with or without peers."""
    known = registry.backend_names(owner)
    if chosen is not None:
        return [name for name in known if name in chosen]
    return known if peers else [name for name in known if not registry.is_peer(owner, name)]


def _order(case: Case) -> tuple[object, ...]:
    """Give the sort key that places cases with the same operands next to each other."""

    def place(declared: Axis, value: Any) -> Any:
        return declared.valid.index(value) if declared.valid and value in declared.valid else value

    places = {name: place(declared, getattr(case, name)) for name, declared in axes().items()}
    shared = [places[name] for name, declared in axes().items() if declared.operands]
    others = [places[name] for name, declared in axes().items() if not declared.operands]
    sizes = tuple(case.shape.values())
    return (
        case.model or "",
        case.recurrence,
        case.operand_source,
        sizes,
        *shared,
        case.suite,
        case.backend,
        *others,
    )


def _why_empty(selection: Selection) -> str:
    """Say why a selection has no cases, for example that no model has the chosen backend or gate kind."""
    owners = tuple(selection.models or registry.models())
    known = {owner: registry.backend_names(owner) for owner in owners}
    backends = selection.backends
    if backends is not None and not any(name in names for names in known.values() for name in backends):
        listed = ", ".join(sorted({name for names in known.values() for name in names}))
        return (
            f"nothing is selected: no chosen model has the backend {', '.join(backends)} (they have {listed})"
        )
    kinds = {kind for source in selection.regimes or () if (kind := split_source(source)[1]) is not None}
    if kinds:
        gates = sorted({gate for owner in owners for gate in _gates_of(owner)})
        return (
            f"nothing is selected: no chosen model or recurrence has {' or '.join(sorted(kinds))} gates "
            f"under {', '.join(selection.regimes or ())} (they have {', '.join(gates)})"
        )
    chosen_names = ", ".join(selection.models or ("all models",))
    return f"nothing is selected: the suite makes no case of {chosen_names} with these options"


def _gates_of(owner: str) -> tuple[str, ...]:
    if owner in registry.recurrences():
        return registry.recurrence(owner).gate_kinds
    return (registry.model(owner).gate,)
