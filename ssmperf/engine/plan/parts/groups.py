"""Groups of cases that one worker runs after another, since they share operands, and their order."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Sequence

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.shape import RUN_TIME
from ssmperf.engine.plan.estimate import work_s
from ssmperf.engine.plan.parts.household import Household, household
from ssmperf.engine.plan.refusal import gate_kind


def needs_fresh_process(case: Case) -> bool:
    """Tell whether a case must run in a process that has run no other; such cases run last."""
    return case.device in registry.suite(case.suite).fresh_process


def groups_of(cases: Iterable[Case], shuffle: random.Random | None) -> Iterator[list[Case]]:
    """Group cases by their operands. One worker runs a whole group.

    Groups whose cases need a process each come last, and those of one household stand together.
    """
    places: dict[Household, float] = {}
    keyed = [(needs_fresh_process(case), household(case), case) for case in cases]
    for _, own, _ in keyed:
        places.setdefault(own, len(places) if own != Household() else -1)
    if shuffle is not None:
        places = {own: shuffle.random() for own in places}
    grouped: dict[tuple[object, ...], list[Case]] = {}
    order: dict[tuple[object, ...], tuple[bool, float, float]] = {}
    for fresh, own, case in sorted(keyed, key=lambda each: (each[0], places[each[1]])):
        key = _group(case)
        grouped.setdefault(key, []).append(case)
        order.setdefault(key, (fresh, places[own], shuffle.random() if shuffle else len(order)))
    for key in sorted(grouped, key=lambda key: order[key]):
        if shuffle is not None:
            shuffle.shuffle(grouped[key])
        yield grouped[key]


def longest_first(groups: Iterable[Sequence[Case]]) -> list[Sequence[Case]]:
    """Order groups for several devices, so that none is left with a long one at the end.

    Groups whose cases need a process each still come last.
    """
    return sorted(groups, key=lambda group: (needs_fresh_process(group[0]), -work_s(group)))


def _group(case: Case) -> tuple[object, ...]:
    """Give the key of the group to which a case belongs. One worker runs a whole group, to share operands."""
    return (case.id,) if needs_fresh_process(case) else (household(case), case.operand_key)


def kernels_of(case: Case) -> Hashable:
    """Name what backends compile for a case: other values of the same kind need nothing new."""
    return household(case), case.recurrence, gate_kind(case), case.dtype, case.model is None


def loads_of(case: Case) -> Hashable:
    """Name what a lane loads for a case: kernels are compiled for some sizes. See `longest_first`."""
    sizes = tuple((letter, size) for letter, size in case.shape.items() if letter not in RUN_TIME)
    return needs_fresh_process(case), kernels_of(case), sizes
