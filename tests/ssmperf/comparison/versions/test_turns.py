"""Rounds in turns: the same case of both versions together, whatever one of them has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ssmperf.comparison.versions.side_process import Turn
from ssmperf.comparison.versions.turns import can_take_turns, run_in_turns
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.shape import Shape


def case(seed: int, device: str = "cpu") -> Case:
    shape = Shape({"B": 1, "T": 64, "C": 4})
    return Case(
        suite="throughput", recurrence="scan", backend="blelloch", shape=shape, seed=seed, device=device
    )


class Measured:
    """A side whose cases take their turns; `log` has them in the order in which they were measured.

    alternates: whether it can take samples of a case in turns. begun: the pairs in which it did, as (number
    of the pair, whether this side was first, id of the case).
    """

    def __init__(
        self, name: str, log: list[tuple[str, str]], has: Sequence[str] = (), *, alternates: bool = False
    ) -> None:
        self.name, self.log, self.has = name, log, has
        self.takes_turns, self.alternates, self.cases = True, alternates, {"a": case(1)}
        self.begun: list[tuple[int, bool, str]] = []
        self.todo: list[str] = []
        self.measured = 0

    def begin_round(self, number: int, ids: Sequence[str]) -> Turn | None:
        self.todo, self.measured = [id_ for id_ in ids if id_ not in self.has], 0
        return self.next()

    def take_turn(self) -> Turn | None:
        self.log.append((self.name, self.todo.pop(0)))
        self.measured += 1
        return self.next()

    def begin_turn(self, pair: int, *, first: bool) -> None:
        self.begun.append((pair, first, self.todo[0]))

    def end_turn(self) -> Turn | None:
        return self.take_turn()

    def next(self) -> Turn | None:
        return Turn(self.todo[0], len(self.todo)) if self.todo else None


IDS = [f"case {number}" for number in range(40)]
HAS = {"base": IDS[:10], "new": IDS[:2]}  # before the round


def in_turns(
    base: Sequence[str] = (), new: Sequence[str] = ()
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Measure a round of which either side has some cases already."""
    log: list[tuple[str, str]] = []
    sides: Any = {"base": Measured("base", log, base), "new": Measured("new", log, new)}
    return log, run_in_turns(sides, 3, {"base": IDS, "new": IDS}, "seed")


def test_both_versions_measure_a_case_before_either_measures_the_next() -> None:
    log, measured = in_turns()
    assert [id_ for _, id_ in log] == [id_ for id_ in IDS for _ in range(2)]
    assert all({log[at][0], log[at + 1][0]} == {"base", "new"} for at in range(0, len(log), 2))
    assert measured == {"base": 40, "new": 40}


def test_who_is_first_is_drawn_for_each_case_and_again_when_resumed() -> None:
    log, _ = in_turns()
    first = [name for name, _ in log[::2]]
    assert 10 < first.count("base") < 30
    assert in_turns()[0] == log


@pytest.mark.parametrize(
    ("base", "new"), [(IDS[:1], []), ([], IDS[:3]), (IDS, []), ([], IDS), (IDS[4:7], IDS[:2]), (IDS, IDS)]
)
def test_what_one_version_has_already_is_run_by_the_other_alone(
    base: Sequence[str], new: Sequence[str]
) -> None:
    log, measured = in_turns(base, new)
    assert sorted(log) == sorted(
        [("base", id_) for id_ in IDS if id_ not in base] + [("new", id_) for id_ in IDS if id_ not in new]
    )
    assert measured == {"base": 40 - len(base), "new": 40 - len(new)}
    shared = [id_ for id_ in IDS if id_ not in base and id_ not in new][-30:]
    places = {step: at for at, step in enumerate(log)}
    assert all(abs(places["base", id_] - places["new", id_]) == 1 for id_ in shared)


def test_only_versions_that_know_how_take_turns_and_only_on_cpus() -> None:
    sides: Any = {"base": Measured("base", []), "new": Measured("new", [])}
    assert can_take_turns(sides)
    sides["new"].cases["b"] = case(2, "cuda:0")
    assert not can_take_turns(sides)
    del sides["new"].cases["b"]
    sides["base"].takes_turns = False
    assert not can_take_turns(sides)


def test_both_versions_begin_a_case_together_if_both_know_how() -> None:
    sides: Any = {name: Measured(name, [], has, alternates=True) for name, has in HAS.items()}
    run_in_turns(sides, 3, {"base": IDS, "new": IDS}, "seed")
    base, new = sides["base"].begun, sides["new"].begun
    assert [id_ for *_, id_ in base] == [id_ for *_, id_ in new] == IDS[10:]
    assert [pair for pair, *_ in base] == [pair for pair, *_ in new] and len(
        {pair for pair, *_ in base}
    ) == 30
    assert all(mine[1] != theirs[1] for mine, theirs in zip(base, new, strict=True))
    assert 7 < sum(first for _, first, _ in base) < 23
    assert [len(sides[name].log) for name in HAS] == [30, 38]
    again: Any = {name: Measured(name, [], alternates=True) for name in HAS}
    run_in_turns(again, 4, {"base": IDS, "new": IDS}, "seed")
    assert not {pair for pair, *_ in again["base"].begun} & {pair for pair, *_ in base}


@pytest.mark.parametrize("older", ["base", "new"])
def test_with_an_older_version_whole_cases_take_turns(older: str) -> None:
    log: list[tuple[str, str]] = []
    sides: Any = {name: Measured(name, log, alternates=name != older) for name in ("base", "new")}
    run_in_turns(sides, 3, {"base": IDS, "new": IDS}, "seed")
    assert sides["base"].begun == sides["new"].begun == []
    assert [id_ for _, id_ in log] == [id_ for id_ in IDS for _ in range(2)]
