"""The cases of a run that were timed while the machine was busy with something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ssmperf.cases.record import Record, one_line
from ssmperf.runs.store import Run

NUMBER = re.compile(r"\d+(?:\.\d+)?")


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
