"""The classes and examples of a seed: number by number, always the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ssmperf.authors.fuzzing.configurations import drawing
from ssmperf.authors.fuzzing.configurations.space import FuzzClass, FuzzExample, Space, case_of
from ssmperf.authors.fuzzing.configurations.strategies import classes, examples
from ssmperf.engine.cases.case import Case

CLASSES = 16  # that are drawn at once


class DrawPlace(NamedTuple):
    """Where a case was drawn: in which batch, as which of its classes, as which example of this."""

    batch: int
    number: int
    example: int


@dataclass(frozen=True, slots=True)
class DrawnClass:
    """A class with its examples, as cases, and where these were drawn."""

    kind: FuzzClass
    batch: int
    number: int
    examples: tuple[tuple[int, FuzzExample], ...]

    @property
    def cases(self) -> dict[str, tuple[Case, DrawPlace]]:
        """The cases by id; equal ones once."""
        found: dict[str, tuple[Case, DrawPlace]] = {}
        for number, example in self.examples:
            case = case_of(self.kind, example)
            found.setdefault(case.id, (case, DrawPlace(self.batch, self.number, number)))
        return found


@dataclass(frozen=True, slots=True)
class Draws:
    """The configurations of a space by a seed."""

    space: Space
    seed: int

    def classes(self) -> Iterator[DrawnClass]:
        """Give classes without an end, unless the space is small."""
        seen: set[FuzzClass] = set()
        batch = 0
        while True:
            known = len(seen)
            found = drawing.drawn(classes(self.space), self._of_batch(batch), CLASSES)
            for number, kind in found:
                if kind not in seen:
                    seen.add(kind)
                    yield DrawnClass(kind, batch, number, self._examples(kind, batch, number))
            if len(seen) == known:
                return
            batch += 1

    def shrunk_example(
        self, kind: FuzzClass, example: FuzzExample, place: DrawPlace, fails: Callable[[Case], bool]
    ) -> FuzzExample:
        """Find the simplest example of a class that fails, from one that was drawn."""
        seed = self._of_class(place.batch, place.number)
        return drawing.shrunk(
            examples(kind), seed, place.example, example, lambda each: fails(case_of(kind, each))
        )

    def shrunk_class(
        self, kind: FuzzClass, example: FuzzExample, place: DrawPlace, fails: Callable[[Case], bool]
    ) -> FuzzClass:
        """Find the simplest class at which an example fails, from one that was drawn."""
        seed = self._of_batch(place.batch)
        return drawing.shrunk(
            classes(self.space), seed, place.number, kind, lambda each: fails(case_of(each, example))
        )

    def _examples(self, kind: FuzzClass, batch: int, number: int) -> tuple[tuple[int, FuzzExample], ...]:
        count = self.space.budget.of_class
        return tuple(drawing.drawn(examples(kind), self._of_class(batch, number), count))

    def _of_batch(self, batch: int) -> int:
        return zlib.crc32(f"{self.seed} {self.space.owner} {self.space.backend.name} {batch}".encode())

    def _of_class(self, batch: int, number: int) -> int:
        return zlib.crc32(f"{self._of_batch(batch)} {number}".encode())
