"""The driver's side of a cluster's devices: who takes which group, and what is run again elsewhere."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.execute.lane import Events
from ssmperf.errors import WorkerFailed

NODE = "node"  # of a record: the device that measured it
LOST = "its node was lost, and so was the one that ran it again"
WAIT_S = 0.2


class Pool:
    """Hands groups to lanes, each to one at a time; those of a lost lane once more.

    A lane that finds nothing waits while others are busy, since one of them may be lost.
    """

    def __init__(self, groups: Iterable[Sequence[Case]], stop: threading.Event) -> None:
        self._left, self._stop = deque(groups), stop
        self._busy, self._changed = 0, threading.Condition()
        self._lost: set[str] = set()

    def take(self, last: Sequence[Case] = ()) -> Sequence[Case]:
        """Take the group after `last`, which the lane has run; empty if none is left."""
        with self._changed:
            if last:
                self._busy -= 1
                self._changed.notify_all()
            while not self._left and self._busy and not self._stop.is_set():
                self._changed.wait(WAIT_S)
            if not self._left or self._stop.is_set():
                return ()
            self._busy += 1
            return self._left.popleft()

    def lose(self, left: Sequence[Case]) -> list[Case]:
        """Hand in the cases that a lost lane has not ended; return those that were lost before."""
        with self._changed:
            again = [case for case in left if case.id not in self._lost]
            self._lost |= {case.id for case in left}
            if again:
                self._left.appendleft(again)
            self._busy -= 1
            self._changed.notify_all()
            return [case for case in left if case not in again]

    @property
    def unfinished(self) -> int:
        """How many cases no lane has taken."""
        return sum(map(len, self._left))


class RemoteLane:
    """Runs groups of cases by an actor on its device, in a thread of the driver.

    actor: a handle of `Node`. label: of the device. lost: the errors by which Ray says that an actor or its
    node is gone. get, kill: Ray's functions.
    """

    def __init__(
        self, actor: Any, label: str, *, lost: tuple[type[Exception], ...], get: Any, kill: Any
    ) -> None:
        self.actor, self.label = actor, label
        self._lost, self._get, self._kill = lost, get, kill
        self.gone = False
        self.environment: tuple[str, Mapping[str, Any]] | None = None  # with its id
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def guarded_run(self, pool: Pool, events: Events, stop: threading.Event) -> None:
        """Run groups until none is left, or the device is lost; a failure stops the other lanes, too."""
        try:
            self._run(pool, events, stop)
        except BaseException as error:
            if not stop.is_set():
                self.error = error
            stop.set()
        finally:
            self.finished.set()

    def _run(self, pool: Pool, events: Events, stop: threading.Event) -> None:
        group: Sequence[Case] = ()
        while not (self.gone or stop.is_set()):
            group = pool.take(group)
            if not group:
                break
            left = {case.id: case for case in group}
            try:
                self._run_group(group, left, events)
            except self._lost:
                self.gone = True
                for case in pool.lose(list(left.values())):
                    events.on_record(Record(case, Status.CRASH, LOST, None, {NODE: self.label}))
        if not self.gone:
            try:
                self._get(self.actor.end_round.remote())
            except self._lost:
                self.gone = True

    def _run_group(self, group: Sequence[Case], left: dict[str, Case], events: Events) -> None:
        """Run a group, and remove the cases from `left` as their records are passed on."""
        attempt = secrets.token_hex(8)
        for item in self.actor.run.options(num_returns="streaming").remote(attempt, list(group)):
            told, kind, given = self._get(item)
            if told != attempt:
                continue
            if kind == "record":
                (record,) = given
                if left.pop(record.case.id, None) is not None:
                    events.on_record(replace(record, numbers={**record.numbers, NODE: self.label}))
            elif kind == "environment":
                self.environment = given
                events.on_environment(*given)
            elif kind == "start":
                events.on_start(given[0], self.label)
            else:
                events.on_progress(*given)
        if left:
            raise WorkerFailed(f"{self.label} has ended without {len(left)} of {len(group)} records")

    def kill(self) -> None:
        """End the actor, and with it the processes of its device."""
        self.gone = True
        self._kill(self.actor)


def compile_beside(
    lanes: Sequence[RemoteLane], hosts: Mapping[str, str], cases: Sequence[Case], get: Any
) -> None:
    """Compile kernels on one device of each host, whose cache its other devices share.

    hosts: by the label of a lane.
    """
    first: dict[str, RemoteLane] = {}
    for lane in lanes:
        first.setdefault(hosts[lane.label], lane)
    found = {host: lane.actor.compile.remote(list(cases)) for host, lane in first.items()}
    for lane in lanes:
        get(lane.actor.compiled.remote(found[hosts[lane.label]]))
