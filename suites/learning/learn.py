"""Carry out a learned case: train networks, test them at longer and longer lengths, and judge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from ssmperf import Case, Record, Status, UnknownName, Unsupported
from ssmperf.authoring import Task
from ssmperf.suitekit import (
    GROWTH,
    Context,
    Diverged,
    Job,
    Tested,
    Trials,
    Verdict,
    registry,
    run_tests,
    search,
)

from . import verdict
from .cases import task_name


def learn(case: Case, context: Context) -> Record:
    """Train blocks of a model at the case's length T, and test them on unseen rows at T, 2 T, … 16 T.

    losses: the mean losses of eight parts of the first seed's training; `updates_done` says where they end.
    accuracies: by `test_lengths`, averaged over seeds; None for a length that the backend refuses.
    accuracies_by_reach: by test length, and by how many tokens back the answer depends on.
    chances, majority_accuracies: those of guessing, and of always giving the most frequent answer.
    without_graph: why a GPU made updates one by one instead of replaying a CUDA graph, if it did.
    verdict: the outcome and how far it holds, as a sentence; `learned` and `holds_to` are its parts.
    """
    assert case.model is not None
    training, task = context.training, registry.task(task_name(case))
    T = case.shape["T"]
    if task.least > T:
        raise Unsupported(f"{task.name} needs T of at least {task.least}")
    backend = training.test_backend or case.backend
    _check_backend(case.model, backend)
    job = Job(
        model=case.model,
        sizes=dict(case.shape),
        backend=case.backend,
        task=task.name,
        rate=training.rates[0],
        seed=case.seed,
        updates=training.updates,
        layers=training.layers,
        device=context.device,
        corpus=training.corpus,
    )
    try:
        trials = search(job, training, context.kept(case), context.on_progress)
    except Diverged as error:
        return context.record(case, _verdict(Status.NAN, str(error)), updates=training.updates)
    tested = run_tests(task, trials.learned, backend, context.device, on_progress=context.on_progress)
    return context.record(case, _verdict(Status.OK), **described(task, trials, backend), **numbers(tested))


def _verdict(status: Status, reason: str | None = None) -> Verdict:
    return Verdict(status, reason)


def _check_backend(model: str, backend: str) -> None:
    try:
        registry.backend(model, backend)
    except UnknownName:
        raise Unsupported(f"{model} has no backend {backend} to test with") from None


def described(task: Task, trials: Trials, backend: str) -> dict[str, Any]:
    """Describe how networks were trained, and the cost of the trainings."""
    first = trials.learned[0]
    parts = len(first.losses)
    return {
        "task": task.name,
        "updates": first.job.updates,
        "updates_needed": [each.updates for each in trials.learned],
        "stopped_early": sum(each.ended_early for each in trials.learned),
        "layers": first.job.layers,
        "seeds": len(trials.learned),
        "rate": trials.rate,
        "validation_by_rate": {f"{rate:g}": accuracy for rate, accuracy in trials.rates.items()},
        "test_backend": backend,
        "parameters": sum(parameter.numel() for parameter in first.network.parameters()),
        "losses": list(first.losses),
        "updates_done": [first.updates * part // parts for part in range(1, parts + 1)],
        "final_loss": first.losses[-1],
        "train_s": math.fsum(each.train_s for each in trials.learned),
        "without_graph": next((each.without_graph for each in trials.learned if each.without_graph), None),
    }


def numbers(tested: Tested) -> dict[str, Any]:
    """Give the fields of a record about tests, with intervals over seeds."""
    spreads = [None if found is None else verdict.spread(found) for found in tested.accuracies]
    majorities = [statistics.fmean(found) for found in tested.majorities]
    levels = [
        verdict.Level(T // tested.trained, found, tested.chance, most)
        for T, found, most in zip(tested.lengths, spreads, majorities, strict=True)
        if found is not None
    ]
    judged = verdict.judge(levels, tested.reason) if levels else None
    named = {f"accuracy_{growth}T": spread for growth, spread in zip(GROWTH, spreads, strict=False)}
    means = {name: None if found is None else found.mean for name, found in named.items()}
    return {
        "verdict": None if judged is None else judged.text,
        "learned": None if judged is None else judged.learned,
        "holds_to": None if judged is None else judged.holds_to,
        "accuracy": means.pop("accuracy_1T"),
        **means,
        "chance": tested.chance,
        "majority_accuracy": majorities[0],
        "test_lengths": tested.lengths,
        "accuracies": [None if found is None else found.mean for found in spreads],
        "accuracies_low": [None if found is None else found.low for found in spreads],
        "accuracies_high": [None if found is None else found.high for found in spreads],
        "accuracies_by_seed": tested.accuracies,
        "chances": [tested.chance] * len(tested.lengths),
        "majority_accuracies": majorities,
        "test_losses": [None if found is None else statistics.fmean(found) for found in tested.losses],
        "accuracies_by_reach": {str(T): _averaged(found) for T, found in tested.by_reach.items()},
        "accuracies_reason": tested.reason or None,
    }


def _averaged(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average over the seeds whose test has the reach."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: statistics.fmean(each[name] for each in found if name in each) for name in names}
