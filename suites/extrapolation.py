"""What holds beyond the length that was meant? Error and time of longer sequences, and learned memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ssmperf import (
    BYTES_PER_SECOND,
    SECONDS_PER_LAUNCH,
    Backend,
    Case,
    Chart,
    Context,
    Judging,
    Record,
    Section,
    Selection,
    Shape,
    Status,
    Subject,
    UnknownName,
    Unsupported,
    Verdict,
    decay_span,
    dtype_of,
    judge_call,
    pass_of,
    product,
    refusal,
    registry,
    subjects,
    suite,
)

from .tasks import Task, tasks
from .throughput import judged_by_floor
from .training import Diverged, Learned, majority, right, train, unseen

SECTION = Section(
    title="Extrapolation",
    question="How do error and time grow from T to 64 T, and what is a model worth beyond its training T?",
    columns=(
        "error_output",
        "latency_s",
        "tokens_per_s",
        "accuracy",
        "accuracy_2T",
        "accuracy_4T",
        "majority_accuracy",
        "final_loss",
        "updates",
    ),
    charts=(
        Chart(x="T", y="error_output", title="Error against length"),
        Chart(x="T", y="latency_s", title="Time against length"),
        Chart(x="test_lengths", y="accuracies", log=False, title="Accuracy against length"),
        Chart(x="updates_done", y="losses", log=False, title="Loss while training"),
    ),
)

GROWTH = (1, 8, 64)  # lengths, in those of the first
FIRST = 8  # the first length is the preset's shortest over this
TASK = "task"  # begins the operand source of a learned case: task/memory_horizon
TRAIN_BATCH = 16
UPDATES_PER_STEP = 4  # of the training length
TEST_GROWTH = (1, 2, 4)
SPANS = (0, 1, 4, 19)  # upper ends of the classes by which accuracy is told apart
CPU_BYTES_PER_SECOND = 1e9  # of the workspace, which several operators pass over


@suite("extrapolation", section=SECTION, sources=("task",))
class Extrapolation:
    """Two kinds of cases.

    Numerical: one per model, backend and length from T to 64 T: error against float64, and time.
    Learned: one per task and model, whose source of operands is `task/NAME`: two layers around the model are
    trained at T and tested on unseen rows at T, 2 T and 4 T. `accuracies` by `test_lengths`, beside the
    accuracies of always giving the most frequent answer; `losses`, the mean loss of eight parts of the
    training that end after `updates_done`. Without backends named, the one predicted to be the quickest.
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
        wanted = selection.choosing(
            passes=("forward_backward",), dtypes=("float32",), layouts=("channels_last",)
        )
        if "forward_backward" not in (selection.passes or wanted.passes or ()):
            return
        if "channels_last" not in (selection.layouts or wanted.layouts or ()):
            return  # a network lays out the operands itself
        learned = product(
            wanted, self.name, passes=(), dtypes=(), cache="hot", about=list(learners(selection))
        )
        yield from learned if selection.backends else quickest(learned, wanted)

    def measure(self, case: Case, context: Context) -> Record:
        if case.operand_source.startswith(f"{TASK}/"):
            return learn(case, context, tasks()[case.operand_source.partition("/")[2]])
        return extend(case, context)


def growing(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """One sequence of an eighth of the shortest length, and of 8 and 64 times that."""
    shortest = min(shapes, key=lambda shape: shape["T"])
    first = max(1, shortest["T"] // FIRST)
    return tuple(shortest.with_(B=1, T=first * factor) for factor in GROWTH)


def learners(selection: Selection) -> Iterator[Subject]:
    """Tasks and the models that learn them: those named, or one of each recurrence in the smoke preset.

    Raises:
        UnknownName: no such task.
    """
    sources = [source.partition("/") for source in selection.regimes or ()]
    named = [name for kind, _, name in sources if kind == TASK]
    for name in named:
        if name not in tasks():
            raise UnknownName("task", name, tasks())
    for task in list(tasks()) if selection.regimes is None else named:
        for name in _models(selection):
            recurrence = registry.recurrence_of(name)
            widths = registry.shapes(registry.model(name), "smoke")[0]
            shape = Shape({**widths, "B": TRAIN_BATCH, "T": selection.size.train_length})
            yield Subject(recurrence, f"{TASK}/{task}", (shape,), name)


def _models(selection: Selection) -> list[str]:
    if selection.models is not None:
        return [name for name in selection.models if name not in registry.recurrences()]
    most = selection.size.trained_models
    if most is None:
        return list(registry.models())
    firsts: dict[str, str] = {}
    for name in registry.models():
        firsts.setdefault(registry.recurrence_of(name), name)
    return list(firsts.values())[:most]


def quickest(cases: Iterable[Case], selection: Selection) -> Iterator[Case]:
    """Of cases that differ in the backend alone, the one predicted to take the least time.

    Exact backends only, that compute the very function and are not refused; none of them is no case.
    """
    best: dict[Case, tuple[float, str]] = {}
    for case in cases:
        if refusal(case, selection) is not None:
            continue
        backend = registry.backend(case.owner, case.backend)
        if backend.equivalent and backend.error_bound is None:
            key = replace(case, backend="")
            found = (predicted_s(backend, case), case.backend)
            best[key] = min(found, best.get(key, found))
    return (replace(case, backend=name) for case, (_, name) in best.items())


def predicted_s(backend: Backend, case: Case) -> float:
    """Seconds of a forward call by what a backend declares; infinite where it declares nothing."""
    if backend.launches is None or backend.workspace is None:
        return math.inf
    gate = registry.model(case.model).gate if case.model else ""
    nbytes = backend.workspace(case.shape, 8 if gate.endswith("_complex") else 4, gate)
    rate = CPU_BYTES_PER_SECOND if case.device == "cpu" else BYTES_PER_SECOND
    return backend.launches(case.shape) * SECONDS_PER_LAUNCH + nbytes / rate


def extend(case: Case, context: Context) -> Record:
    """Error against float64, and the time of a call that is right."""
    gradients = case.gradients
    judging = Judging(case, context)
    reference, values = judging.reference(0, gradients=gradients), judging.values(0)
    backend = context.backend(case)
    span = decay_span(context.recurrence(case), values.operands)
    bound = judging.bound(values.operands)
    verdict = judge_call(
        backend.function, values, reference, dtype=dtype_of(case.dtype), gradients=gradients, bound=bound
    )
    numbers = {"decay_span": span, "error_bound": bound}
    if verdict.status is not Status.OK:
        return context.record(case, verdict, **numbers)
    measured = pass_of(case, backend, backend.function, values)
    timing = context.time(case, measured.call, touched=measured.touched, peak_bytes=None)
    return judged_by_floor(case, context, verdict, values, timing, numbers, reads=measured.specs)


def learn(case: Case, context: Context, task: Task) -> Record:
    """Train a small network at the case's length and test it there and beyond."""
    assert case.model is not None
    T, seed = case.shape["T"], case.seed
    updates = UPDATES_PER_STEP * T
    begin = time.monotonic()
    try:
        learned = train(
            case.model, case.shape, case.backend, task, updates=updates, seed=seed, device=context.device
        )
    except Diverged as error:
        return context.record(case, Verdict(Status.NAN, str(error)), updates=updates)
    trained_s = time.monotonic() - begin
    parts = len(learned.losses)
    return context.record(
        case,
        Verdict(Status.OK),
        task=task.name,
        updates=updates,
        parameters=sum(parameter.numel() for parameter in learned.network.parameters()),
        losses=list(learned.losses),
        updates_done=[updates * part // parts for part in range(1, parts + 1)],
        final_loss=learned.losses[-1],
        train_s=trained_s,
        **_tested(case, context, task, learned),
    )


def _tested(case: Case, context: Context, task: Task, learned: Learned) -> dict[str, Any]:
    """Accuracies at the training length and beyond; None where the backend refuses a length."""
    lengths = [case.shape["T"] * factor for factor in TEST_GROWTH]
    accuracies: list[float | None] = []
    majorities, reasons = [], []
    by_span: dict[str, float] = {}
    for T in lengths:
        examples = unseen(task, T, case.seed)
        majorities.append(majority(task, examples))
        try:
            answers = right(learned.network, examples, rows=TRAIN_BATCH, device=context.device)
        except Unsupported as error:
            accuracies.append(None)
            reasons.append(f"T{T}: {error}")
            continue
        accuracies.append(float(answers.float().mean()))
        by_span = accuracy_by_span(answers, examples.spans[examples.targets >= 0])
    return {
        "test_lengths": lengths,
        "accuracies": accuracies,
        "majority_accuracies": majorities,
        "accuracy": accuracies[0],
        "accuracy_2T": accuracies[1],
        "accuracy_4T": accuracies[2],
        "majority_accuracy": majorities[0],
        "accuracies_by_span": by_span,
        "accuracies_reason": "; ".join(reasons) or None,
    }


def accuracy_by_span(answers: Any, spans: Any) -> dict[str, float]:
    """Accuracy by how far back a target reaches, such as {"2-4": 0.3}; where there are such steps."""
    found = {}
    low = 0
    for high in (*SPANS, math.inf):
        inside = (spans >= low) & (spans <= high)
        name = f"{low}" if high == low else f"{low}-{high}" if high < math.inf else f"{low}-"
        if bool(inside.any()):
            found[name] = float(answers[inside].float().mean())
        low = int(high) + 1 if high < math.inf else low
    return found
