"""Task: the examples on which a network is trained, as their author declares them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

IGNORED = -100  # a target that is not scored


@dataclass(frozen=True, slots=True)
class Draw:
    """A request for examples of a task.

    rows, T: number and length of the sequences.
    trained: the length at which networks are trained. Sizes that must not grow with T, such as the number
        of pairs to remember, follow from it, so that longer tests ask for nothing but a longer memory.
    seed: equal draws give equal examples; training, validation and test have different seeds.
    held_out: whether the examples must have nothing in common with those of the training (text of other
        files). A task that draws its examples at random needs no such care.
    validation: whether held-out examples choose a learning rate or end a training. They must have nothing in
        common with those of tests, either.
    corpus: a text file, or a folder of them, for tasks on text; None means the standard library's sources.
    """

    rows: int
    T: int
    trained: int
    seed: int
    held_out: bool = False
    validation: bool = False
    corpus: Path | None = None


@dataclass(frozen=True, slots=True)
class Examples:
    """Sequences of a task, all (rows, T) int64, on the CPU.

    tokens: the inputs.
    targets: the class at each step, or IGNORED. Every row has a target.
    reaches: the number of tokens back from a target to the furthest one on which it depends, itself included;
        0 for a target that depends on none. Read only where there is a target.
    """

    tokens: Tensor
    targets: Tensor
    reaches: Tensor


@dataclass(frozen=True, slots=True)
class Task:
    """A task to learn.

    vocabulary, classes: number of different tokens and of different targets.
    sample: draws examples. It may give fewer rows than asked for, if the text has no more.
    guess: trained length -> the accuracy of guessing among the answers that are possible at all, such as the
        values that occur in a row; None means one of the classes.
    rows: number of rows of the training set; fewer are drawn if a training sees fewer.
    least: the shortest sequence that the task can have.
    answers: number of different targets that occur; None means all classes.
    tied, dropout, std: of the networks that learn it, as for `Network`.
    name: set by the registry, with the options that the task has.
    """

    vocabulary: int
    classes: int
    sample: Callable[[Draw], Examples]
    guess: Callable[[int], float] | None = None
    rows: int = 100_000
    least: int = 1
    answers: int | None = None
    tied: bool = False
    dropout: float = 0.0
    std: float | None = None
    name: str = ""

    def chance(self, trained: int) -> float:
        """Give the accuracy of guessing, at a trained length."""
        return 1 / self.classes if self.guess is None else self.guess(trained)

    @property
    def guess_loss(self) -> float:
        """The loss, in nats, of a network that knows which answers occur, and nothing of the row."""
        return math.log(self.answers or self.classes)
