"""Remarks that a reader needs next to the verdicts: contradictions, what is left out, a busy machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ssmperf.engine.cases.record import Record, Status, one_line
from ssmperf.engine.runs.rounds import fault
from ssmperf.engine.runs.store import Run, counted, planned, some

if TYPE_CHECKING:
    from ssmperf.engine.cases.case import Case
    from ssmperf.engine.runs.scope import Restriction

NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass
class Alarms:
    """Remarks that a reader needs before the verdicts on two runs.

    doubted: cases whose records contradict themselves, by the side, each in words.
    unasked: cases of the base run that the new run was not asked for.
    """

    doubted: dict[str, list[str]] = field(default_factory=dict)
    unasked: list[Case] = field(default_factory=list)

    def doubt(self, old: Record | None, now: Record, field: str | None) -> str | None:
        """Enter why a case's records cannot be believed, and say it in words; None if they can."""
        before = None if old is None else fault(old, field)
        work = {} if old is None or before else old.numbers
        found = {"new": fault(now, field, work)}
        if now.status is Status.OK:  # else its status has the verdict
            found["base"] = before
        for side, reason in found.items():
            if reason:
                self.doubted.setdefault(side, []).append(f"{one_line(str(now.case))}: {reason}")
        return next((f"in the {side} run, {reason}" for side, reason in found.items() if reason), None)

    @property
    def texts(self) -> tuple[str, ...]:
        """Say it in one line each, with the first three cases."""
        lines = [
            f"the {side} run's files contradict themselves in {counted(said)}, counted as lost: {some(said)}"
            for side, said in self.doubted.items()
        ]
        if self.unasked:
            named = some([one_line(str(case)) for case in self.unasked])
            lines.append(f"the new run was not asked for {counted(self.unasked)} of the base run: {named}")
        return tuple(lines)


def unfinished(new: Run, base: Run, restriction: Restriction) -> list[str]:
    """Say which runs ended before their plan."""
    found = []
    for name, run in (("new", new), ("base", base)):
        ids = {id_ for id_ in planned(run.meta) if restriction.keeps_id(id_)}
        if absent := len(ids - {record.case.id for record in run.records}):
            cases = f"{absent} of {len(ids)} planned cases"
            found.append(f"the {name} run is unfinished: {cases} are without a record")
    return found


def busy_cases(run: Run) -> dict[str, tuple[str, ...]]:
    """List the machine's other work while a case was timed, in any round, by the ids of such cases."""
    found = {record.case.id: texts(record.numbers.get("busy")) for record in run.records}
    return {case_id: busy for case_id, busy in found.items() if busy}


def busy_line(records: Sequence[Record]) -> str | None:
    """Sum up the machine's other work while cases were timed, as one line; None if it was idle.

    Texts that differ in a number only are shown as one, with the least and the largest number.
    """
    watched = [texts(record.numbers.get("busy")) for record in records if "busy" in record.numbers]
    count = sum(map(bool, watched))
    if not count:
        return None
    kinds: dict[str, list[str]] = {}
    cases: dict[str, int] = {}
    for busy in watched:
        own = [NUMBER.sub("#", text) for text in busy]
        for kind, text in zip(own, busy, strict=True):
            kinds.setdefault(kind, []).append(text)
        for kind in dict.fromkeys(own):
            cases[kind] = cases.get(kind, 0) + 1
    parts = [
        _range(kinds[kind]) + (f" ({cases[kind]})" if len(kinds) > 1 else "")
        for kind in sorted(kinds, key=lambda kind: (-cases[kind], kind))
    ]
    return f"busy: {'; '.join(parts)}, during {count} of {len(watched)} cases"


def texts(value: Any) -> tuple[str, ...]:
    """Read a record's `busy`, whatever a file has in its place."""
    return tuple(one_line(text) for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def _range(alike: Sequence[str]) -> str:
    """Merge texts that differ in numbers: each differing number becomes `LEAST to LARGEST`."""
    columns = [sorted(set(column), key=float) for column in zip(*map(NUMBER.findall, alike), strict=True)]
    numbers = iter(column[0] if len(column) == 1 else f"{column[0]} to {column[-1]}" for column in columns)
    return NUMBER.sub(lambda match: next(numbers), alike[0])
