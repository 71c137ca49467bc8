"""Contests by the choices of a page's first screen: model or workload, T, dtype and pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..rows.answers import PhaseAnswer
from ..rows.contests import PARTS, SUM, Contest, by_sum

_PASSES = (*PARTS, SUM)  # other passes follow


@dataclass(frozen=True, slots=True)
class Choice:
    """A combination of choices, and its contests: those of the newest run first.

    name: a model or a workload. T: None if the cases have no length. pass_: a pass of a model, or a phase of
    a workload.
    """

    name: str
    workload: bool
    T: int | None
    dtype: str
    pass_: str
    found: list[Contest] = field(default_factory=list)


def choices(found: Iterable[Contest], answers: Iterable[PhaseAnswer]) -> list[Choice]:
    """List the choices, workloads first. Each model has the sum of both passes where both were timed."""
    listed: dict[tuple[str, bool, int | None, str, str], Choice] = {}
    named = [
        *((contest["subject"], False, contest["pass"], contest) for contest in _with_sums(found)),
        *((answer.workload, True, answer.phase, answer.contest) for answer in answers),
    ]
    for name, workload, pass_, contest in sorted(named, key=lambda each: str(each[3]["date"]), reverse=True):
        key = (name, workload, contest["sizes"].get("T"), contest["dtype"], pass_)
        listed.setdefault(key, Choice(*key)).found.append(contest)
    return sorted(listed.values(), key=_order)


def _with_sums(found: Iterable[Contest]) -> list[Contest]:
    """Add the contest by the sum of forward and backward to each place that lacks it."""
    places: dict[str, dict[str, Contest]] = {}
    for contest in found:
        axes = (contest[name] for name in ("suite", "run", "where", "subject", "shape", "dtype", "axes"))
        places.setdefault(repr([*axes]), {})[contest["pass"]] = contest
    for passes in places.values():
        if passes.keys() >= {*PARTS}:
            passes.setdefault(SUM, by_sum(passes))
    return [contest for passes in places.values() for contest in passes.values()]


def _order(choice: Choice) -> tuple[bool, str, int, str, int, str]:
    pass_ = _PASSES.index(choice.pass_) if choice.pass_ in _PASSES else len(_PASSES)
    return (not choice.workload, choice.name, choice.T or 0, choice.dtype, pass_, choice.pass_)
