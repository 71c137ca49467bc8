"""The classes and examples of a seed: number by number, always the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ssmperf.authors.fuzzing import drawing
from ssmperf.authors.fuzzing.space import FuzzClass, FuzzExample, Space, case_of
from ssmperf.authors.fuzzing.strategies import classes, examples
from ssmperf.engine.cases.case import Case

CLASSES = 16  # that are drawn at once
EXAMPLES = 10  # of a class


class Place(NamedTuple):
    """Where a case was drawn: in which batch, as which of its classes, as which example of this."""

    batch: int
    number: int
    example: int


@dataclass(frozen=True, slots=True)
class DrawnClass:
    """A class with its examples, as cases, and where these were drawn."""

    kind: FuzzClass
    batch: int
    index: int
    examples: tuple[tuple[int, FuzzExample], ...]

    @property
    def cases(self) -> dict[str, tuple[Case, Place]]:
        """The cases by id; equal ones once."""
        found: dict[str, tuple[Case, Place]] = {}
        for number, example in self.examples:
            case = case_of(self.kind, example)
            found.setdefault(case.id, (case, Place(self.batch, self.index, number)))
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
            for index, kind in enumerate(found):
                if kind not in seen:
                    seen.add(kind)
                    yield DrawnClass(kind, batch, index, self._examples(kind, batch, index))
            if len(seen) == known:
                return
            batch += 1

    def shrunk_example(self, kind: FuzzClass, place: Place, fails: Callable[[Case], bool]) -> FuzzExample:
        """Find the simplest example of a class that fails."""
        return drawing.shrunk(
            examples(kind),
            self._of_class(place.batch, place.number),
            EXAMPLES,
            place.example,
            lambda example: fails(case_of(kind, example)),
        )

    def shrunk_class(self, example: FuzzExample, place: Place, fails: Callable[[Case], bool]) -> FuzzClass:
        """Find the simplest class at which an example fails."""
        return drawing.shrunk(
            classes(self.space),
            self._of_batch(place.batch),
            CLASSES,
            place.number,
            lambda kind: fails(case_of(kind, example)),
        )

    def _examples(self, kind: FuzzClass, batch: int, index: int) -> tuple[tuple[int, FuzzExample], ...]:
        found = drawing.drawn(examples(kind), self._of_class(batch, index), EXAMPLES)
        return tuple(enumerate(found))

    def _of_batch(self, batch: int) -> int:
        return zlib.crc32(f"{self.seed} {self.space.owner} {self.space.backend.name} {batch}".encode())

    def _of_class(self, batch: int, index: int) -> int:
        return zlib.crc32(f"{self._of_batch(batch)} {index}".encode())
