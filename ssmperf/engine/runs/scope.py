"""The scope of a run, as asked for, in predicates: `selection` in `run.json`.

A planned case can be found by its id, but a case that the new code no longer plans has none there. A scope
tells whether a case of a base run should be in a new run: such a case is missing if it is not there, and a
case outside of the scope is only named.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.case import JSON_NAMES, Case, axes, split_source
from ssmperf.engine.cases.record import Record
from ssmperf.engine.cases.shape import Shape
from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.selection import NAMED, Selection
from ssmperf.engine.plan.sizes import Sizes
from ssmperf.engine.runs.rounds import fold, watched
from ssmperf.engine.runs.standings import rank_fields
from ssmperf.engine.runs.store import Run, planned
from ssmperf.engine.runs.workloads import workloads_of
from ssmperf.errors import UnknownName, UnreadableRun, UsageError

if TYPE_CHECKING:
    pass

META = "selection"  # key in run.json
PARTS = "parts"  # key in a selection: those of workloads and phases, as NAME:PHASE
MOST_SHAPES = 6  # of those that a message lists
_FIELDS = {JSON_NAMES.get(name, name): name for name in axes() if name != "device"}
AXES = ("model", "backend", "shape", *_FIELDS)


def describe(selection: Selection, suites: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Describe a run's selection and its plan, as plain JSON.

    Models have the names that their cases have. `planned` holds, by suite and by model or recurrence, the
    values that each axis takes in the plan, unless that is its default alone. `parts` holds the selections
    of workloads by NAME:PHASE, each with a part of the plan.
    """
    cases = {item.case.id: item.case for item in plan.cases}
    found = _described(selection, suites, cases.values())
    if not selection.parts:
        return found
    parts = {}
    for (name, phase), forms in _by_phase(selection.parts).items():
        own = [cases[id_] for id_ in plan.workloads.get(name, {}).get(phase, ())]
        parts[f"{name}:{phase}"] = _described(_as_one(forms), suites, own)
    return {**found, "parts": parts}


def resumed(selection: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Add the workloads of an earlier `run.json` of the same folder to a described selection."""
    before = earlier.get(META)
    if not (PARTS in selection and isinstance(before, Mapping) and _intact(before) and PARTS in before):
        return selection
    models = dict.fromkeys((*(before["models"] or ()), *(selection["models"] or ())))
    suites = dict.fromkeys((*before["suites"], *selection["suites"]))
    parts = {**before[PARTS], **selection[PARTS]}
    return {**selection, "suites": list(suites), "models": list(models), PARTS: parts}


def _by_phase(parts: Iterable[Selection]) -> dict[tuple[str, str], list[Selection]]:
    found: dict[tuple[str, str], list[Selection]] = {}
    for part in parts:
        assert part.use is not None
        found.setdefault(part.use[:2], []).append(part)
    return found


def _as_one(forms: Sequence[Selection]) -> Selection:
    """Join the forms of a phase, which differ in sizes and packing."""
    sizes: dict[str, dict[int, None]] = {}
    for each in itertools.chain.from_iterable(form.sizes for form in forms):
        sizes.setdefault(each.name, {}).update(dict.fromkeys(each.sizes))
    choices = {name: value for name, value in forms[0].choices.items()
               if all(form.chosen(name) == value for form in forms)}  # fmt: skip
    return replace(forms[0], sizes=tuple(Sizes(name, tuple(all_)) for name, all_ in sizes.items()),
                   choices=choices)  # fmt: skip


def _described(selection: Selection, suites: Sequence[str], cases: Iterable[Case]) -> dict[str, Any]:
    chosen = {JSON_NAMES.get(name, name): value for name, value in selection.choices.items()}
    planned: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for case in cases:
        values = planned.setdefault(case.suite, {}).setdefault(case.owner, {})
        for name in AXES[1:]:
            value, known = _value(case, name), values.setdefault(name, [])
            if value not in known:
                known.append(value)
    for subjects in planned.values():
        for owner, values in subjects.items():
            subjects[owner] = {name: known for name, known in values.items() if known != _usual(name)}
    return {
        "suites": list(suites),
        "models": None if selection.models is None else [_canonical(name) for name in selection.models],
        "backends": None if selection.backends is None else list(selection.backends),
        "peers": selection.peers,
        "device": selection.device.type,
        "preset": selection.preset_name,
        "sizes": {each.name: list(each.sizes) for each in selection.sizes},
        "judged_at": selection.judged_at,
        "axes": {name: list(v) if isinstance(v, tuple) else [v] for name, v in chosen.items()},
        "planned": planned,
    }


@dataclass(frozen=True, slots=True)
class Scope:
    """The cases of a base run that a new run should have measured as well.

    selection: that of the new run; None for a run of an older version, which covers everything.
    shared: names of the axes on which both runs made the same choice.
    planned: ids of the cases planned in the new run. seen: their values on the shared axes, where recorded.
    only: ids of the cases of the base run that it is about; None for all.
    parts: the scopes of workloads and phases, of which one must cover a case that is not planned; None where
        none was chosen.
    """

    selection: Mapping[str, Any] | None
    shared: tuple[str, ...] = ()
    planned: frozenset[str] = frozenset()
    seen: frozenset[tuple[Any, ...]] = frozenset()
    only: frozenset[str] | None = None
    parts: tuple[Scope, ...] | None = None

    @classmethod
    def of(cls, new: Run, base: Run) -> Scope:
        """Find the scope of a new run that is compared with a base run.

        Raises:
            UnreadableRun: one of their selections is damaged.
        """
        mine, theirs = _selection(new), _selection(base)
        if mine is None:
            return cls(None)
        whole = replace(cls._of_pair(new, mine, theirs), planned=frozenset(planned(new.meta)))
        if PARTS not in mine:
            return whole
        if theirs is None or PARTS not in theirs:
            return replace(
                whole, parts=tuple(cls._of_pair(new, part, theirs) for part in mine[PARTS].values())
            )
        ids = workloads_of(base.meta)
        both = {key: part for key, part in mine[PARTS].items() if key in theirs[PARTS]}
        parts = (
            replace(cls._of_pair(new, part, theirs[PARTS][key]), only=frozenset(ids.get(key, ())))
            for key, part in both.items()
        )
        return replace(whole, parts=tuple(parts))

    @classmethod
    def _of_pair(cls, new: Run, mine: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> Scope:
        shared = _shared(mine, theirs)
        return cls(mine, shared, seen=frozenset(values_of(record.case, shared) for record in new.records))

    def covers(self, case: Case) -> bool:
        """Tell whether the new run should have measured a case of the base run.

        A planned case is covered. Another is covered if its values on the axes with differing choices are
        among those chosen or planned, and no recorded case has its values on the other axes: the new code
        then lacks its model, backend or shape. If one has, the plan decided about the case itself.
        """
        if self.selection is None or case.id in self.planned:
            return True
        if self.only is not None and case.id not in self.only:
            return False
        if self.parts is not None:
            return any(part.covers(case) for part in self.parts)
        if case.suite not in self.selection["suites"] or case.device != self.selection["device"]:
            return False
        differing = [name for name in AXES if name not in self.shared]
        if differing and values_of(case, self.shared) in self.seen:
            return False
        # a resumed run holds cases of an earlier selection, which the names that both runs chose exclude
        named = [name for name in self.shared if self._chosen(name)]
        return all(self._has(case, name) for name in (*differing, *named))

    def _has(self, case: Case, name: str) -> bool:
        """Tell whether a case's value on an axis was chosen, or planned for its subject."""
        assert self.selection is not None
        value, chosen = _value(case, name), self._chosen(name)
        regime = split_source(value)[0] if name == "operand_source" else value
        if value in chosen or regime in chosen:
            return True
        subjects: Mapping[str, Any] = self.selection["planned"].get(case.suite, {})
        if name == "model":
            return value in subjects
        # a subject that the new code lacks may take any value that the suite's other subjects take
        owners = [case.owner] if case.owner in subjects else list(subjects)
        return any(value in subjects[owner].get(name, _usual(name)) for owner in owners)

    def _chosen(self, name: str) -> Sequence[Any]:
        """List the values that were chosen for an axis; none if it was left to the suite or the preset."""
        assert self.selection is not None
        names = {"model": self.selection["models"], "backend": self.selection["backends"]}
        return names.get(name, self.selection["axes"].get(name)) or ()


@dataclass(frozen=True, slots=True)
class Restriction:
    """The part of two runs that is compared: cases of these models, backends and suites. None means all.

    cases: ids of cases, or their first letters.
    """

    models: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    suites: tuple[str, ...] | None = None
    cases: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return any((self.models, self.backends, self.suites, self.cases))

    def keeps(self, case: Case) -> bool:
        """Tell whether a case is compared. A case of a bare recurrence goes by the recurrence's name."""
        return (
            (self.models is None or case.owner in self.models or case.subject in self.models)
            and (self.backends is None or case.backend in self.backends)
            and (self.suites is None or case.suite in self.suites)
            and self.keeps_id(case.id)
        )

    def keeps_id(self, id_: str) -> bool:
        """Tell whether a case may be compared, as far as its id tells."""
        return not self.cases or id_.startswith(self.cases)

    def check(self, cases: Iterable[Case]) -> None:
        """Raise UnknownName for a name that no case of the two runs has."""
        known: dict[str, set[str]] = {"model": set(), "backend": set(), "suite": set()}
        cases = list(cases)
        for case in cases:
            known["model"] |= {case.owner, case.subject}
            known["backend"].add(case.backend)
            known["suite"].add(case.suite)
        for (kind, names), chosen in zip(
            known.items(), (self.models, self.backends, self.suites), strict=True
        ):
            for name in chosen or ():
                if name not in names:
                    raise UnknownName(f"{kind} in these runs", name, names)
        for prefix in self.cases or ():
            if not any(case.id.startswith(prefix) for case in cases):
                raise UsageError(f"no case in these runs has an id that begins with {prefix!r}")

    def to_json(self) -> dict[str, Any]:
        names = dataclasses.asdict(self)
        return {kind: list(chosen) for kind, chosen in names.items() if chosen}


def kept(run: Run, restriction: Restriction, ranks: Mapping[str, str]) -> dict[str, Record]:
    """Take the records of a restriction by case, folded by the fields that are compared."""
    own = rank_fields(run.meta)
    records = watched(run.records, run.meta)
    found = {record.case.id: record for record in records if restriction.keeps(record.case)}
    for id_, record in found.items():
        if own.get(record.case.suite) != (rank := ranks.get(record.case.suite)):
            found[id_] = fold(run.rounds[id_], rank)
    return found


def narrowed(
    runs: Sequence[Run],
    models: tuple[str, ...] | None,
    sizes: Sequence[Sizes],
    dtypes: tuple[str, ...] | None = None,
) -> list[Run]:
    """Keep the records of some models, sizes and dtypes, and what else decides which backend is the fastest.

    A shape that lacks a dimension ignores its sizes. Cases of suites that rank nothing are kept at any size,
    since they tell which backends are right.

    Raises:
        UnknownName: no case of the runs has a model or a dtype. UsageError: no ranked case has these sizes.
    """
    restriction = Restriction(models)
    restriction.check(record.case for run in runs for record in run.records)
    known = {record.case.dtype for run in runs for record in run.records}
    for name in dtypes or ():
        if name not in known:
            raise UnknownName("dtype in these runs", name, known)
    narrow: list[Run] = []
    ranked: list[Shape] = []
    fitting: list[Shape] = []
    for run in runs:
        ranks = rank_fields(run.meta)
        records = [
            record
            for record in run.records
            if restriction.keeps(record.case) and (dtypes is None or record.case.dtype in dtypes)
        ]
        shapes = [record.case.shape for record in records if record.case.suite in ranks]
        fits = {shape: all(shape.get(each.name) in (None, *each.sizes) for each in sizes) for shape in shapes}
        ranked += fits
        fitting += [shape for shape in fits if fits[shape]]
        narrow.append(replace(run, records=[
            record for record in records if record.case.suite not in ranks or fits[record.case.shape]
        ]))  # fmt: skip
    if ranked and not (fitting and all(any(each.name in shape for shape in fitting) for each in sizes)):
        asked = " ".join(f"{each.name}={','.join(map(str, each.sizes))}" for each in sizes)
        shown = [*dict.fromkeys(map(str, ranked))]
        more = ", …" if len(shown) > MOST_SHAPES else ""
        raise UsageError(f"no case has {asked} (shapes there: {', '.join(shown[:MOST_SHAPES])}{more})")
    return narrow


def _shared(mine: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> tuple[str, ...]:
    """List the axes on which two runs made the same choice; of an older run only the default is assumed."""
    if theirs is None:
        return tuple(name for name in ("model", "backend") if mine[f"{name}s"] is None)
    same = {name: mine[f"{name}s"] == theirs[f"{name}s"] for name in ("model", "backend")}
    # runs from before this choice had all peers
    same["backend"] &= mine["backends"] is not None or mine.get("peers", True) == theirs.get("peers", True)
    same["shape"] = all(mine[name] == theirs[name] for name in ("preset", "sizes"))
    same["shape"] &= mine.get("judged_at", NAMED) == theirs.get("judged_at", NAMED)
    return tuple(name for name in AXES if same.get(name, mine["axes"].get(name) == theirs["axes"].get(name)))


def values_of(case: Case, names: Sequence[str]) -> tuple[Any, ...]:
    return (case.suite, case.device, *(_value(case, name) for name in names))


def _value(case: Case, name: str) -> Any:
    """Get the value of an axis by its name in JSON; a shape as text, and a bare recurrence as a model."""
    if name in ("model", "shape"):
        return case.owner if name == "model" else str(case.shape)
    return getattr(case, _FIELDS.get(name, name))


def _usual(name: str) -> list[Any]:
    """List the values of an axis that `planned` leaves out: the default alone."""
    return [axes()[_FIELDS[name]].default] if name in _FIELDS else []


def selection_of(run: Run) -> Mapping[str, Any] | None:
    """Get the selection of a run; None for a run of an older version, or a damaged one."""
    found = run.meta.get(META)
    return found if isinstance(found, Mapping) and _intact(found) else None


def _selection(run: Run) -> Mapping[str, Any] | None:
    found = run.meta.get(META)
    if found is not None and not (isinstance(found, Mapping) and _intact(found)):
        raise UnreadableRun(f"{run.path}: run.json is damaged: its selection is not understood")
    return found


def _canonical(name: str) -> str:
    return name if name in registry.recurrences() else str(registry.model(name).name)


def _intact(found: Mapping[str, Any]) -> bool:
    """Tell whether a selection has every part that is read here, with the types that are read."""

    def names(value: Any, *, optional: bool = False) -> bool:
        return (optional and value is None) or (
            isinstance(value, list) and all(isinstance(v, str) for v in value)
        )

    def objects(value: Any, depth: int) -> bool:
        if depth == 0:
            return isinstance(value, list)
        return isinstance(value, Mapping) and all(objects(each, depth - 1) for each in value.values())

    parts = found.get(PARTS, {})
    return (
        isinstance(parts, Mapping)
        and all(isinstance(part, Mapping) and PARTS not in part and _intact(part) for part in parts.values())
        and all(name in found for name in ("models", "backends"))
        and names(found.get("suites"))
        and all(names(found.get(choice), optional=True) for choice in ("models", "backends"))
        and all(isinstance(found.get(choice), str) for choice in ("device", "preset"))
        and all(objects(found.get(choice), 1) for choice in ("sizes", "axes"))
        and objects(found.get("planned"), 3)
    )
