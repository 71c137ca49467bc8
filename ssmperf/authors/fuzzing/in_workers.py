"""Judge examples in the workers of a run, which survive a hang and a crash."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ssmperf.authors.fuzzing.jobs import Jobs, in_turn
from ssmperf.engine.cases.calls.call import INCOMING, parse
from ssmperf.engine.cases.calls.packing import UNPACKED
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import SPENT, Record, Status
from ssmperf.engine.execute.executor import Serving
from ssmperf.engine.execute.lane import REFERENCE
from ssmperf.engine.execute.run import OpenRun
from ssmperf.engine.plan.plan import Planned
from ssmperf.engine.plan.refusal import refusal

LEAST_LIMIT_S = 5.0  # of an example that hangs
SLOWEST = 10.0  # times the slowest right example: a hang
FIRST_LIMIT_S = {"cpu": 10.0, "cuda": 120.0}  # before any example was right
INTERPRETED = 12.0  # times these limits in Triton's interpreter, where each program takes its turn


@dataclass
class Workers:
    """Judges examples in the lanes of an open run. Make it by `working`."""

    opened: OpenRun
    jobs: Jobs
    serving: Serving
    slowest_s: float = 0.0
    _refused: list[Record] = field(default_factory=list)
    _compiling: threading.Thread | None = None
    _expected: set[str] = field(default_factory=set)  # what it compiles
    _compiled: set[str] = field(default_factory=set)

    def done(self, case: Case) -> bool:
        return (case.id, 0) in self.opened.done

    def begin(self, groups: Sequence[Sequence[Case]]) -> None:
        """Plan the cases, compile their kernels beside each other, and hand them to the lanes.

        Lanes take a case of each class in turn, so that they seldom compile the same kernel at the same time,
        and not the first of all classes, which are simple and alike: if these hang, others should tell how
        long a call takes.
        """
        selection = self.opened.request.selection
        planned = [[Planned(case, refusal(case, selection)) for case in group] for group in groups]
        every = [item for group in planned for item in group]
        self.opened.add([item for item in every if not self.done(item.case)])
        self._refused = [
            Record(item.case, Status.UNSUPPORTED, item.refusal) for item in every if item.refusal
        ]
        to_run = [[item.case for item in group if item.refusal is None] for group in planned]
        self._compile(in_turn(map(forms, to_run)))
        turned = (
            cases[i % len(cases) :] + cases[: i % len(cases)] for i, cases in enumerate(to_run) if cases
        )
        self.jobs.begin([case] for case in in_turn(turned))

    def expect(self, groups: Sequence[Sequence[Case]]) -> None:
        """Compile the kernels of groups while others are judged."""
        selection = self.opened.request.selection
        to_run = ([case for case in group if refusal(case, selection) is None] for group in groups)
        fresh = self._fresh(in_turn(map(forms, to_run)))
        self._expected = {case.id for case in fresh}
        self._compiling = threading.Thread(
            target=self.opened.session.compile, args=(fresh, self.opened.events), daemon=True
        )
        self._compiling.start()

    def _compile(self, cases: Iterable[Case]) -> None:
        """Compile the kernels of cases beside each other, or wait until they are compiled."""
        first = list(cases)
        if self._compiling is not None and any(case.id in self._expected for case in first):
            self._compiling.join()
        if fresh := self._fresh(first):
            self.opened.session.compile(fresh, self.opened.events)

    def _fresh(self, cases: Iterable[Case]) -> list[Case]:
        """List cases that nobody has compiled or compiles; from now on somebody does."""
        found = [case for case in cases if case.id not in self._compiled]
        self._compiled |= {case.id for case in found}
        return found

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        found = self.jobs.records(ends_s)
        self._limit(found)
        return [*self._refused, *found]

    def trust(self, *, wrong: bool) -> None:
        self.serving.trust(*((Status.WRONG, Status.NAN) if wrong else ()))

    def _limit(self, records: Sequence[Record]) -> None:
        """Set how long an example may take, by the slowest right one."""
        took = [
            record.numbers[SPENT] - (record.numbers.get(REFERENCE) or 0.0)
            for record in records
            if record.status is Status.OK
        ]
        if took:
            self.slowest_s = max(self.slowest_s, *took)
            self.serving.limit(max(_patience() * LEAST_LIMIT_S, SLOWEST * self.slowest_s))


def forms(group: Sequence[Case]) -> list[Case]:
    """List the cases of a class that differ in how they call: kernels are compiled for each such form."""
    found: dict[tuple[object, ...], Case] = {}
    for case in group:
        call = parse(case.call)
        views = {name: view for name, view in call.views.items() if name not in INCOMING}
        found.setdefault((replace(call, views=views), case.packing == UNPACKED, case.shape["T"] == 1), case)
    return list(found.values())


def _patience() -> float:
    return INTERPRETED if os.environ.get("TRITON_INTERPRET") == "1" else 1.0


@contextlib.contextmanager
def working(opened: OpenRun, device: str) -> Iterator[Workers]:
    """Serve the lanes of an open run while the block lasts. device: its type."""
    jobs = Jobs()
    with opened.serving(jobs, jobs.done) as serving:
        jobs.check = serving.check
        serving.limit(_patience() * FIRST_LIMIT_S[device])
        try:
            yield Workers(opened, jobs, serving)
        finally:
            jobs.close()
