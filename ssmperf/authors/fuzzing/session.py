"""The session: draw classes, judge their examples in the lanes of a run, and shrink each distinct fault."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ssmperf.authors.fuzzing.draws import DrawnClass, Draws, Place
from ssmperf.authors.fuzzing.faults import WRONG, FaultKind, FuzzFault, kind_of, merged
from ssmperf.authors.fuzzing.jobs import Jobs
from ssmperf.authors.fuzzing.shrinking import repeated, smallest
from ssmperf.authors.fuzzing.space import Space
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import SPENT, Record, Status
from ssmperf.engine.execute.executor import Serving
from ssmperf.engine.execute.lane import REFERENCE
from ssmperf.engine.execute.run import OpenRun
from ssmperf.engine.plan.plan import Planned
from ssmperf.engine.plan.refusal import refusal

CLASSES_AT_ONCE = {"cpu": 4, "cuda": 24}  # whose kernels are compiled beside each other
LEAST_LIMIT_S = 5.0  # of an example that hangs
SLOWEST = 10.0  # times the slowest right example: a hang
FIRST_LIMIT_S = {"cpu": 30.0, "cuda": 120.0}  # before any example was right
MOST_SHRUNK = 3  # faults of one object of a backend
MOST_FAULTS = 6  # of a backend

Drawn = Sequence[tuple[Draws, DrawnClass]]  # classes that are judged at once


@dataclass(slots=True)
class Tally:
    """How far a session is.

    refused: reasons of refusals, with their number.
    """

    examples: int = 0
    classes: int = 0
    right: int = 0
    out_of_memory: int = 0
    faults: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def per_s(self) -> float:
        """Examples per second."""
        return self.examples / max(1e-9, time.monotonic() - self.began_s)

    def note(self, record: Record) -> None:
        """Count the record of an example."""
        self.examples += 1
        self.right += record.status is Status.OK
        self.out_of_memory += record.status is Status.OOM
        if record.status is Status.UNSUPPORTED:
            self.refused[str(record.reason)] += 1


@dataclass(frozen=True, slots=True)
class Goal:
    """When a session ends: after so many seconds or examples, whichever is first; None for no limit."""

    seconds: float | None
    examples: int | None

    def ends_s(self) -> float:
        """The time by which it ends, by the clock `time.monotonic`."""
        return float("inf") if self.seconds is None else time.monotonic() + self.seconds


@dataclass
class FuzzSession:
    """Fuzzes spaces in an open run.

    tell: called with a text about what is being done, and with the tally.
    """

    opened: OpenRun
    spaces: Sequence[Space]
    seed: int
    goal: Goal
    tell: Callable[[str, Tally], None] = lambda text, tally: None
    tally: Tally = field(default_factory=Tally)
    faults: dict[FaultKind, FuzzFault] = field(default_factory=dict)
    slowest_s: float = 0.0

    def run(self, earlier: Sequence[Case] = ()) -> list[FuzzFault]:
        """Fuzz until the goal, and return the distinct faults.

        earlier: cases that failed in other runs, which are tried first.
        """
        jobs = Jobs()
        ends_s = self.goal.ends_s()
        with self.opened.serving(jobs, jobs.done) as serving:
            self.jobs, self.serving = jobs, serving
            jobs.check = serving.check
            serving.trust(Status.WRONG, Status.NAN)  # what is printed is repeated in processes of its own
            serving.limit(FIRST_LIMIT_S[self.spaces[0].device])
            try:
                self._repeat(earlier)
                rounds = self._rounds()
                drawn = next(rounds, None)
                while drawn is not None and not self._reached(ends_s):
                    drawn = self._round(drawn, rounds, ends_s)
            finally:
                jobs.close()
        return merged(self.faults.values())

    def _rounds(self) -> Iterator[Drawn]:
        """Give the classes of all spaces in turn, some at once."""
        streams = [(draws, draws.classes()) for draws in (Draws(space, self.seed) for space in self.spaces)]
        in_turn = _in_turn([((draws, drawn) for drawn in classes) for draws, classes in streams])
        count = CLASSES_AT_ONCE[self.spaces[0].device]
        while found := list(itertools.islice(in_turn, count)):
            yield found

    def _reached(self, ends_s: float) -> bool:
        most = self.goal.examples
        return time.monotonic() >= ends_s or (most is not None and self.tally.examples >= most)

    def _repeat(self, cases: Sequence[Case]) -> None:
        """Try cases that failed in earlier runs."""
        self.tell(f"{len(cases)} configurations that failed before", self.tally) if cases else None
        for record in self._judged([[case] for case in cases]):
            self.tally.note(record)
            kind = kind_of(record)
            if kind is not None and kind not in self.faults:
                self.faults[kind] = self._repeated(FuzzFault(kind, record, record))
                self.tally.faults = len(self.faults)

    def _round(self, drawn: Drawn, rounds: Iterator[Drawn], ends_s: float) -> Drawn | None:
        """Judge the examples of some classes, and shrink what is wrong. Draw the next classes meanwhile."""
        places: dict[str, tuple[Draws, DrawnClass, Place]] = {}
        groups = []
        left = None if self.goal.examples is None else self.goal.examples - self.tally.examples
        for draws, each in drawn:
            fresh = [(case, place) for case, place in each.cases.values() if not self._is_done(case)]
            fresh = fresh if left is None else fresh[: max(0, left - len(places))]
            places |= {case.id: (draws, each, place) for case, place in fresh}
            groups.append([case for case, _ in fresh])
        refused = self._begin(groups)
        following = next(rounds, None)
        records = [*refused, *self._ended(ends_s)]
        self.tally.classes += len(drawn)
        for record in records:
            self.tally.note(record)
        for record in records:
            if record.status in WRONG:
                self._note_fault(record, *places[record.case.id])
        self.tell(f"{drawn[-1][0].space.owner}/{drawn[-1][0].space.backend.name}", self.tally)
        return following

    def _note_fault(self, record: Record, draws: Draws, drawn: DrawnClass, place: Place) -> None:
        kind = kind_of(record)
        assert kind is not None
        known = self.faults.get(kind) or self._alike(kind)
        if known is not None:
            known.count += 1
            return
        self.tell(f"shrinking {record.case}", self.tally)
        found = smallest(draws, drawn.kind, place, record, self._judge)
        self.faults[kind] = self._repeated(found)
        self.tally.faults = len(self.faults)

    def _repeated(self, fault: FuzzFault) -> FuzzFault:
        """Repeat the smallest configuration, each time in a fresh process if the backend is foreign."""
        self.serving.trust()
        found = repeated(fault, self._judge)
        self.serving.trust(Status.WRONG, Status.NAN)
        return found

    def _alike(self, kind: FaultKind) -> FuzzFault | None:
        """Find a fault that stands for another one, where enough of this backend are known."""
        of_backend = [fault for each, fault in self.faults.items()
                      if (each.owner, each.backend) == (kind.owner, kind.backend)]  # fmt: skip
        of_object = [fault for fault in of_backend if fault.kind.place == kind.place]
        if len(of_object) >= MOST_SHRUNK:
            return of_object[0]
        return of_backend[0] if len(of_backend) >= MOST_FAULTS else None

    def _is_done(self, case: Case) -> bool:
        return (case.id, 0) in self.opened.done

    def _judge(self, case: Case) -> Record:
        """Judge one case, planned or not."""
        (record,) = self._judged([[case]])
        return record

    def _judged(self, groups: Sequence[Sequence[Case]]) -> list[Record]:
        """Judge groups of cases."""
        refused = self._begin(groups)
        return [*refused, *self._ended()]

    def _begin(self, groups: Sequence[Sequence[Case]]) -> list[Record]:
        """Have groups of cases judged in lanes; give the records of those that the plan refuses."""
        selection = self.opened.request.selection
        planned = [[Planned(case, refusal(case, selection)) for case in group] for group in groups]
        every = [item for group in planned for item in group]
        self.opened.add([item for item in every if not self._is_done(item.case)])
        refused = [Record(item.case, Status.UNSUPPORTED, item.refusal) for item in every if item.refusal]
        to_run = [[item.case for item in group if item.refusal is None] for group in planned]
        to_run = [group for group in to_run if group]
        self.opened.session.compile([group[0] for group in to_run], self.opened.events)
        self.jobs.begin(to_run)
        return refused

    def _ended(self, ends_s: float = float("inf")) -> list[Record]:
        """Wait for the records of what has begun."""
        found = self.jobs.records(ends_s)
        self._limit(found, self.serving)
        return found

    def _limit(self, records: Sequence[Record], serving: Serving) -> None:
        """Set how long an example may take, by the slowest right one."""
        took = [
            record.numbers[SPENT] - (record.numbers.get(REFERENCE) or 0.0)
            for record in records
            if record.status is Status.OK
        ]
        if took:
            self.slowest_s = max(self.slowest_s, *took)
            serving.limit(max(LEAST_LIMIT_S, SLOWEST * self.slowest_s))


def _in_turn(streams: Sequence[Iterator[tuple[Draws, DrawnClass]]]) -> Iterator[tuple[Draws, DrawnClass]]:
    """Take one item of each stream in turn, until all have ended."""
    left = list(streams)
    while left:
        for stream in tuple(left):
            item = next(stream, None)
            if item is None:
                left.remove(stream)
            else:
                yield item
