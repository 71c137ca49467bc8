"""Up to where is each backend right? Error against float64 over length, decay and dtype.

A model and backend have 24 cases at `smoke`, more than in other suites: four decays, three lengths and two
dtypes, since fewer draw no map.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ssmperf import REGIMES, Case, Record, Selection, Shape
from ssmperf.suitekit import (
    DECAY,
    RESET,
    Chart,
    Context,
    PlannedSubject,
    Section,
    Training,
    bare_subjects,
    check_change,
    decay_of,
    is_own,
    predicted_call_s,
    product,
    registry,
    suite,
)

from .stability_numbers import REPEATED, measure_stability, predicted_cpu_s

SECTION = Section(
    title="Stability",
    question="Up to which decay and which length is each backend right, and how far from float64 is it?",
    columns=(
        "error_output",
        "first_wrong_step",
        "first_nan_step",
        "error_bound",
        "bound_holds",
        "error_final_state",
        "largest_finite_error",
        "deterministic",
        "gate_dtype_difference",
        "tf32_difference",
        "phase_drift",
        "largest_state",
        "decay_span",
    ),
    split=("dtype", "T"),
    charts=(
        Chart(x="T", y="error_output", title="Error against length"),
        Chart(x="steps", y="error_envelope", title="Error along the sequence"),
        Chart(x="T", y="largest_state", title="Largest state against length, in float64"),
        Chart(x="T", y="phase_drift", title="Phase drift against length"),
    ),
    envelope=("decay_span", "T"),
    map=("operand_source", "T", "error_output"),
    lengths=True,
)

MODEL = "model"
# stand for their kind of gate as in earlier runs, whatever is added
PREFERRED = ("linear_transformer", "f4_scalar", "f4_vector", "f4_decoupled")
CHANGES = ("0", "0.1", "10", RESET)  # of a model's own decay
# of the same, where a preset takes few shapes
FEW_CHANGES = ("0", "10", RESET)
LENGTHS = (256, 4096, 65536, 1048576)
FEW_LENGTHS = (64, 512, 4096)
ON_CPU = 65536  # the longest length on a CPU
# Beyond it, only the operands that show most: a model's own, and those without decay.
MOST_SOURCES = 65536
# the longest lengths of a recurrence whose oracle takes one step, or one lag, after another
MIXED, FEW_MIXED = 4096, 512
# Predicted calls that a case on an H200 takes, by records: those of loops take two to three times longer.
CALLS, REPEATED_CALLS = 2, 8
LONGEST_CALL_S = {"cpu": 0.3, "cuda": 0.5}  # as predicted


@suite("stability", section=SECTION, sources=(DECAY,), case_s={"cpu": 0.06, "cuda": 0.085}, case_calls=3)
class Stability:
    """One case per model, backend, source of operands, length and dtype: forward, from a zero state.

    The sources are the model's own operands at its start (`model`), and the same with another decay
    (`decay/CHANGE`): log gates multiplied by a factor, where 0 is no decay at all, and exact resets at some
    steps. A model without log gates has its own operands alone. If no model is named, one model stands for
    all with the same recurrence and kind of gate. Other people's kernels are tried where they are named or
    asked for. Widths are those of the preset `smoke`, since errors depend on length and decay. Calls that are
    predicted to take long are planned skips, unless backends or sizes are named.

    Recurrences that are named, or all recurrences if regimes but no models are named, run bare under the
    regimes: those named or all, with the recurrence's usual gates.

    See `stability_numbers.measure_stability` for the numbers. An error is wrong if it is above the tolerance
    and above the declared bound.
    """

    name: str
    section: Section
    case_s: Mapping[str, float]

    def cases(self, selection: Selection) -> Iterable[Case]:
        # widths do not matter to stability, and long sequences of wide operands would not fit
        narrow = replace(selection, preset="smoke")
        for subject in (*model_subjects(narrow), *regime_subjects(narrow)):
            found = product(
                selection,
                self.name,
                passes=("forward",),
                dtypes=("float32", "bfloat16"),
                cache="hot",
                shapes=partial(growing, subject, selection),
                about=(subject,),
                peers=selection.peers,
            )
            yield from (case for case in found if is_wanted(case, selection))

    def left_out(self, case: Case, selection: Selection) -> str | None:
        """Say why a case takes too long for a default run; None if it is run."""
        longest_s = LONGEST_CALL_S[case.device]
        predicted_s = predicted_cpu_s(case) if case.device == "cpu" else predicted_call_s(case)
        if selection.is_specific or predicted_s <= longest_s:
            return None
        return (
            f"predicted {predicted_s:.2g} s per call is more than the suite's {longest_s:g} s "
            "(name it with --backends to try)"
        )

    def forecast_s(self, case: Case, training: Training) -> float | None:
        """Forecast the seconds of a case on a GPU, where few lengths have further calls; None on a CPU."""
        if case.device == "cpu":
            return None
        calls = REPEATED_CALLS if case.shape["T"] in REPEATED else CALLS
        return self.case_s["cuda"] + calls * predicted_call_s(case)

    def measure(self, case: Case, context: Context) -> Record:
        return measure_stability(case, context)


def is_wanted(case: Case, selection: Selection) -> bool:
    """Tell whether a selection means a case.

    Where a preset takes few shapes and no model is named, bfloat16 is tried on models' own operands alone.
    """
    few = selection.scale.thinned and selection.models is None and selection.dtypes is None
    return not (few and case.dtype == "bfloat16" and case.model and case.operand_source != MODEL)


def model_subjects(selection: Selection) -> Iterator[PlannedSubject]:
    """List the models named, or one per recurrence and kind of gate, with their own and changed operands."""
    if selection.models is None and selection.regimes and not any(map(is_own, selection.regimes)):
        return
    for name in model_names(selection):
        entry = registry.model(name)
        shapes = registry.shapes(entry, selection.preset_name)
        for source in selection.regimes or own_sources(name, few=selection.scale.thinned):
            regime, _, kind = source.partition("/")
            if is_own(source):
                if decay_of(source) is not None:
                    check_change(kind)
                yield PlannedSubject(entry.recurrence, source, shapes, name)
            elif regime in REGIMES and kind in ("", entry.gate):
                yield PlannedSubject(entry.recurrence, source, shapes, name)


def model_names(selection: Selection) -> list[str]:
    """List the models named, or else one of each recurrence and kind of gate: PREFERRED, or the first."""
    if selection.models is not None:
        return [name for name in selection.models if name not in registry.recurrences()]
    firsts: dict[tuple[str, str], str] = {}
    for name in (*PREFERRED, *registry.models()):
        entry = registry.model(name)
        if ":" not in name:
            firsts.setdefault((entry.recurrence, entry.gate), name)
    return list(firsts.values())


def own_sources(name: str, *, few: bool) -> list[str]:
    """List a model's sources: its own operands, and those with a changed decay that its gates can have."""
    entry = registry.model(name)
    recurrence = registry.recurrence(entry.recurrence)
    if not recurrence.log_gates(entry.gate):
        return [MODEL]
    changes = [
        change
        for change in (FEW_CHANGES if few else CHANGES)
        if change != RESET or recurrence.resets(entry.gate)
    ]
    return [MODEL, *(f"{DECAY}/{change}" for change in changes)]


def regime_subjects(selection: Selection) -> Iterator[PlannedSubject]:
    """List the recurrences named, or all if regimes but no models are named, under gate regimes."""
    every = tuple(registry.recurrences()) if selection.regimes else ()
    for name in every if selection.models is None else selection.models:
        if name not in registry.recurrences():
            continue
        for regime in selection.regimes or REGIMES:
            sources = [regime] if selection.regimes else usual_sources(name, regime)
            yield from bare_subjects(selection, (name,), sources)


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


def growing(subject: PlannedSubject, selection: Selection, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take one sequence of each length, in geometric steps, as far as the subject and the device allow."""
    longest = max(LENGTHS)
    if selection.device.type == "cpu":
        longest = min(longest, ON_CPU)
    recurrence = registry.recurrence(subject.recurrence)
    if recurrence.stepwise or not recurrence.has_state:
        longest = min(longest, FEW_MIXED if selection.scale.thinned else MIXED)
    if subject.source not in (MODEL, f"{DECAY}/0"):
        longest = min(longest, MOST_SOURCES)
    lengths = FEW_LENGTHS if selection.scale.thinned else LENGTHS
    return tuple(shapes[0].with_(B=1, T=length) for length in lengths if length <= longest)
