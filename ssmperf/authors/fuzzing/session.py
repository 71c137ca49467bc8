"""The session: draw classes, have their examples judged, and shrink each distinct fault."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ssmperf.authors.fuzzing.configurations.draws import DrawnClass, DrawPlace, Draws
from ssmperf.authors.fuzzing.configurations.space import Space
from ssmperf.authors.fuzzing.faults import (
    HANG,
    NEAR,
    FaultKind,
    FuzzFault,
    is_simplest,
    kind_of,
    merged,
    without_numbers,
)
from ssmperf.authors.fuzzing.jobs import in_turn
from ssmperf.authors.fuzzing.shrinking import repeated, smallest
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.diagnosis.experiments import can_be_explained, explained_by_experiments, verdict_of

CLASSES_AT_ONCE = {"cpu": 4, "cuda": 24}  # whose kernels are compiled beside each other
FIXED_AT_ONCE = 3  # cases that are not drawn, some of which take long; in Triton's interpreter one
MOST_SHRUNK = 3  # faults of one object of a backend
MOST_FAULTS = 6  # of a backend
MOST_HANGS = 4  # of a backend, before no more of it is judged

Drawn = Sequence[tuple[Draws, DrawnClass]]  # classes that are judged at once


class Examiner(Protocol):
    """Judges cases, in workers or in this process."""

    def done(self, case: Case) -> bool:
        """Tell whether a case has a record, of a run that goes on."""
        ...

    def begin(self, groups: Sequence[Sequence[Case]]) -> None:
        """Begin to judge groups of cases; each group is a class's."""
        ...

    def expect(self, groups: Sequence[Sequence[Case]]) -> None:
        """Prepare for the groups that follow, while those that have begun are judged."""
        ...

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        """Wait for the records of the cases that have begun; some are missing if it gets too late."""
        ...

    def trust(self, *, wrong: bool) -> None:
        """Say whether a process may go on after a foreign backend was wrong in it."""
        ...


@dataclass(slots=True)
class Tally:
    """How far a session is.

    near: right examples whose error was a little above its tolerance, and not so on most other values.
    refused: reasons of refusals, with their number.
    """

    examples: int = 0
    classes: int = 0
    right: int = 0
    near: int = 0
    out_of_memory: int = 0
    faults: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    @property
    def per_s(self) -> float:
        """Examples per second."""
        return self.examples / max(1e-9, (self.ended_s or time.monotonic()) - self.began_s)

    def note(self, record: Record) -> None:
        """Count the record of an example."""
        self.examples += 1
        self.right += record.status is Status.OK
        self.near += record.status is Status.OK and NEAR in record.numbers
        self.out_of_memory += record.status is Status.OOM
        if record.status is Status.UNSUPPORTED:
            self.refused[without_numbers(str(record.reason))] += 1

    def __str__(self) -> str:
        near = f", {self.near} near their tolerance" if self.near else ""
        memory = f", {self.out_of_memory} out of memory" if self.out_of_memory else ""
        return (
            f"{self.examples:,} examples, {self.classes:,} classes, {self.per_s:.1f}/s, "
            f"{self.faults} faults, {sum(self.refused.values()):,} refused{near}{memory}"
        )


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
    """Fuzzes spaces until a goal is reached.

    tell: called with a text about what is being done, and with the tally.
    """

    examiner: Examiner
    spaces: Sequence[Space]
    seed: int
    goal: Goal
    tell: Callable[[str, Tally], None] = lambda text, tally: None
    tally: Tally = field(default_factory=Tally)
    faults: dict[FaultKind, FuzzFault] = field(default_factory=dict)

    def run(self, failed: Sequence[Case] = (), fixed: Sequence[Case] = ()) -> list[FuzzFault]:
        """Fuzz, and return the distinct faults.

        failed: cases that are judged first. fixed: some that are judged beside each round of classes. Neither
            are shrunk.
        """
        ends_s = self.goal.ends_s()
        self.examiner.trust(wrong=True)  # what is printed is repeated in processes of its own
        self._first(failed)
        beside = iter([case for case in fixed if not self.examiner.done(case)])
        fixed_at_once = 1 if any(space.interpreted for space in self.spaces) else FIXED_AT_ONCE
        rounds = self._rounds()
        drawn = next(rounds, None)
        while drawn is not None and not self._reached(ends_s) and not all(map(self._hangs, self.spaces)):
            drawn = self._round(drawn, rounds, list(itertools.islice(beside, fixed_at_once)), ends_s)
        for fault in self.faults.values():
            if not fault.of:
                self._repeated(fault)
        self.tally.ended_s = time.monotonic()
        found = merged(self.faults.values())
        for fault in found:
            self._experiment(fault)
        self.tally.faults = len(found)
        return found

    def _rounds(self) -> Iterator[Drawn]:
        """Give the classes of all spaces in turn, some at once."""
        streams = in_turn([_stream(Draws(space, self.seed)) for space in self.spaces])
        count = CLASSES_AT_ONCE[self.spaces[0].device]
        while found := list(itertools.islice(streams, count)):
            yield found

    def _reached(self, ends_s: float) -> bool:
        most = self.goal.examples
        return time.monotonic() >= ends_s or (most is not None and self.tally.examples >= most)

    def _first(self, cases: Sequence[Case]) -> None:
        """Judge cases that have failed before."""
        fresh = [case for case in cases if not self.examiner.done(case)]
        if not fresh:
            return
        self.tell(f"{len(fresh)} cases that failed before", self.tally)
        self.examiner.begin([[case] for case in fresh])
        self._note_given(self.examiner.records())

    def _note_given(self, records: Sequence[Record]) -> None:
        """Note the records of cases that were not drawn."""
        for record in sorted(records, key=lambda each: not is_simplest(each.case)):
            self.tally.note(record)
            if (kind := kind_of(record)) is None:
                continue
            if kind in self.faults:
                self.faults[kind].count += 1
            else:
                self._add(FuzzFault(kind, record, record, shrunk=is_simplest(record.case)))

    def _round(
        self, drawn: Drawn, rounds: Iterator[Drawn], fixed: Sequence[Case], ends_s: float
    ) -> Drawn | None:
        """Judge the examples of some classes, and shrink what is wrong. Draw the next classes meanwhile.

        fixed: cases that are judged beside them.
        """
        places: dict[str, tuple[Draws, DrawnClass, DrawPlace]] = {}
        groups = []
        left = None if self.goal.examples is None else self.goal.examples - self.tally.examples - len(fixed)
        for draws, each in drawn:
            if self._hangs(draws.space):
                continue
            fresh = [(case, place) for case, place in each.cases.values() if not self.examiner.done(case)]
            fresh = fresh if left is None else fresh[: max(0, left - len(places))]
            places |= {case.id: (draws, each, place) for case, place in fresh}
            groups.append([case for case, _ in fresh])
        self.examiner.begin([*groups, *([case] for case in fixed if case.id not in places)])
        following = next(rounds, None)
        if left is None or len(places) < left:  # else these are the last
            self.examiner.expect([[case for case, _ in each.cases.values()] for _, each in following or ()])
        found = self.examiner.records(ends_s)
        self.tally.classes += sum(map(bool, groups))
        records = [record for record in found if record.case.id in places]
        self._note_given([record for record in found if record.case.id not in places])
        for record in records:
            self.tally.note(record)
        for record in records:
            if (kind := kind_of(record)) is not None:
                self._note_fault(kind, record, *places[record.case.id])
        self.tell(f"{drawn[-1][0].space.owner}/{drawn[-1][0].space.backend.name}", self.tally)
        return following

    def _note_fault(
        self, kind: FaultKind, record: Record, draws: Draws, drawn: DrawnClass, place: DrawPlace
    ) -> None:
        known = self.faults.get(kind) or self._alike(kind)
        if known is not None:
            known.count += 1
            if known.shrunk:
                return
        self.tell(f"shrinking {record.case}", self.tally)
        found = self._repeated(smallest(draws, drawn, place, record, self._judge))
        if known is not None:
            found.count = known.count
            del self.faults[known.kind]
        self._add(found)

    def _add(self, fault: FuzzFault) -> None:
        self.faults[fault.kind] = fault
        self.tally.faults = len(self.faults)
        self.tell(f"fault: {fault.finding}; {fault.command}", self.tally)

    def _repeated(self, fault: FuzzFault) -> FuzzFault:
        """Repeat the smallest configuration, each time in a fresh process if the backend is foreign."""
        self.examiner.trust(wrong=False)
        found = repeated(fault, self._judge)
        self.examiner.trust(wrong=True)
        return found

    def _experiment(self, fault: FuzzFault) -> None:
        """Run experiments on the smallest configuration of a fault that does not hang."""
        case, shown = fault.record.case, verdict_of(fault.record)
        if can_be_explained(case):
            self.tell(f"experiments on {case}", self.tally)
            fault.experiments = explained_by_experiments(
                case, shown, lambda other: verdict_of(self._judge(other))
            )

    def _alike(self, kind: FaultKind) -> FuzzFault | None:
        """Find a fault of the same object for one that has no explanation, or for one too many."""
        of_backend = [fault for each, fault in self.faults.items()
                      if (each.owner, each.backend) == (kind.owner, kind.backend)]  # fmt: skip
        of_object = [fault for fault in of_backend if fault.kind.place == kind.place]
        if len(of_object) >= MOST_SHRUNK or (of_object and not kind.explanation):
            return of_object[0]
        return of_backend[0] if len(of_backend) >= MOST_FAULTS else None

    def _hangs(self, space: Space) -> bool:
        """Tell whether a backend has hung so often that nothing else of it could be judged in the time."""
        place = FaultKind(space.owner, space.backend.name, HANG).place
        return sum(each.count for each in self.faults.values() if each.kind.place == place) >= MOST_HANGS

    def _judge(self, case: Case) -> Record:
        self.examiner.begin([[case]])
        (record,) = self.examiner.records()
        return record


def _stream(draws: Draws) -> Iterator[tuple[Draws, DrawnClass]]:
    return ((draws, drawn) for drawn in draws.classes())
