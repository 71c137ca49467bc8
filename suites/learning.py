"""The learned cases of the extrapolation suite: a small network per task and model, trained and tested."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from ssmperf import (
    BYTES_PER_SECOND,
    SECONDS_PER_LAUNCH,
    Backend,
    Case,
    Context,
    PlannedSubject,
    Record,
    Selection,
    Shape,
    Status,
    UnknownName,
    Unsupported,
    Verdict,
    product,
    refusal,
    registry,
)

from .tasks import IGNORED, Task, tasks
from .training import Diverged, Learned, majority, right, train, unseen

TASK = "task"  # begins the operand source of a learned case: task/memory_horizon
TRAIN_BATCH = 16
UPDATES_PER_STEP = 4  # updates of the training, per step of its length
TEST_GROWTH = (1, 2, 4)
REACHES = (0, 1, 4, 19)  # upper ends of the classes in which accuracy is given
CPU_BYTES_PER_SECOND = 1e9  # of the workspace, which several operators read and write


def is_learned(case: Case) -> bool:
    """Whether a case trains a network, instead of measuring a backend."""
    return case.operand_source.startswith(f"{TASK}/")


def learned_cases(selection: Selection, suite: str) -> Iterable[Case]:
    """List the learned cases: on the backends named, or on the one predicted to be the quickest.

    A network is trained forward and backward in float32, and lays out the operands itself: a selection of
    other passes or layouts has no learned cases.
    """
    if selection.passes is not None and "forward_backward" not in selection.passes:
        return []
    if selection.layouts is not None and "channels_last" not in selection.layouts:
        return []
    training = selection.choosing(
        passes=("forward_backward",), dtypes=("float32",), layouts=("channels_last",)
    )
    about = list(learners(selection))
    cases = product(training, suite, passes=(), dtypes=(), cache="hot", about=about)
    return cases if selection.backends else quickest(cases, training)


def learners(selection: Selection) -> Iterator[PlannedSubject]:
    """List the tasks named, or all, with the models named, or those that the preset trains.

    Raises:
        UnknownName: there is no such task.
    """
    sources = [source.partition("/") for source in selection.regimes or ()]
    named = [name for kind, _, name in sources if kind == TASK]
    for name in named:
        if name not in tasks():
            raise UnknownName("task", name, tasks())
    for task in list(tasks()) if selection.regimes is None else named:
        for name in trained_models(selection):
            recurrence = registry.recurrence_of(name)
            widths = registry.shapes(registry.model(name), "smoke")[0]
            shape = Shape({**widths, "B": TRAIN_BATCH, "T": selection.scale.train_length})
            yield PlannedSubject(recurrence, f"{TASK}/{task}", (shape,), name)


def trained_models(selection: Selection) -> list[str]:
    """List the models named, or all; a preset that limits their number takes one per recurrence."""
    if selection.models is not None:
        return [name for name in selection.models if name not in registry.recurrences()]
    most = selection.scale.trained_models
    if most is None:
        return list(registry.models())
    firsts: dict[str, str] = {}
    for name in registry.models():
        firsts.setdefault(registry.recurrence_of(name), name)
    return list(firsts.values())[:most]


def quickest(cases: Iterable[Case], selection: Selection) -> Iterator[Case]:
    """Choose, among cases that differ only in the backend, the one predicted to take the least time.

    Only exact backends of the recurrence itself that are not refused are considered. If there is none, there
    is no case.
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
    """Predict the seconds of a forward call from a backend's declarations; infinite without them."""
    if backend.launches is None or backend.workspace is None:
        return math.inf
    gate = registry.model(case.model).gate if case.model else ""
    nbytes = backend.workspace(case.shape, 8 if gate.endswith("_complex") else 4, gate)
    rate = CPU_BYTES_PER_SECOND if case.device == "cpu" else BYTES_PER_SECOND
    return backend.launches(case.shape) * SECONDS_PER_LAUNCH + nbytes / rate


def learn(case: Case, context: Context) -> Record:
    """Train two layers around a model at the case's length T, and test them on unseen rows at T, 2 T and 4 T.

    losses: the mean loss of eight parts of the training, which end after `updates_done` updates.
    accuracies: by `test_lengths`; None for a length that the backend refuses.
    majority_accuracies: the accuracies of always giving the most frequent answer.
    """
    assert case.model is not None
    task = tasks()[case.operand_source.partition("/")[2]]
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
    """Measure accuracies at the training length and beyond."""
    lengths = [case.shape["T"] * factor for factor in TEST_GROWTH]
    accuracies: list[float | None] = []
    majorities, reasons = [], []
    by_reach: dict[str, float] = {}
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
        by_reach = accuracy_by_reach(answers, examples.reaches[examples.targets != IGNORED])
    return {
        "test_lengths": lengths,
        "accuracies": accuracies,
        "majority_accuracies": majorities,
        "accuracy": accuracies[0],
        "accuracy_2T": accuracies[1],
        "accuracy_4T": accuracies[2],
        "majority_accuracy": majorities[0],
        "accuracies_by_reach": by_reach,
        "accuracies_reason": "; ".join(reasons) or None,
    }


def accuracy_by_reach(answers: Tensor, reaches: Tensor) -> dict[str, float]:
    """Give the accuracy by how far back a target reaches, such as {"2-4": 0.3}, for reaches that occur."""
    found = {}
    low = 0
    for high in (*REACHES, math.inf):
        inside = (reaches >= low) & (reaches <= high)
        name = f"{low}" if high == low else f"{low}-{high}" if high < math.inf else f"{low}-"
        if bool(inside.any()):
            found[name] = float(answers[inside].float().mean())
        low = int(high) + 1 if high < math.inf else low
    return found
