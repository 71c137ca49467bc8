"""Which cases may share a worker, and which of them a judge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ssmperf.engine import registry
from ssmperf.engine.cases.case import Case
from ssmperf.engine.plan.parts.outlines import source_entries
from ssmperf.errors import UnknownName


@dataclass(frozen=True, slots=True)
class Household:
    """The code that a worker holds: cases of one household may share a process.

    plugins: the plug-in files that it loads; None for all of the run's.
    guest: a backend of other people, which has the process to itself, since it may leave the process
        changed.
    judged_by: the plug-in files with the recurrence, model or definition by which its cases are judged, by a
        judge of their own; None if all of it is this package's.
    """

    plugins: tuple[str, ...] | None = ()
    guest: str = ""
    judged_by: tuple[str, ...] | None = None


def household(case: Case) -> Household:
    """Find the household of a case: the default one if all of its code is this package's."""
    try:
        backend = registry.backend(case.owner, case.backend)
    except UnknownName:  # in this process; its workers may know it
        return Household(None, case.backend)
    label = f"{backend.of}/{backend.name}"
    judged = [("recurrence", case.recurrence)]
    judged += [("model", case.model)] if case.model else []
    judged += source_entries(case)
    judged += [] if backend.equivalent else [("backend", label)]
    files = _plugins([("backend", label), ("suite", case.suite), *judged])
    judges = _plugins(judged) if any(registry.from_outside(*each) for each in judged) else None
    return Household(files, label if registry.foreign("backend", label) else "", judges)


def _plugins(entries: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(file for kind, name in entries for file in registry.plugins_of(kind, name)))
