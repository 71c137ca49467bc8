"""The driver's side of a cluster, with actors that are made up: what is lost, what is late, what fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from ssmperf import Case, Record, Shape, Status, WorkerFailed
from ssmperf.engine.execute.cluster.lanes import LOST, NODE, Pool, RemoteLane
from ssmperf.engine.execute.executor import run_lanes
from ssmperf.engine.execute.lane import Events

CASES = [Case("throughput", "scan", "sequential", Shape(B=1, T=T, C=1), None) for T in range(1, 9)]
GROUPS = [CASES[:2], CASES[2:4], CASES[4:6], CASES[6:]]


class NodeDied(Exception):
    """As Ray's, when an actor or its node is gone."""


class Remote:
    """A method of an actor, called as Ray does."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def options(self, **_: Any) -> Remote:
        return self

    def remote(self, *given: Any) -> Any:
        return self.method(*given)


class Actor:
    """Runs cases at once. dies_after: how many records it gives before its node is lost.

    late: whether it also answers for an attempt that was given up.
    """

    def __init__(self, dies_after: int | None = None, *, late: bool = False, forgets: bool = False) -> None:
        self.left, self.late, self.forgets = dies_after, late, forgets
        self.ran: list[Case] = []
        self.run, self.end_round = Remote(self._run), Remote(lambda: None)

    def _run(self, attempt: str, group: Sequence[Case]) -> Iterator[Any]:
        yield attempt, "environment", ("env", {"ceilings": {}})
        for case in group[: -1 if self.forgets else None]:
            if self.left == 0:
                raise NodeDied
            self.left = None if self.left is None else self.left - 1
            self.ran.append(case)
            if self.late:
                yield "earlier", "record", (Record(case, Status.WRONG, "late", "env"),)
            yield attempt, "start", (case, "cpu")
            yield attempt, "record", (Record(case, Status.OK, None, "env"),)


def ran(*actors: Actor) -> tuple[list[Record], Pool]:
    """Run all groups on lanes of these actors."""
    records: list[Record] = []
    stop = threading.Event()
    lanes = [
        RemoteLane(actor, f"n{number}", lost=(NodeDied,), get=lambda found: found, kill=lambda actor: None)
        for number, actor in enumerate(actors)
    ]
    pool = Pool(GROUPS, stop)
    events = Events(lambda *_: None, lambda *_: None, records.append)

    def start(lane: RemoteLane) -> None:
        threading.Thread(target=partial(lane.guarded_run, pool, events, stop), daemon=True).start()

    run_lanes(lanes, start, stop)
    return records, pool


def test_every_case_has_one_record_of_the_node_that_ran_it() -> None:
    actors = Actor(), Actor(late=True)
    records, pool = ran(*actors)
    assert sorted(record.case.id for record in records) == sorted(case.id for case in CASES)
    assert {record.status for record in records} == {Status.OK} and not pool.unfinished
    by_node = {f"n{number}": {case.id for case in actor.ran} for number, actor in enumerate(actors)}
    assert all(record.case.id in by_node[record.numbers[NODE]] for record in records)


@pytest.mark.parametrize("dies_after", [0, 1, 3])
def test_the_cases_of_a_lost_node_run_elsewhere_once(dies_after: int) -> None:
    records, pool = ran(Actor(dies_after), Actor())
    assert sorted(record.case.id for record in records) == sorted(case.id for case in CASES)
    assert {record.status for record in records} == {Status.OK} and not pool.unfinished


def test_a_case_whose_nodes_are_lost_twice_is_a_crash() -> None:
    first, second, third = Actor(0), Actor(0), Actor()
    records, pool = ran(first, second, third)
    assert sorted(record.case.id for record in records) == sorted(case.id for case in CASES)
    crashed = [record for record in records if record.status is Status.CRASH]
    assert all(record.reason == LOST for record in crashed) and len(crashed) <= 2 and not pool.unfinished


def test_what_no_node_is_left_for_stays_unfinished() -> None:
    records, pool = ran(Actor(1))
    assert len(records) == 1 and pool.unfinished == len(CASES) - 1


def test_a_node_that_ends_without_its_records_is_an_error() -> None:
    with pytest.raises(WorkerFailed, match="n0 has ended without 1 of 2 records"):
        ran(Actor(forgets=True))
