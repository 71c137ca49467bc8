"""Cases of the correctness suite whose answers are known: closed forms of recurrences, and identities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ssmperf import Case, Record, Selection, Shape
from ssmperf.authoring import Analytic, Identity
from ssmperf.suitekit import (
    Context,
    Judging,
    PlannedSubject,
    dtype_of,
    first_length,
    judge_analytic,
    judge_identity,
    prepare_analytic,
    product,
    registry,
    rehearse,
    split_source,
)

SOURCES = ("analytic", "identity")


def known_answer_cases(selection: Selection, suite: str) -> Iterator[Case]:
    """List the cases of closed forms and identities, in float64 if selection and backend allow it."""
    for case in product(
        replace(selection, sizes=()).choosing(passes=None),
        suite,
        passes=("forward",),
        dtypes=("float64",),
        cache="hot",
        about=_subjects(selection),
    ):
        yield case if selection.dtypes else _in_widest_dtype(case)


def has_known_answer(case: Case) -> bool:
    """Whether a case is about a closed form or an identity."""
    return split_source(case.operand_source)[0] in SOURCES


def judge_known_answer(case: Case, context: Context) -> Record:
    """Judge a backend by a closed form or an identity."""
    backend, dtype = context.backend(case), dtype_of(case.dtype)
    bound = Judging(case, context).bound
    source, name = split_source(case.operand_source)
    if source == "analytic":
        form = registry.analytics(case.recurrence)[name or ""]
        answer = context.memoised(
            case, "answer", lambda: prepare_analytic(form, dtype, context.device, case.layout)
        )
        verdict = judge_analytic(answer, backend, dtype, context.device, bound)
    else:
        identity = registry.identities()[name or ""]
        rehearsed = context.memoised(case, "rehearsal", lambda: rehearse(identity, dtype))
        verdict = judge_identity(identity, rehearsed, backend, dtype, context.device, bound, case.layout)
    worst = max(verdict.errors.values(), default=None)
    return context.record(case, verdict, error_output=worst)


def _subjects(selection: Selection) -> Iterator[PlannedSubject]:
    """List closed forms and identities: of the recurrences named, or of all.

    A model's name finds the identities that mention the model, if a regime asks for identities.
    """
    wanted = {*(SOURCES if selection.regimes is None else selection.regimes)}
    names = {*(registry.recurrences() if selection.models is None else selection.models)}
    for recurrence in registry.recurrences():
        if recurrence not in names:
            continue
        for name, form in registry.analytics(recurrence).items():
            if {"analytic", f"analytic/{name}"} & wanted:
                yield _subject(form, f"analytic/{name}")
    for name, identity in registry.identities().items():
        mentioned = {identity.of} if selection.regimes is None else {identity.of, *identity.subjects}
        if mentioned & names and {"identity", f"identity/{name}"} & wanted:
            yield _subject(identity, f"identity/{name}")


def _subject(entry: Analytic | Identity, source: str) -> PlannedSubject:
    return PlannedSubject(entry.of, source, (Shape(T=first_length(entry)),))


def _in_widest_dtype(case: Case) -> Case:
    """Put a float64 case into float32 if its backend has no float64."""
    if registry.import_problem(case.recurrence, case.backend):
        return case
    if "float64" in registry.backend(case.recurrence, case.backend).dtypes:
        return case
    return replace(case, dtype="float32", gate_dtype="float32")
