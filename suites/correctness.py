"""Is each backend right? Models, recurrences under every gate regime, closed forms and identities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ssmperf import (
    PASSES,
    REGIMES,
    Analytic,
    Case,
    Context,
    Identity,
    Judging,
    Probe,
    Record,
    Section,
    Selection,
    Shape,
    Status,
    Subject,
    Verdict,
    bare_subjects,
    check_properties,
    decay_span,
    dtype_of,
    first_length,
    is_regime,
    judge_analytic,
    judge_identity,
    judge_lowering,
    make_reference,
    prepare_analytic,
    product,
    registry,
    rehearse,
    relative_error,
    split_source,
    subjects,
    suite,
)

USUAL_REGIMES = ("sigmoid",)  # of half precision
PROBED = ("sigmoid", "reset", "s4d", "phase")  # regimes under which the properties are looked at, too
ANSWERED = ("analytic", "identity")
SECTION = Section(
    title="Correctness",
    question="Does each backend give the recurrence's outputs, final state and gradients?",
    columns=(
        "error_output",
        "error_final_state",
        "error_gradients",
        "error_bound",
        "decay_span",
        "error_lowering",
        "failed_property",
    ),
    rows="topic",
    note="failed_property",
)


@suite("correctness", section=SECTION, levels=("op", "block"), passes=PASSES)
class Correctness:
    """One case a subject and backend, forward and backward from a random initial state.

    Subjects are the models with their own operands, and each recurrence under all regimes and gate kinds, in
    the closed forms and in the identities that there are of it. In half precision, one regime stands for all.
    Of level block are the models alone; their blocks begin without a state. The pass decode is judged by the
    output and final state of one token; properties and checks are of the others.
    """

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        for case in product(
            selection,
            self.name,
            passes=("forward_backward",),
            dtypes=("float32",) if on_cpu else ("float32", "bfloat16"),
            cache="hot",
            shapes=ragged,
            about=sampled(selection),
        ):
            regime, _ = split_source(case.operand_source)
            usual = case.model is not None or regime in USUAL_REGIMES
            if usual or case.dtype == "float32" or selection.dtypes or selection.regimes:
                yield case
        if selection.level == "op" and selection.passes != ("decode",):
            yield from self._checks(selection)

    def _checks(self, selection: Selection) -> Iterator[Case]:
        """Closed forms and identities, in the widest dtype of each backend where none is chosen."""
        for case in product(
            replace(selection, axes=()).choosing(passes=None),
            self.name,
            passes=("forward",),
            dtypes=("float64",),
            cache="hot",
            about=checked(selection),
        ):
            yield case if selection.dtypes else _widest(case)

    def measure(self, case: Case, context: Context) -> Record:
        source, name = split_source(case.operand_source)
        if source in ANSWERED:
            return self._check(case, source, name or "", context)
        if not context.backend(case).equivalent:
            return self._baseline(case, context)
        judging = Judging(case, context, with_state=True)
        verdict, buffers = judging.first()
        bound = judging.bound(buffers.operands)
        span = decay_span(context.recurrence(case), context.subject(case).lower(buffers.operands))
        numbers: dict[str, Any] = {"decay_span": span, "error_bound": bound}
        if case.model is not None and source == "model" and case.level == "op" and not case.decodes:
            lowered = context.memoised(case, "lowering", lambda: judge_lowering(case, context.device))
            numbers["error_lowering"] = lowered.error
            if not lowered.holds:
                verdict = replace(verdict, status=Status.WRONG, reason=lowered.reason)
        elif self._probed(case) and verdict.status is Status.OK:
            verdict, found = self._properties(case, context, verdict)
            numbers |= found
        return context.record(case, verdict, **numbers)

    def _probed(self, case: Case) -> bool:
        """Whether the properties are looked at too: once for a recurrence's regime, not in half precision."""
        regime, _ = split_source(case.operand_source)
        probed = regime in PROBED and case.dtype in ("float32", "float64") and not case.decodes
        return case.model is None and probed

    def _properties(self, case: Case, context: Context, verdict: Verdict) -> tuple[Verdict, dict[str, Any]]:
        """The verdict in the light of the properties, and what they gave."""
        backend = context.backend(case)
        dtype = "float64" if "float64" in backend.dtypes else "float32"
        probe = context.memoised(case, ("probe", dtype), lambda: Probe(case, dtype, context.device))
        bound = partial(Judging(case, context).bound, dtype=dtype)
        found = list(check_properties(backend, probe, bound))
        failed = next((finding for finding in found if not finding.holds), None)
        errors = {f"property {f.name}": f.error for f in found if f.error is not None}
        limits = {f"property {f.name}": f.limit for f in found if f.limit is not None}
        verdict = replace(
            verdict,
            errors={**verdict.errors, **errors},
            tolerances={**verdict.tolerances, **limits},
        )
        if failed is not None:
            reason = failed.reason or f"relative error {failed.error:.2e} above {failed.limit:.2e}"
            broken = Status.NAN if failed.error != failed.error else Status.WRONG
            verdict = replace(verdict, status=broken, reason=f"{failed.name}: {reason} ({dtype})")
        return verdict, {
            "properties": {finding.name: finding.error for finding in found},
            "failed_property": failed.name if failed else None,
            "properties_not_applicable": {f.name: f.reason for f in found if f.error is None},
        }

    def _check(self, case: Case, source: str, name: str, context: Context) -> Record:
        """Put a backend to a closed form or an identity."""
        backend, dtype = context.backend(case), dtype_of(case.dtype)
        if not backend.equivalent:
            return context.record(case, baseline(backend.name))
        bound = Judging(case, context).bound
        if source == "analytic":
            known = context.memoised(
                case,
                "answer",
                lambda: prepare_analytic(_entry(source, name, case), dtype, context.device, case.layout),
            )
            verdict = judge_analytic(known, backend, dtype, context.device, bound)
        else:
            entry = _entry(source, name, case)
            rehearsed = context.memoised(case, "rehearsal", lambda: rehearse(entry, dtype))
            verdict = judge_identity(entry, rehearsed, backend, dtype, context.device, bound, case.layout)
        worst = max(verdict.errors.values(), default=None)
        return context.record(case, verdict, error_output=worst)

    def _baseline(self, case: Case, context: Context) -> Record:
        """Judge a backend that is another function by its own definition; say how far that is from here."""
        judging = Judging(case, context, with_state=case.decodes)
        verdict, _ = judging.first()
        if verdict.status is not Status.OK:
            return context.record(case, verdict)
        values, definition = judging.values(1), context.recurrence(case).definition
        exact = context.memoised(
            case,
            "recurrence",
            lambda: make_reference(context.subject(case), definition, values, gradients=False).exact,
        )
        assert verdict.output is not None
        error = relative_error(verdict.output, exact.output)
        return context.record(case, baseline(case.backend, error), error_output=error)


def baseline(name: str, error: float | None = None) -> Verdict:
    """What is said of a backend that declares `equivalent=False`: no recurrence, nor meant to be."""
    reason = f"{name} is another function than the recurrence by declaration (equivalent=False)"
    if error is not None:
        reason += f": right by its own definition, its output is {error:.2g} away from the recurrence's"
    return Verdict(Status.UNSUPPORTED, reason)


def sampled(selection: Selection) -> Iterator[Subject]:
    """Models with their own operands, recurrences under gate regimes: all that are not told otherwise."""
    regimes = selection.regimes
    if regimes is not None:
        named = tuple(source for source in regimes if source == "model" or is_regime(source))
        if named:
            yield from subjects(selection.choosing(regimes=named))
        return
    if selection.level == "block":
        yield from subjects(selection)
        return
    recurrences = registry.recurrences()
    names = (*registry.models(), *recurrences) if selection.models is None else selection.models
    models = tuple(name for name in names if name not in recurrences)
    if models:
        yield from subjects(replace(selection, models=models))
    # under every regime at small shapes: the reference of a large one takes seconds, for each of hundreds
    small = replace(selection, preset=selection.preset or "smoke")
    yield from bare_subjects(small, (name for name in names if name in recurrences), REGIMES)


def checked(selection: Selection) -> Iterator[Subject]:
    """Closed forms and identities of all recurrences or of those named; of models where regimes ask so."""
    wanted = {*(ANSWERED if selection.regimes is None else selection.regimes)}
    names = {*(registry.recurrences() if selection.models is None else selection.models)}
    for recurrence in registry.recurrences():
        for name, entry in registry.analytics(recurrence).items() if recurrence in names else ():
            if {"analytic", f"analytic/{name}"} & wanted:
                yield _subject(entry, f"analytic/{name}")
    for name, identity in registry.identities().items():
        spoken_of = {identity.of} if selection.regimes is None else {identity.of, *identity.subjects}
        if spoken_of & names and {"identity", f"identity/{name}"} & wanted:
            yield _subject(identity, f"identity/{name}")


def _subject(entry: Analytic | Identity, source: str) -> Subject:
    return Subject(entry.of, source, (Shape(T=first_length(entry)),))


def _entry(source: str, name: str, case: Case) -> Any:
    if source == "identity":
        return registry.identities()[name]
    return registry.analytics(case.recurrence)[name]


def _widest(case: Case) -> Case:
    """The same in float32 where the backend has no float64."""
    if registry.import_problem(case.recurrence, case.backend):
        return case
    if "float64" in registry.backend(case.recurrence, case.backend).dtypes:
        return case
    return replace(case, dtype="float32", gate_dtype="float32")


def ragged(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """The least shape at a T that no tile divides, as one sequence where T is long."""
    first = min(shapes, key=lambda shape: shape["T"])
    odd = first.with_(T=first["T"] + 3)
    return (odd.with_(B=1) if odd["T"] > 1024 else odd,)
