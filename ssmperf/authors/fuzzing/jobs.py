"""Cases that lanes run in their threads, and the records that the session's thread waits for."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import Record, Status

T = TypeVar("T")
MOST_HANGS = 2  # of a backend, before its other cases that have begun are dropped
LOOK_EVERY_S = 0.2  # at lanes that may have failed


class Jobs:
    """Groups of cases that wait for a lane. It is a `CaseSource` of lanes.

    check: raises the error of a lane that has failed.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.check = check
        self._changed = threading.Condition()
        self._groups: deque[Sequence[Case]] = deque()
        self._open = True
        self._missing: set[str] = set()
        self._found: list[Record] = []
        self._hangs: Counter[tuple[str, str]] = Counter()

    def take(self, last: Sequence[Case] = ()) -> Sequence[Case]:
        """Wait for a group and take it; empty if the session has ended."""
        with self._changed:
            while self._open and not self._groups:
                self._changed.wait()
            return self._groups.popleft() if self._groups and self._open else ()

    def done(self, record: Record) -> None:
        """Note the record of a case that a lane has run."""
        with self._changed:
            self._missing.discard(record.case.id)
            self._found.append(record)
            if record.status is Status.TIMEOUT:
                self._note_hang(record.case)
            self._changed.notify_all()

    def begin(self, groups: Iterable[Sequence[Case]]) -> None:
        """Have groups run, after those before have ended."""
        with self._changed:
            self._groups.extend(groups)
            self._missing = {case.id for group in self._groups for case in group}
            self._found = []
            self._hangs.clear()
            self._changed.notify_all()

    def records(self, ends_s: float = float("inf")) -> list[Record]:
        """Wait for the records of the groups that have begun; those still waiting at `ends_s` are dropped.

        So are those of a backend that hangs.

        ends_s: by the clock `time.monotonic`.
        """
        with self._changed:
            while self._missing:
                self._changed.wait(LOOK_EVERY_S)
                self.check()
                if time.monotonic() >= ends_s:
                    self._drop(self._groups)
            return self._found

    def close(self) -> None:
        """Let lanes end."""
        with self._changed:
            self._open = False
            self._groups.clear()
            self._changed.notify_all()

    def _note_hang(self, case: Case) -> None:
        place = case.owner, case.backend
        self._hangs[place] += 1
        if self._hangs[place] >= MOST_HANGS:
            self._drop([group for group in self._groups if (group[0].owner, group[0].backend) == place])

    def _drop(self, groups: Iterable[Sequence[Case]]) -> None:
        dropped = {case.id for group in groups for case in group}
        self._missing -= dropped
        self._groups = deque(group for group in self._groups if group[0].id not in dropped)


def in_turn(streams: Iterable[Iterable[T]]) -> Iterator[T]:
    """Take one item of each stream in turn, until all have ended."""
    left = [iter(stream) for stream in streams]
    while left:
        for stream in tuple(left):
            try:
                yield next(stream)
            except StopIteration:
                left.remove(stream)
