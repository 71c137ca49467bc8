"""Shards: disjoint parts of a plan that take about equally long, for machines that share a run.

Every machine makes the whole plan and takes its part, so that they need not talk to each other. The parts
follow from declarations alone, never from what a machine has measured.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.plan.estimate import work_s
from ssmperf.engine.plan.plan import Plan, Planned
from ssmperf.engine.registry.presets import Training
from ssmperf.errors import UsageError

META = "shard"  # key in run.json


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a plan: number `index` of `count`, counted from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read the value of the option, such as 2/4."""
        index, _, count = text.partition("/")
        return cls(int(index), int(count))

    def to_json(self, plan: Plan) -> dict[str, Any]:
        """Describe the shard and the whole plan of which it is a part, for `run.json`."""
        return {"index": self.index, "count": self.count, "plan": fingerprint(plan), "cases": len(plan.cases)}

    def of(self, plan: Plan, leaders: Mapping[str, Case], training: Training | None) -> Plan:
        """Take this part of a plan, in the plan's order.

        Cases with the same operands stay together, also those for which one stands in. The longest such group
        goes to the part that is shortest so far, and so on. Cases that are not measured cost nothing.
        """
        groups: dict[Any, list[Planned]] = {}
        together = _together(plan, leaders)
        for each in plan.cases:
            groups.setdefault(together(each.case), []).append(each)
        costs = {key: work_s(_measured(group, leaders), training) for key, group in groups.items()}
        parts = [(0.0, number) for number in range(1, self.count + 1)]
        mine: set[Any] = set()
        for key in sorted(groups, key=lambda each: (-costs[each], groups[each][0].case.id)):
            spent, number = parts[0]
            if number == self.index:
                mine.add(key)
            heapq.heapreplace(parts, (spent + costs[key], number))
        return Plan(tuple(each for each in plan.cases if together(each.case) in mine), plan.workloads)


def part(plan: Plan, shard: str, leaders: Mapping[str, Case], training: Training | None = None) -> Plan:
    """Take the part of a plan that `--shard` names.

    leaders: by the id of a case, the one that is measured in its place. training: as for `expected_s`.
    """
    return Shard.parse(shard).of(plan, leaders, training)


def described(shard: str | None, whole: Plan) -> dict[str, Any]:
    """Describe the shard for `run.json`; nothing of a run without one."""
    return {} if shard is None else {META: Shard.parse(shard).to_json(whole)}


def resumed(shard: str | None, meta: Mapping[str, Any], folder: str) -> str | None:
    """Find the shard of a run that goes on: the one that it has.

    Raises:
        UsageError: another one is asked for.
    """
    before = meta.get(META)
    if not meta or (before is None and shard is None):
        return shard
    own = f"{before.get('index')}/{before.get('count')}" if isinstance(before, Mapping) else "no shard"
    if shard not in (None, own):
        raise UsageError(f"{folder} is of {own}, not of --shard {shard}: pass the same, or another --out")
    return own


def fingerprint(plan: Plan) -> str:
    """Name a plan by its cases, and by which of them it refuses."""
    lines = sorted(f"{each.case.id} {each.refusal is None}" for each in plan.cases)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _measured(group: Iterable[Planned], leaders: Mapping[str, Case]) -> list[Case]:
    return [each.case for each in group if each.refusal is None and each.case.id not in leaders]


def _together(plan: Plan, leaders: Mapping[str, Case]) -> Callable[[Case], Hashable]:
    """Make the function that names the group of a case: a case's operands, or those of its leader."""
    joined: dict[Hashable, Hashable] = {}

    def root(case: Case) -> Hashable:
        key: Hashable = (case.owner, case.operand_key)
        while key in joined:
            key = joined[key]
        return key

    for each in plan.cases:
        leader = leaders.get(each.case.id)
        if leader is not None and (own := root(each.case)) != (other := root(leader)):
            joined[own] = other
    return root
