"""Shrink a failing configuration: first its example within the class, then the class; and repeat it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ssmperf.authors.fuzzing.configurations.draws import DrawnClass, DrawPlace, Draws
from ssmperf.authors.fuzzing.configurations.space import case_of
from ssmperf.authors.fuzzing.faults import FaultKind, FuzzFault, kind_of
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record

MOST_JUDGED = 60  # candidates of a fault
LONGEST_S = 90.0
EXAMPLES_SHARE = 0.45  # of candidates and time, for the example
REPEATED = 3

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
    candidates.allow(1.0)
    kind = draws.shrunk_class(drawn.kind, example, place, candidates.fails)
    last = candidates.known[case_of(kind, example).id]
    return FuzzFault(fault, last, first, judged=candidates.judged, shrunk=True)


def repeated(fault: FuzzFault, judge: JudgeCase) -> FuzzFault:
    """Run the smallest configuration again, and count how often it fails."""
    for _ in range(REPEATED):
        again = kind_of(judge(fault.record.case))
        fault.failed += again is not None and again.place == fault.kind.place
        fault.of += 1
    return fault
