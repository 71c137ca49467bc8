"""What holds beyond the usual length? Error and time of longer sequences, and what models learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ssmperf import Case, Record, Selection, Status
from ssmperf.suitekit import (
    Chart,
    Context,
    Judging,
    PlannedSubject,
    Section,
    Training,
    decay_span,
    pass_of,
    product,
    registry,
    subjects,
    suite,
)

from .growth.lengths import baselines_at_one_length, runs_in, without_slow_lengths
from .growth.segments import judge_segments
from .learning.cases import TASK, forecast_s, is_learned, learned_cases
from .learning.learn import learn
from .stability import model_names
from .stability_numbers import predicted_cpu_s
from .throughput import timed_record

SECTION = Section(
    title="Extrapolation",
    question="How do error and time grow from T to 64 T, and how accurate is a model beyond its training T?",
    columns=(
        "error_output",
        "error_in_segments",
        "segments_difference",
        "latency_s",
        "tokens_per_s",
        "accuracy",
        "accuracy_2T",
        "accuracy_4T",
        "accuracy_8T",
        "accuracy_16T",
        "chance",
        "majority_accuracy",
        "seeds",
        "updates",
        "final_loss",
    ),
    charts=(
        Chart(x="T", y="error_output", title="Error against length"),
        Chart(x="T", y="latency_s", title="Time against length"),
        Chart(
            x="test_lengths",
            y="accuracies",
            series="model",
            facet="operand_source",
            log=False,
            log_x=True,
            title="Accuracy against length",
            references=("chances", "majority_accuracies"),
        ),
        Chart(
            x="updates_done",
            y="losses",
            series="model",
            facet="operand_source",
            log=False,
            title="Loss while training",
        ),
    ),
    conclusion="verdict",
    lengths=True,
)

GROWTH = (1, 8, 64)  # lengths on a CPU, as multiples of the preset's shortest
GROWTH_ON_GPU = (1, 64)
STEPWISE_GROWTH_ON_GPU = (1, 8)
MILLION = 2**20  # steps: a length on a GPU beside these
CPU_LONGEST_S = 0.1  # of a call on a CPU, as predicted


@suite("extrapolation", section=SECTION, sources=(TASK,), case_s={"cpu": 0.1, "cuda": 0.35})
class Extrapolation:
    """Numerical and learned cases.

    There is one numerical case per model, backend and length: one sequence of T, 8 T and 64 T steps, on a GPU
    of T, 64 T and a million, where T is the preset's shortest length. Its record has the error against
    float64, in one call and in segments that pass the state on, and the time of the call. Widths are those of
    the preset `smoke`, since errors depend on length and decay, and long sequences of wide operands would not
    fit. If no model is named, one model stands for all with the same recurrence and kind of gate. If no
    backend is named, loops over time, baselines in plain torch and long calls are left to the shortest
    length, and other people's kernels are left out unless they are asked for.

    There is one learned case per task and model, on the backend that is predicted to be the quickest, or on
    each backend named. Its source of operands is `task/NAME`; see `learning/learn.py` for its numbers.
    """

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        yield from numerical_cases(selection, self.name)
        yield from learned_cases(selection, self.name)

    def forecast_s(self, case: Case, training: Training) -> float | None:
        """Forecast the seconds of a learned case; others take what cases usually take."""
        return forecast_s(case, training) if is_learned(case) else None

    def measure(self, case: Case, context: Context) -> Record:
        if is_learned(case):
            return learn(case, context)
        return measure_growth(case, context)


def numerical_cases(selection: Selection, suite: str) -> Iterable[Case]:
    """List the numerical cases of a selection; see `Extrapolation`."""
    on_cpu = selection.device.type == "cpu"
    cases = product(
        selection,
        suite,
        passes=("forward",),
        dtypes=("float32",),  # in which an error that grows is not hidden by the rounding of the output
        cache="hot",
        about=growing(selection),
        peers=selection.peers,
    )
    if selection.backends or selection.sizes:
        return cases
    quick = (case for case in cases if not on_cpu or predicted_cpu_s(case) <= CPU_LONGEST_S)
    runs = runs_in(selection)
    return baselines_at_one_length(without_slow_lengths(quick, runs), runs)


def growing(selection: Selection) -> Iterator[PlannedSubject]:
    """List the subjects of numerical cases, with their shapes: one sequence of each length."""
    of_models = selection.models is None and not selection.regimes
    chosen = replace(selection, models=tuple(model_names(selection))) if of_models else selection
    narrow = subjects(replace(chosen, preset="smoke"), families=False)
    for subject in narrow:
        if not subject.shapes:
            continue
        lengths = lengths_of(subject, selection)
        shapes = tuple(subject.shapes[0].with_(B=1, T=T) for T in lengths)
        yield replace(subject, shapes=shapes)


def lengths_of(subject: PlannedSubject, selection: Selection) -> list[int]:
    """List the lengths from the preset's shortest T to 64 T, and a million steps on a GPU.

    A recurrence whose reference takes one step, or one lag, after another ends at 8 T on a GPU. Lengths that
    it can have no reference for are left out.
    """
    recurrence = registry.recurrence(subject.recurrence)
    shapes = recurrence.presets.get(selection.preset_name, ())
    if subject.model is not None:
        shapes = registry.shapes(registry.model(subject.model), selection.preset_name)
    shortest = min(shape["T"] for shape in shapes or subject.shapes)
    if selection.device.type == "cpu":
        lengths = {shortest * factor for factor in GROWTH}
    elif recurrence.stepwise or not recurrence.has_state:
        lengths = {shortest * factor for factor in STEPWISE_GROWTH_ON_GPU}
    else:
        lengths = {MILLION, *(shortest * factor for factor in GROWTH_ON_GPU)}
    longest = recurrence.longest
    return sorted(T for T in lengths if longest is None or longest >= T or shortest == T)


def measure_growth(case: Case, context: Context) -> Record:
    """Measure the error against float64, in one call and in segments; time a call that is right."""
    judging = Judging(case, context)
    values = judging.values(0)
    backend = context.backend(case)
    span = decay_span(context.recurrence(case), values.operands)
    bound = judging.bound(values.operands)
    verdict = judging.once()
    numbers: dict[str, object] = {"decay_span": span, "error_bound": bound}
    if verdict.status is Status.OK:
        verdict, passed_on = judge_segments(judging, verdict)
        numbers |= passed_on
    if verdict.status is not Status.OK:
        return context.record(case, verdict, **numbers)
    measured = pass_of(case, backend, backend.function, values)
    timing = context.time(case, measured.call, touched=measured.touched, peak_bytes=None)
    return timed_record(case, context, verdict, values, timing, numbers, reads=measured.specs)
