"""Tests of trained networks: their accuracy and loss at the length of the training and beyond it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ssmperf.engine.execute.worker import is_out_of_memory
from ssmperf.engine.layers.task import Task
from ssmperf.errors import Unsupported
from ssmperf.papers.learn.data import TEST, majority, scored, unseen
from ssmperf.papers.learn.training import Learned, right

TEST_ROWS = 128
GROWTH = (1, 2, 4, 8, 16)  # lengths of the tests, as multiples of that of the training
REACHES = (0, 1, 4, 19)  # upper ends of the classes in which accuracy is given


@dataclass
class Tested:
    """The results of tests, by length; the lists of a length have one value per seed.

    trained: the length of the training. chance: the accuracy of guessing.
    accuracies, losses (nats per target): None for a length that was not tested; `reason` says why.
    majorities: the accuracies of always giving the most frequent answer.
    by_reach: the accuracies by how many tokens back an answer depends, by length that was tested.
    """

    trained: int
    chance: float
    lengths: list[int] = field(default_factory=list)
    accuracies: list[list[float] | None] = field(default_factory=list)
    losses: list[list[float] | None] = field(default_factory=list)
    majorities: list[list[float]] = field(default_factory=list)
    by_reach: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    reason: str = ""


def run_tests(
    task: Task,
    learned: Sequence[Learned],
    backend: str,
    device: str,
    *,
    growth: Sequence[int] = GROWTH,
    rows: int = TEST_ROWS,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Tested:
    """Test networks at multiples of the length of their training, each on rows of its own.

    A length that the backend refuses, or that does not fit into the memory, ends the tests.

    growth: the multiples. rows: number of rows of a test.
    """
    trained = learned[0].job.sizes["T"]
    found = Tested(trained, task.chance(trained))
    for factor in growth:
        T = trained * factor
        on_progress(f"testing {task.name} at T = {T:,}")
        accuracies: list[float] | None = []
        losses: list[float] = []
        majorities: list[float] = []
        by_reach: list[dict[str, float]] = []
        for each in learned:
            draw = replace(each.job.draw, rows=rows, T=T)
            examples = unseen(task, draw, TEST)
            majorities.append(majority(task, examples))
            if accuracies is None or found.reason:
                accuracies = None
                break
            try:
                answers, loss = right(each.network, examples, backend, device)
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
        found.losses.append(losses if accuracies else None)
        found.majorities.append(majorities)
        if accuracies:
            found.by_reach[T] = by_reach
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
