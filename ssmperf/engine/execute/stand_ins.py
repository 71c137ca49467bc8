"""Stand-ins: a case that is measured for those of other models whose operands have the same specs.

A kernel that sees only shapes and dtypes takes the same time for `rg_lru` and `mingru`. In a suite that
declares `same_operands`, such models are measured once if all models are measured, and the record is shown
under each name; `timed_as` says under which it was measured. Whether a backend is right for a model is for
`correctness` to answer. Models that are named, and backends from outside, are always measured.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import replace

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.record import SPENT, Record, Status
from ssmperf.engine.operands.build import operand_specs
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.plan.plan import Plan
from ssmperf.engine.plan.selection import Selection

TIMED_AS = "timed_as"  # the model under whose name a record was measured


class StandIns:
    """The cases of a plan that stand in for others."""

    def __init__(self, plan: Plan, selection: Selection) -> None:
        self.followers: dict[str, list[Case]] = {}
        self.leaders: dict[str, Case] = {}
        if selection.models is not None:
            return
        firsts: dict[Hashable, Case] = {}
        for case in plan.to_run:
            if (key := _key(case)) is None:
                continue
            first = firsts.setdefault(key, case)
            if first is not case:
                self.followers.setdefault(first.id, []).append(case)
                self.leaders[case.id] = first

    def __bool__(self) -> bool:
        return bool(self.leaders)

    def measured(self, cases: Iterable[Case]) -> list[Case]:
        """Leave out the cases for which another one stands in."""
        return [case for case in cases if case.id not in self.leaders]

    def left(self, cases: Iterable[Case], ended: Container[str]) -> list[Case]:
        """List the cases whose stand-in is among those that were not ok: they are measured after all.

        ended: ids of these.
        """
        return [case for case in cases if case.id in self.leaders and self.leaders[case.id].id in ended]

    def copies(self, record: Record, options: Sequence[str]) -> list[Record]:
        """Make the records of the cases for which a record's case stands in; none if it is not ok.

        options: those of the run, for the commands that repeat cases.
        """
        if record.status is not Status.OK:
            return []
        return [
            replace(
                record,
                case=case,
                numbers={
                    **record.numbers,
                    "command": command_that_repeats(case, options),
                    TIMED_AS: record.case.model,
                    SPENT: 0.0,
                },
            )
            for case in self.followers.get(record.case.id, ())
        ]


def _key(case: Case) -> Hashable:
    """Give a key shared by cases that are the same to a kernel; None for a case of its own."""
    suite = registry.suite(case.suite)
    if not suite.same_operands or case.model is None or case.level != "op" or case.operand_source != "model":
        return None
    backend = registry.backend(case.owner, case.backend)
    label = f"{backend.of}/{backend.name}"
    if backend.of != case.recurrence or registry.foreign("backend", label):
        return None
    if registry.foreign("model", case.model):
        return None
    return replace(case, model=None), operand_specs(case.model, case.shape)
