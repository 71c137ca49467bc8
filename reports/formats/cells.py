"""Results in a cell of a notebook: runs, comparisons and the fastest backends as short HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ssmperf import RunComparison
from ssmperf.suitekit import BestQuestion, report

from ..delivery import deliver
from ..rows import frames, units
from ..rows.contests import Contest, contests
from ..views import winners
from ..views.texts import comparison as texts
from ..views.texts.answers import by_workload, lines, memory, sentences
from .best import few, phases_and_needed, timed_and_needed

if TYPE_CHECKING:
    from ssmperf import Run

MOST_ROWS = 30
FAULTS = ("backend", "subject", "shape", "dtype", "pass", "status", "reason")


@report("cell")
def runs(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show how the cases of runs ended, the fastest backends, and the cases that failed."""
    table = frames.frame(runs)
    counts = ", ".join(f"{count:,} {status}" for status, count in frames.status_counts(table).items())
    names = ", ".join(frames.run_names(runs))
    failed = table[~table["status"].isin(["ok", "unsupported"])]
    faults = [[units.plain(row[name]) for name in FAULTS] for row in frames.records(failed)]
    parts = [f"<p><b>{escape(names)}</b>: {escape(counts)}</p>", _winners(contests(runs))]
    return deliver("".join([*parts, _table(FAULTS, faults)]), destination)


@report("cell", of="comparison")
def comparison(found: RunComparison, destination: Path | None = None) -> str | None:
    """Show the conclusion, and the pairs that people act on first."""
    listed = texts.listing(found)
    rows = [[*texts.named(pair), *texts.numbers(pair), units.plain(pair.reason)] for pair in listed.pairs]
    head = [f"<p><b>{escape(units.plain(found.conclusion))}</b></p>", *_lines(texts.alarms(found))]
    below = _lines([*listed.sums, *texts.means(found), *texts.remarks(found)])
    return deliver("".join([*head, _table((*texts.NAMED, *texts.NUMBERS, "why"), rows), *below]), destination)


@report("cell", of="best")
def best(question: BestQuestion, destination: Path | None = None) -> str | None:
    """Answer a question about the fastest backends in sentences, or in a table of many."""
    if question.workloads is not None:
        found, needed = phases_and_needed(question)
        parts = [_titled(name, lines(answers)) for name, answers in by_workload(found).items()]
        return deliver("".join([*parts, *_lines(memory(needed))]), destination)
    contests, needed = timed_and_needed(question)
    told = [*sentences(contests), *memory(needed)]
    shown = "".join(_lines(told)) if needed or few(question, contests) else _winners(contests)
    return deliver(shown or "<p>no timed case of these runs is ok</p>", destination)


def _titled(name: str, texts: Iterable[tuple[str, str]]) -> str:
    return f"<p><b>{escape(name)}</b></p>{_table((), texts)}"


def _winners(found: Sequence[Contest]) -> str:
    return _table(winners.HEADINGS, winners.rows(found))


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"<p>{escape(text)}</p>" for text in texts]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of texts from outside, or nothing if it has no rows; of many rows, the first."""
    listed = list(rows)
    if not listed:
        return ""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed[:MOST_ROWS])
    more = f"<p>and {len(listed) - MOST_ROWS:,} more rows</p>" if len(listed) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(text: str) -> str:
    lines = "<br>".join(map(escape, text.splitlines()))
    return f'<td style="text-align: left">{lines}</td>'
