"""The learned cases of a selection: tasks, models, sizes and backends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ssmperf import Case, Selection, Shape, UsageError
from ssmperf.suitekit import (
    TRAININGS_ON_GPU,
    PlannedSubject,
    Training,
    predicted_call_s,
    product,
    quickest,
    registry,
    sized,
)

TASK = "task"  # begins the operand source of a learned case: task/memory_horizon
# The first of these are trained where a preset limits the number. At smoke a vocabulary of thousands could
# not be learned.
TASKS = ("memory_horizon", "mqar")
SMOKE_TASKS = ("memory_horizon", "mqar:vocabulary=32")
# Time of an update beside its backend's calls. That of a GPU is for twelve networks on an H200, by graphs.
UPDATE_S = {"cpu": 0.03, "cuda": 0.001}
CELL_S = {"cpu": 0.0, "cuda": 0.8e-9}  # for each number of a residual stream, by layer
TOGETHER = 0.75  # time of trainings side by side on a GPU, over the sum of their times alone
START_S = 8.0  # until a process has begun, or kernels are compiled
MODELS = ("hgrn", "hgrn2", "mamba", "deltanet", "attention", "gla", "retnet", "longhorn", "gateloop")


def is_learned(case: Case) -> bool:
    """Whether a case trains a network, instead of measuring a backend."""
    return case.operand_source.startswith(f"{TASK}/")


def task_name(case: Case) -> str:
    """The name of a learned case's task, with its options."""
    return case.operand_source.partition("/")[2]


def learned_cases(selection: Selection, suite: str) -> Iterable[Case]:
    """List the learned cases: on the backends named, or on the one predicted to be the quickest.

    A network is trained forward and backward in float32, and lays out the operands itself: a selection of
    other passes or layouts has no learned cases. Sizes of T and B are those of trainings only if tasks are
    named: otherwise they are meant for the numerical cases, and may be far too long for a training.
    """
    if selection.passes is not None and "forward_backward" not in selection.passes:
        return []
    if selection.layouts is not None and "channels_last" not in selection.layouts:
        return []
    training = selection.choosing(
        passes=("forward_backward",), dtypes=("float32",), layouts=("channels_last",)
    )
    if selection.regimes is None:
        training = replace(training, sizes=tuple(axis for axis in training.sizes if axis.name not in "BT"))
    about = list(learners(selection))
    cases = product(training, suite, passes=(), dtypes=(), cache="hot", about=about)
    return cases if selection.backends else quickest(cases, training)


def learners(selection: Selection) -> Iterator[PlannedSubject]:
    """List the tasks named with the models named, or those that the preset trains.

    Raises:
        UnknownName: there is no such task.
        UsageError: a task is known to this process only.
    """
    training = selection.scale.training
    for name in trained_tasks(selection):
        task = registry.task(name)
        confined = registry.hidden_from_workers(TASK, name.partition(":")[0])
        if confined:
            raise UsageError(confined)
        for model in trained_models(selection):
            sizes = sized(model, training.width)
            shape = Shape({**sizes, "B": training.batch, "T": training.length})
            yield PlannedSubject(registry.recurrence_of(model), f"{TASK}/{task.name}", (shape,), model)


def trained_tasks(selection: Selection) -> list[str]:
    """List the tasks named; else as many as the preset trains, or all."""
    if selection.regimes is not None:
        sources = [source.partition("/") for source in selection.regimes]
        return [name for kind, _, name in sources if kind == TASK]
    most = selection.scale.training.tasks
    usual = SMOKE_TASKS if selection.preset_name == "smoke" else TASKS
    return list(registry.tasks()) if most is None else list(usual[:most])


def trained_models(selection: Selection) -> list[str]:
    """List the models named; else as many of MODELS as the preset trains, or all of these."""
    if selection.models is not None:
        return [name for name in selection.models if name not in registry.recurrences()]
    return list(MODELS[: selection.scale.training.models])


def forecast_s(case: Case, training: Training) -> float:
    """Forecast the seconds of a learned case: its updates, tests included, and its processes.

    Trainings side by side have processes and cores of their own on a CPU. On a GPU they share what each of
    them leaves idle.
    """
    on_cpu = case.device == "cpu"
    at_once = training.side_by_side or (1 if on_cpu else TRAININGS_ON_GPU)
    cells = case.shape["B"] * case.shape["T"] * training.width * training.layers
    calls_s = training.layers * predicted_call_s(case)
    update_s = UPDATE_S[case.device] + CELL_S[case.device] * cells + calls_s
    total = 0.0
    seeds = training.seeds
    for count in (seeds,) if len(training.rates) == 1 else (len(training.rates), seeds - 1):
        beside = min(count, at_once)
        share = TOGETHER * beside if beside > 1 and not on_cpu else 1
        turns = math.ceil(count / at_once)
        total += turns * (training.updates * share * update_s + (START_S if beside > 1 else 0.0))
    return total
