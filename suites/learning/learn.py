"""Carry out a learned case: train networks, test them at longer and longer lengths, and judge."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ssmperf import (
    Case,
    Context,
    Record,
    Status,
    Task,
    UnknownName,
    Unsupported,
    Verdict,
    is_out_of_memory,
    registry,
)

from . import verdict
from .cases import GROWTH, TEST_ROWS, task_name
from .data import TEST, majority, scored, unseen
from .training import ENOUGH, Diverged, Job, Learned, right
from .trials import Trials, search

REACHES = (0, 1, 4, 19)  # upper ends of the classes in which accuracy is given


def learn(case: Case, context: Context) -> Record:
    """Train blocks of a model at the case's length T, and test them on unseen rows at T, 2 T, … 16 T.

    losses: the mean losses of eight parts of the first seed's training; `updates_done` says where they end.
    accuracies: by `test_lengths`, averaged over seeds; None for a length that the backend refuses.
    accuracies_by_reach: by test length, and by how many tokens back the answer depends on.
    chances, majority_accuracies: what guessing, and always giving the most frequent answer, would have.
    verdict: what was learned and up to where it holds, as a sentence; `learned` and `holds_to` are its parts.
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
    tested = test(task, trials.learned, backend, context)
    return context.record(case, _verdict(Status.OK), **described(task, trials, backend), **tested.numbers())


def _verdict(status: Status, reason: str | None = None) -> Verdict:
    return Verdict(status, reason)


def _check_backend(model: str, backend: str) -> None:
    try:
        registry.backend(model, backend)
    except UnknownName:
        raise Unsupported(f"{model} has no backend {backend} to test with") from None


def described(task: Task, trials: Trials, backend: str) -> dict[str, Any]:
    """Say how networks were trained, and what the trainings cost."""
    first = trials.learned[0]
    parts = len(first.losses)
    return {
        "task": task.name,
        "updates": first.job.updates,
        "updates_needed": [each.updates for each in trials.learned],
        "stopped_early": sum(each.accuracy >= ENOUGH for each in trials.learned),
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
    }


@dataclass
class Tested:
    """The results of tests, by length; the lists of a length have one value per seed."""

    trained: int
    chance: float
    lengths: list[int] = field(default_factory=list)
    accuracies: list[list[float] | None] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    majorities: list[float] = field(default_factory=list)
    by_reach: dict[str, dict[str, float]] = field(default_factory=dict)
    reason: str = ""

    def numbers(self) -> dict[str, Any]:
        """Give the fields of the record."""
        spreads = [None if found is None else verdict.spread(found) for found in self.accuracies]
        levels = [
            verdict.Level(T // self.trained, found, self.chance, majority)
            for T, found, majority in zip(self.lengths, spreads, self.majorities, strict=True)
            if found is not None
        ]
        judged = verdict.judge(levels, self.reason) if levels else None
        named = {f"accuracy_{growth}T": spread for growth, spread in zip(GROWTH, spreads, strict=False)}
        means = {name: None if found is None else found.mean for name, found in named.items()}
        return {
            "verdict": None if judged is None else judged.text,
            "learned": None if judged is None else judged.learned,
            "holds_to": None if judged is None else judged.holds_to,
            "accuracy": means.pop("accuracy_1T"),
            **means,
            "chance": self.chance,
            "majority_accuracy": self.majorities[0],
            "test_lengths": self.lengths,
            "accuracies": [None if found is None else found.mean for found in spreads],
            "accuracies_low": [None if found is None else found.low for found in spreads],
            "accuracies_high": [None if found is None else found.high for found in spreads],
            "accuracies_by_seed": self.accuracies,
            "chances": [self.chance] * len(self.lengths),
            "majority_accuracies": self.majorities,
            "test_losses": self.losses,
            "accuracies_by_reach": self.by_reach,
            "accuracies_reason": self.reason or None,
        }


def test(task: Task, learned: Sequence[Learned], backend: str, context: Context) -> Tested:
    """Test networks at the length of their training and beyond, each on rows of its own.

    A length that the backend refuses, or that does not fit into the memory, ends the tests.
    """
    trained = learned[0].job.sizes["T"]
    found = Tested(trained, task.chance(trained))
    for growth in GROWTH:
        T = trained * growth
        context.on_progress(f"testing {task.name} at T = {T:,}")
        accuracies: list[float] | None = []
        losses: list[float] = []
        majorities: list[float] = []
        by_reach: list[dict[str, float]] = []
        for each in learned:
            draw = replace(each.job.draw, rows=TEST_ROWS, T=T)
            examples = unseen(task, draw, TEST)
            majorities.append(majority(task, examples))
            if accuracies is None or found.reason:
                accuracies = None
                break
            try:
                answers, loss = right(each.network, examples, backend, context.device)
            except Unsupported as error:
                found.reason = str(error)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                found.reason = "out of memory"
            else:
                accuracies.append(float(answers.float().mean()))
                losses.append(loss)
                places = scored(examples.targets)
                by_reach.append(accuracy_by_reach(answers, examples.reaches.flatten()[places]))
                continue
            accuracies = None
            break
        found.lengths.append(T)
        found.accuracies.append(accuracies)
        found.losses.append(statistics.fmean(losses) if accuracies else None)
        found.majorities.append(statistics.fmean(majorities))
        if accuracies:
            found.by_reach[str(T)] = _averaged(by_reach)
    return found


def accuracy_by_reach(answers: Tensor, reaches: Tensor) -> dict[str, float]:
    """Give the accuracy by how far back a target reaches, such as {"2-4": 0.3}, for reaches that occur.

    The classes end at 0, 1, 4 and 19, and then at each power of four times that, so that far reaches show.
    """
    found = {}
    low = 0
    ends = list(REACHES)
    while ends[-1] < int(reaches.max()):
        ends.append(4 * (ends[-1] + 1) - 1)
    for high in ends:
        inside = (reaches >= low) & (reaches <= high)
        if bool(inside.any()):
            found[f"{low}" if high == low else f"{low}-{high}"] = float(answers[inside].float().mean())
        low = high + 1
    return found


def _averaged(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average over the seeds whose test has the reach."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: statistics.fmean(each[name] for each in found if name in each) for name in names}
