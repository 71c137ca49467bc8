"""Shrink a failing configuration: its example within the class, the class, and each size; and repeat it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ssmperf.authors.fuzzing.configurations.draws import DrawnClass, DrawPlace, Draws
from ssmperf.authors.fuzzing.configurations.space import FuzzClass, FuzzExample, case_of
from ssmperf.authors.fuzzing.faults import FaultKind, FuzzFault, kind_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record

MOST_JUDGED = 60  # candidates of a fault
LONGEST_S = 90.0
EXAMPLES_SHARE, CLASSES_SHARE = 0.35, 0.65  # of candidates and time: up to the example, and to the class
REPEATED = 3

Part = TypeVar("Part")
Candidate = TypeVar("Candidate")
JudgeCase = Callable[[Case], Record]


@dataclass(slots=True)
class ShrinkCandidates:
    """Judges candidates for the smallest configuration, each once. When the time is over, all are right."""

    kind: FaultKind
    judge: JudgeCase
    first: Record
    known: dict[str, Record] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)
    most: int = MOST_JUDGED
    ends_s: float = 0.0

    def __post_init__(self) -> None:
        self.known[self.first.case.id] = self.first

    def allow(self, share: float) -> None:
        """Allow a share of all candidates, those so far included, and of the time since the beginning."""
        self.most, self.ends_s = int(share * MOST_JUDGED), self.began_s + share * LONGEST_S

    def fails(self, case: Case) -> bool:
        """Tell whether a case shows the same fault."""
        if case.id not in self.known:
            if self.judged >= self.most or time.monotonic() >= self.ends_s:
                return False
            self.known[case.id] = self.judge(case)
        found = kind_of(self.known[case.id])
        return found is not None and found.place == self.kind.place

    @property
    def judged(self) -> int:
        """The number of candidates that were judged."""
        return len(self.known) - 1


def smallest(draws: Draws, drawn: DrawnClass, place: DrawPlace, first: Record, judge: JudgeCase) -> FuzzFault:
    """Find the smallest configuration that shows the fault of a record.

    drawn, place: the class of its case, and where it was drawn.
    """
    fault = kind_of(first)
    assert fault is not None
    candidates = ShrinkCandidates(fault, judge, first)
    candidates.allow(EXAMPLES_SHARE)
    example = dict(drawn.examples)[place.example]
    example = draws.shrunk_example(drawn.kind, example, place, candidates.fails)
    candidates.allow(CLASSES_SHARE)
    kind = draws.shrunk_class(drawn.kind, example, place, candidates.fails)
    candidates.allow(1.0)
    kind, example = with_least_sizes(kind, example, candidates.fails)
    last = candidates.known[case_of(kind, example).id]
    return FuzzFault(fault, last, first, judged=candidates.judged, shrunk=True)


def with_least_sizes(
    kind: FuzzClass, example: FuzzExample, fails: Callable[[Case], bool]
) -> tuple[FuzzClass, FuzzExample]:
    """Lower each size by itself as far as the case fails.

    Most sizes that are drawn are those at which tiles begin or end, and a fault may begin between them.
    """

    def of_example(each: FuzzExample) -> bool:
        return fails(case_of(kind, each))

    def of_class(each: FuzzClass) -> bool:
        return fails(case_of(each, example))

    for name in ("batch", "heads", "past"):
        example = _least(getattr(example, name), partial(_sized, example, name), of_example)
    if not example.packed:
        example = _least(example.lengths[0], partial(_sized, example, "lengths"), of_example)
    for letter, size in kind.sizes:
        legal = kind.space.backend.sizes.get(letter)
        kind = _least(size, partial(_resized, kind, letter), of_class, legal)
    return kind, example


def _sized(example: FuzzExample, name: str, size: int) -> FuzzExample:
    changes: dict[str, Any] = {name: (size,) if name == "lengths" else size}
    return replace(example, **changes)


def _resized(kind: FuzzClass, letter: str, size: int) -> FuzzClass:
    return replace(kind, sizes=tuple((each, size if each == letter else old) for each, old in kind.sizes))


def _least(
    size: int, make: Callable[[int], Part], fails: Callable[[Part], bool], legal: Sequence[int] | None = None
) -> Part:
    """Find the part with the least size that fails, by halving.

    legal: sizes that a backend takes; with any, odd ones stay odd and even ones even, but for one step.
    """
    if legal is not None:
        return _first([make(each) for each in sorted(legal) if each <= size], fails)
    sizes = range(2 - size % 2, size + 1, 2)
    found = _first(sizes, lambda each: fails(make(each)))
    return _first([make(each) for each in (found - 1, found) if each], fails)


def _first(candidates: Sequence[Candidate], fails: Callable[[Candidate], bool]) -> Candidate:
    """Find the first that fails, if the last one does, and each behind one that fails."""
    return candidates[bisect_left(candidates, True, hi=len(candidates) - 1, key=fails)]


def repeated(fault: FuzzFault, judge: JudgeCase) -> FuzzFault:
    """Run the smallest configuration again, and count how often it fails."""
    for _ in range(REPEATED):
        again = kind_of(judge(fault.record.case))
        fault.failed += again is not None and again.place == fault.kind.place
        fault.of += 1
    return fault
