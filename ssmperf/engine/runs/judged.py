"""Lengths at which suites judged that rank nothing, where a run chose them: kernels break at others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ssmperf.engine import registry
from ssmperf.engine.cases.calls.packing import UNPACKED, lengths_of
from ssmperf.engine.cases.case import MODEL, Case
from ssmperf.engine.cases.record import Status
from ssmperf.engine.plan.selection import NAMED, OWN, is_regime
from ssmperf.engine.runs.scope import AXES, Restriction, selection_of, values_of
from ssmperf.engine.runs.store import Run

if TYPE_CHECKING:
    from ssmperf.comparison.outcome import Pair


def judged_lines(runs: Iterable[Run]) -> list[str]:
    """Say at which lengths alone suites judged that rank nothing, where a run chose them."""
    lines = []
    for run in runs:
        if _chose_lengths(run):
            by_suite: dict[str, list[Case]] = {}
            for cases in _judged(run):
                by_suite.setdefault(cases[0].suite, []).extend(cases)
            lines += [f"{name}: judged at {_lengths_text(cases)} only" for name, cases in by_suite.items()]
    return list(dict.fromkeys(lines))


def with_doubt(pairs: Iterable[Pair], base: Run, new: Run, restriction: Restriction) -> list[Pair]:
    """Make pairs ambiguous whose kernels were judged at even lengths alone, which tiles may divide.

    A block size ± 1 is odd as well. Nothing changes where neither run chose lengths, or where the comparison
    is of cases that are named.
    """
    only: dict[str, str] = {}
    if not restriction.cases and any(map(_chose_lengths, (base, new))):
        for cases in _judged(new):
            if not any(length > 1 and length % 2 for case in cases for length in _lengths(case)):
                only |= dict.fromkeys((case.id for case in cases), _lengths_text(cases))
    return [
        replace(pair, verdict="ambiguous", reason=_doubt(only[pair.case.id], pair.reason))
        if pair.verdict in ("same", "new", "mended") and pair.case.id in only
        else pair
        for pair in pairs
    ]


def _doubt(lengths: str, earlier: str | None) -> str:
    advice = f"judged at {lengths} only, and at no odd length above 1: leave T out, or name an odd one"
    return f"{advice}; {earlier}" if earlier else advice


def _chose_lengths(run: Run) -> bool:
    """Tell whether a run chose the lengths at which suites judge, as far as it says what was asked for."""
    selection = selection_of(run)
    if selection is None:
        return False
    packed = selection["axes"].get("packing", [UNPACKED]) != [UNPACKED]
    return packed or ("T" in selection["sizes"] and selection.get("judged_at", NAMED) != OWN)


def _judged(run: Run) -> Iterable[list[Case]]:
    """List the cases on sampled operands that judge, together where they differ in their shape alone."""
    found: dict[tuple[Any, ...], list[Case]] = {}
    others = [name for name in AXES if name not in ("shape", "packing")]
    for record in run.records:
        case = record.case
        sampled = case.operand_source == MODEL or is_regime(case.operand_source)
        if sampled and not case.decodes and record.status is not Status.UNSUPPORTED:
            found.setdefault(values_of(case, others), []).append(case)
    return [cases for cases in found.values() if _judges(cases[0].suite, run)]


def _judges(suite: str, run: Run) -> bool:
    """Tell whether a suite judges, as it is installed here; if it is not, by the run's section of it."""
    installed = registry.suites().get(suite)
    if installed is not None:
        return bool(installed.section.judges)
    sections = run.meta.get("suites")
    section = sections.get(suite) if isinstance(sections, Mapping) else None
    return not (isinstance(section, Mapping) and (section.get("rank") or section.get("lengths")))


def _lengths(case: Case) -> tuple[int, ...]:
    """List the lengths of a case's sequences."""
    return lengths_of(case.packing) or (case.shape["T"],)


def _lengths_text(cases: Iterable[Case]) -> str:
    """Write the lengths of cases, as in "T = 64, 512"; those of packed sequences by their packing."""
    cases = list(cases)
    texts = dict.fromkeys(f"packing {case.packing}" for case in cases if case.packing != UNPACKED)
    plain = sorted({case.shape["T"] for case in cases if case.packing == UNPACKED})
    return " and ".join([*([f"T = {', '.join(map(str, plain))}"] if plain else []), *texts])
