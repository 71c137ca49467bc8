"""What holds beyond the usual length? Error and time of longer sequences, and what models learn."""

from __future__ import annotations

from collections.abc import Iterable

from ssmperf import (
    Case,
    Chart,
    Context,
    Judging,
    Record,
    Section,
    Selection,
    Shape,
    Status,
    Training,
    decay_span,
    pass_of,
    product,
    subjects,
    suite,
)

from .learning.cases import TASK, forecast_s, is_learned, learned_cases
from .learning.learn import learn
from .throughput import timed_record

SECTION = Section(
    title="Extrapolation",
    question="How do error and time grow from T to 64 T, and how accurate is a model beyond its training T?",
    columns=(
        "error_output",
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
)

FIRST_DIVISOR = 8  # the first length is the preset's shortest, divided by this
GROWTH = (1, 8, 64)  # lengths, as multiples of the first


@suite("extrapolation", section=SECTION, sources=(TASK,), case_s={"cpu": 0.1, "cuda": 0.4})
class Extrapolation:
    """Numerical and learned cases.

    There is one numerical case per model, backend and length from T to 64 T: error against float64, and time.

    There is one learned case per task and model, on the backend that is predicted to be the quickest, or on
    each backend named. Its source of operands is `task/NAME`; see `learning/learn.py` for its numbers.
    """

    name: str
    section: Section

    def cases(self, selection: Selection) -> Iterable[Case]:
        on_cpu = selection.device.type == "cpu"
        yield from product(
            selection,
            self.name,
            passes=("forward",),
            dtypes=("float32",) if on_cpu else ("float32", "bfloat16"),
            cache="hot",
            shapes=growing,
            about=subjects(selection, families=False),
        )
        yield from learned_cases(selection, self.name)

    def forecast_s(self, case: Case, training: Training) -> float | None:
        """Forecast the seconds of a learned case; others take what cases usually take."""
        return forecast_s(case, training) if is_learned(case) else None

    def measure(self, case: Case, context: Context) -> Record:
        if is_learned(case):
            return learn(case, context)
        return measure_growth(case, context)


def growing(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Take one sequence of an eighth of the shortest length, one of 8 times and one of 64 times that."""
    shortest = min(shapes, key=lambda shape: shape["T"])
    first = max(1, shortest["T"] // FIRST_DIVISOR)
    return tuple(shortest.with_(B=1, T=first * factor) for factor in GROWTH)


def measure_growth(case: Case, context: Context) -> Record:
    """Measure the error against float64, and the time of a call that is right."""
    judging = Judging(case, context)
    values = judging.values(0)
    backend = context.backend(case)
    span = decay_span(context.recurrence(case), values.operands)
    bound = judging.bound(values.operands)
    verdict = judging.once()
    numbers = {"decay_span": span, "error_bound": bound}
    if verdict.status is not Status.OK:
        return context.record(case, verdict, **numbers)
    measured = pass_of(case, backend, backend.function, values)
    timing = context.time(case, measured.call, touched=measured.touched, peak_bytes=None)
    return timed_record(case, context, verdict, values, timing, numbers, reads=measured.specs)
