"""Is each backend right? Models, recurrences under every gate regime, closed forms and identities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ssmperf import PASSES, REGIMES, Case, Record, Selection, Shape, Status
from ssmperf.suitekit import (
    Context,
    Judging,
    PlannedSubject,
    Probe,
    Section,
    Verdict,
    bare_subjects,
    check_properties,
    decay_span,
    has_probe,
    has_properties,
    is_own,
    is_regime,
    judge_lowering,
    product,
    registry,
    split_source,
    subjects,
    suite,
    widest,
    with_checks,
)

from .known_answers import has_known_answer, judge_known_answer, known_answer_cases

REGIMES_IN_HALF_PRECISION = ("sigmoid",)
REGIMES_OF_CALLS = ("sigmoid",)  # whose kinds of gates stand for those of other regimes
LONGEST_BATCH = 1024  # above this T, the batch is a single sequence
MOST_SEQUENCES = 3  # of a preset's shape, since all are computed alike
LARGEST_STATE = 3 * 128 * 128  # elements of the K × V states of a sequence's heads, where it has several
NARROW = ({"H": 3, "K": 16, "V": 48}, {"H": 2, "K": 28, "V": 24}, {"H": 2, "K": 8, "V": 64})
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


@suite(
    "correctness",
    section=SECTION,
    levels=("op", "block"),
    passes=PASSES,
    case_s={"cpu": 0.06, "cuda": 0.12},
    case_calls=4,
    shares_device=True,
)
class Correctness:
    """One case per subject and backend, forward and backward from a random initial state.

    At level op the subjects are the models with their own operands, each recurrence under all regimes and
    gate kinds, and the recurrences' closed forms and identities. In half precision, one regime stands for
    all. At level block the subjects are the models alone, and their blocks begin without a state.

    In the pass decode, the output and final state of one token are judged. Properties, closed forms and
    identities belong to the other passes.
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
            about=at_own_lengths(sampled_subjects(selection), selection),
        ):
            regime, _ = split_source(case.operand_source)
            usual = case.model is not None or regime in REGIMES_IN_HALF_PRECISION
            if usual or case.dtype == "float32" or selection.dtypes or selection.regimes:
                yield case
            if not (on_cpu or selection.sizes):
                yield from narrow(case)
        plain = selection.packing is None and selection.call.plain  # known answers have operands of their own
        plain = plain and selection.use is None
        if selection.level == "op" and selection.passes != ("decode",) and plain:
            yield from known_answer_cases(selection, self.name)

    def measure(self, case: Case, context: Context) -> Record:
        backend = context.backend(case)
        if has_known_answer(case):
            if not backend.equivalent:
                return context.record(case, another_function(backend.name))
            return judge_known_answer(case, context)
        if not backend.equivalent:
            return judge_another_function(case, context)
        return judge_sampled(case, context)


def judge_sampled(case: Case, context: Context) -> Record:
    """Judge a backend on sampled operands; also the model's lowering, or the recurrence's properties."""
    judging = Judging(case, context, with_state=True)
    verdict, buffers = judging.first()
    bound = judging.bound(buffers.operands)
    span = decay_span(context.recurrence(case), context.subject(case).lower(buffers.operands))
    numbers: dict[str, Any] = {
        "decay_span": span,
        "error_bound": bound,
    }
    if has_lowering(case):
        lowered = context.memoised(case, "lowering", lambda: judge_lowering(case, context.device))
        numbers["error_lowering"] = lowered.error
        if not lowered.holds:
            verdict = replace(verdict, status=Status.WRONG, reason=lowered.reason)
    if verdict.status is Status.OK and judges_calls(case, context):
        verdict, found = judge_calls(case, context, verdict)
        numbers |= found
    if verdict.status is Status.OK and has_properties(case):
        verdict, found = judge_properties(case, context, verdict)
        numbers |= found
    return context.record(case, verdict, **numbers)


def has_lowering(case: Case) -> bool:
    """Whether a case's operands are a model's own, formed from x."""
    return (
        case.model is not None and case.operand_source == "model" and case.level == "op" and not case.decodes
    )


def judge_properties(case: Case, context: Context, verdict: Verdict) -> tuple[Verdict, dict[str, Any]]:
    """Check the properties in the widest dtype; give the verdict that includes them, and the numbers."""
    backend = context.backend(case)
    dtype = widest(backend)
    probe = context.memoised(case, ("probe", dtype), lambda: Probe(case, dtype, context.device))
    bound = partial(Judging(case, context).bound, dtype=dtype)
    try:
        found = list(check_properties(backend, probe, bound))
    except Exception as error:
        if dtype != case.dtype:
            error.add_note(f"in {dtype}, in which properties are checked: if it takes none, declare dtypes")
        raise
    verdict, failed = with_checks(verdict, "property", found, f" ({dtype})")
    return verdict, {
        "properties": {finding.name: finding.error for finding in found},
        "failed_property": failed.name if failed else None,
        "properties_not_applicable": {f.name: f.reason for f in found if f.error is None},
    }


def judges_calls(case: Case, context: Context) -> bool:
    """Tell whether forms of the call are judged: in one regime, unless backends or sizes are named."""
    regime, _ = split_source(case.operand_source)
    return has_probe(case) and (case.model is not None or regime in REGIMES_OF_CALLS or context.specific)


def judge_calls(case: Case, context: Context, verdict: Verdict) -> tuple[Verdict, dict[str, Any]]:
    """Judge what the signature promises beside plain calls; give the verdict that includes it, and numbers.

    A worker judges a backend once for all cases whose operands are of one kind.
    """
    found = context.calls_judged(case, Judging(case, context).bound)
    verdict, failed = with_checks(verdict, "call", found)
    return verdict, {
        "calls": {finding.name: finding.error for finding in found},
        "failed_call": failed.name if failed else None,
        "calls_not_applicable": {f.name: f.reason for f in found if f.error is None},
    }


def judge_another_function(case: Case, context: Context) -> Record:
    """Judge a backend by its own definition, and measure its distance from the recurrence."""
    judging = Judging(case, context, with_state=case.decodes)
    verdict, _ = judging.first()
    if verdict.status is not Status.OK:
        return context.record(case, verdict)
    error = judging.distance(verdict)
    return context.record(case, another_function(case.backend, error), error_output=error)


def another_function(name: str, error: float | None = None) -> Verdict:
    """Give the verdict on a backend that declares `equivalent=False`: neither right nor wrong."""
    reason = f"{name} is another function than the recurrence by declaration (equivalent=False)"
    if error is not None:
        reason += f": right by its own definition, its output is {error:.2g} away from the recurrence's"
    return Verdict(Status.UNSUPPORTED, reason)


def sampled_subjects(selection: Selection) -> Iterator[PlannedSubject]:
    """List models with their own operands and recurrences under gate regimes, as far as they are chosen."""
    regimes = selection.regimes
    if regimes is not None:
        sampled = tuple(source for source in regimes if is_own(source) or is_regime(source))
        if sampled:
            yield from subjects(selection.choosing(regimes=sampled))
        return
    if selection.level == "block":
        yield from subjects(selection)
        return
    recurrences = registry.recurrences()
    names = (*registry.models(), *recurrences) if selection.models is None else selection.models
    models = tuple(name for name in names if name not in recurrences)
    if models:
        yield from subjects(replace(selection, models=models))
    # regimes are judged at small shapes: there are hundreds, and a large reference takes seconds
    small = replace(selection, preset=selection.preset or "smoke")
    yield from bare_subjects(small, (name for name in names if name in recurrences), REGIMES)


def narrow(case: Case) -> Iterator[Case]:
    """Make the cases of heads with few keys, in half precision: compilers cut their tiles in other ways."""
    regime, _ = split_source(case.operand_source)
    heads = case.model is None and {"H", "K", "V"} <= case.shape.keys() and case.dtype != "float32"
    for sizes in NARROW if heads and regime in REGIMES_IN_HALF_PRECISION else ():
        yield replace(case, shape=case.shape.with_(**sizes))


def at_own_lengths(subjects: Iterable[PlannedSubject], selection: Selection) -> Iterator[PlannedSubject]:
    """Give the subjects the shapes at which the suite judges, unless T is named; other axes then apply."""
    heads = any(each.name == "G" for each in selection.sizes)
    for subject in subjects:
        if selection.lengths is None and subject.shapes:
            subject = replace(subject, shapes=few_and_odd(subject.shapes, all_heads=heads))
        yield subject


def few_and_odd(shapes: tuple[Shape, ...], *, all_heads: bool) -> tuple[Shape, ...]:
    """Take the shape of least T, with an odd T that no tile divides and few sequences and heads.

    Backends that hold all states in memory then need a fifth of it, and every size of a head stays.

    all_heads: keep the number of heads, which that of key heads divides.
    """
    shortest = min(shapes, key=lambda shape: shape["T"])
    T = shortest["T"] + (2 if shortest["T"] % 2 else 3)
    most = {"B": 1 if T > LONGEST_BATCH else MOST_SEQUENCES}
    if {"H", "K", "V"} <= shortest.keys() and not all_heads:
        most["H"] = max(1, LARGEST_STATE // (shortest["K"] * shortest["V"]))
    few = {letter: min(size, shortest[letter]) for letter, size in most.items() if letter in shortest}
    return (shortest.with_(T=T, **few),)
