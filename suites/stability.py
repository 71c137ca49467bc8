"""Where does each backend lose accuracy? Error against float64 over decay regime, length and dtype."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ssmperf import (
    REGIMES,
    Case,
    Chart,
    Context,
    Judging,
    PlannedSubject,
    Record,
    Section,
    Selection,
    Shape,
    Status,
    Unsupported,
    Verdict,
    bare_subjects,
    decay_span,
    product,
    registry,
    steps,
    suite,
    widen,
)

SECTION = Section(
    title="Stability",
    question="How far is each backend from float64 as gates decay faster and sequences grow?",
    columns=(
        "error_output",
        "error_final_state",
        "error_bound",
        "bound_holds",
        "decay_span",
        "first_nan_step",
        "largest_finite_error",
        "largest_state",
    ),
    split=("dtype", "T"),
    charts=(
        Chart(x="T", y="error_output", title="Error against length"),
        Chart(x="steps", y="error_envelope", title="Error along the sequence"),
        Chart(x="steps", y="state_envelope", title="Largest state along the sequence, in float64"),
    ),
)

GROWTH = (1, 8)  # lengths, as multiples of the preset's shortest
ALONG_TIME = ("first_nan_step", "largest_finite_error", "error_envelope")
PIECES = 16  # into which the sequence is divided, each with its largest error and state


@suite("stability", section=SECTION)
class Stability:
    """One case per bare recurrence, regime, gate kind, length and dtype: forward, from a zero state.

    first_nan_step: the first step with a value that is not finite.
    largest_finite_error: the largest error of a finite value, relative to the largest float64 output.
    bound_holds: whether the error is within the bound that an approximate backend declares for this decay
        span.
    error_envelope: the largest error in each piece of the sequence, relative like the above. The pieces end
        before `steps`.
    state_envelope: the largest magnitude in the float64 state at the end of each piece.
    largest_state: the largest of these.

    An error is wrong if it is above the tolerance and above the declared bound. A model stands for its
    recurrence with its gate kind. If no regimes are named, all of them are drawn, with the recurrence's usual
    gates.
    """

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        return product(
            selection,
            self.name,
            passes=("forward",),
            dtypes=("float32", "bfloat16"),
            cache="hot",
            shapes=growing,
            about=regime_subjects(selection),
        )

    def measure(self, case: Case, context: Context) -> Record:
        judging = Judging(case, context)
        values = judging.values(0)
        span = decay_span(context.recurrence(case), values.operands)
        bound = judging.bound(values.operands)
        ends, envelope = context.memoised(
            case, "state_envelope", lambda: state_envelope(case, values.operands)
        )
        try:
            verdict = judging.once(ends=ends)
        except Unsupported as refused:
            verdict = Verdict(Status.UNSUPPORTED, str(refused) or "the backend gave no reason")
        error = verdict.errors.get("output")
        return context.record(
            case,
            verdict,
            decay_span=span,
            error_bound=bound,
            bound_holds=None if bound is None or error is None else error <= bound,
            steps=list(ends),
            state_envelope=None if envelope is None else list(envelope),
            largest_state=None if envelope is None else max(envelope),
            **{name: verdict.extra.get(name) for name in ALONG_TIME},
        )


def regime_subjects(selection: Selection) -> Iterator[PlannedSubject]:
    """List the recurrences named, or those of the models named, under gate regimes."""
    regimes = selection.regimes or tuple(REGIMES)
    for name in dict.fromkeys(selection.models or registry.recurrences()):
        recurrence = registry.recurrence_of(name)
        for regime in regimes:
            if name != recurrence:
                sources = [f"{regime.partition('/')[0]}/{registry.model(name).gate}"]
            else:
                sources = [regime] if selection.regimes else usual_sources(recurrence, regime)
            yield from bare_subjects(selection, (recurrence,), sources)


def usual_sources(recurrence: str, regime: str) -> list[str]:
    """Combine a regime with the gates that the recurrence samples by default, complex ones for phases.

    The list is empty if the recurrence has no such gates.
    """
    entry = registry.recurrence(recurrence)
    parameter = inspect.signature(entry.sample).parameters.get("gate_kind")
    if parameter is None or parameter.default is parameter.empty:
        usual = entry.gate_kinds[0]
    else:
        usual = parameter.default
    if regime == "phase":
        usual = f"{usual}_complex"
    return [f"{regime}/{usual}"] if usual in entry.gate_kinds else []


def growing(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take one sequence of the shortest shape, and one of eight times its length."""
    shortest = min(shapes, key=lambda shape: shape["T"])
    return tuple(shortest.with_(B=1, T=shortest["T"] * factor) for factor in GROWTH)


def state_envelope(
    case: Case, operands: Mapping[str, Any]
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Find the ends of the sequence's pieces, and the largest magnitude in the float64 state at each of them.

    None for a recurrence without a state.
    """
    T = case.shape["T"]
    pieces = min(PIECES, T)
    ends = tuple(T * piece // pieces for piece in range(1, pieces + 1))
    recurrence = registry.recurrence(case.recurrence)
    if not recurrence.has_state:
        return ends, None
    operands = {name: widen(value, torch.float64) for name, value in operands.items()}
    state, largest, start = None, [], 0
    with torch.no_grad():
        for end in ends:
            _, state = recurrence.definition(**steps(operands, start, end, T), initial_state=state)
            largest.append(float(state.abs().max()))
            start = end
    return ends, tuple(largest)
