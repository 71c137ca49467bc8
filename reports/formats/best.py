"""The fastest backend that is right: per model, shape, dtype and pass, or per phase of a layer in use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from ssmperf import UsageError
from ssmperf.suitekit import BestQuestion, narrowed, of_workloads, report

from ..delivery import deliver
from ..rows import frames, ranking, units
from ..rows.answers import PhaseAnswer, answers
from ..rows.contests import Contest, contests, mark_older, of_passes, rank_by_a_time
from ..rows.needs import Need, needs, needs_of
from ..views.texts.answers import cards, memory, sentences
from ..views.winners import HEADINGS, NUMBERS, remarks, rows
from .tables import terminal_text

if TYPE_CHECKING:
    from ssmperf import Run

MOST_REMARKS = 40
MOST_SENTENCES = 12  # more contests are a table


@report("table", of="best")
def answer(question: BestQuestion, destination: Path | None = None) -> str | None:
    """Answer a question in sentences, or in a table if it names nothing or has many answers."""
    if question.workloads is not None:
        return _deliver_cards(*phases_and_needed(question), destination)
    found, needed = timed_and_needed(question)
    if not needed and not few(question, found):
        return _deliver_table(question.runs, found, destination)
    texts = [Text(text, no_wrap=True) for text in (*sentences(found), *memory(needed))]
    below = _remarks([each for each in found if not each["older"]])
    return deliver(terminal_text([*texts, *below], plain=destination is not None), destination)


@report("json", of="best")
def answer_json(question: BestQuestion, destination: Path | None = None) -> str | None:
    """Give the answer as JSON, a list of objects; `ssmperf.best` gives the same list. Memory comes last."""
    timed: Sequence[Any]
    if question.workloads is not None:
        found, needed = phases_and_needed(question)
        timed = [each.to_json() for each in found]
    else:
        timed, needed = timed_and_needed(question)
    return _deliver_json([*timed, *(each.to_json() for each in needed)], destination)


@report("best")
def best(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show one line per comparison: the fastest backend, its time, and the next one that is slower.

    "Fastest" is a claim about a backend: it competes only if it is wrong in no pass of that place, nor in
    correctness. One that is approximate by declaration or computes another function stands beside, marked;
    those near the winner whose intervals overlap share the place. A time with more around the native call
    than a change of layout has that added; one beyond the machine's limit never wins. Where forward and
    backward have different winners, a line has their sum.
    """
    return _deliver_table(runs, contests(runs), destination)


@report("best_json")
def best_json(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Give the contests as JSON, a list of objects; `ssmperf.best` gives the same list."""
    return _deliver_json(contests(runs), destination)


@report("workloads")
def workloads(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show, by phase, the fastest backend that is right, by how much, its memory, and its limit."""
    return _deliver_cards(_answers(runs), (), destination)


def _deliver_cards(
    found: Sequence[PhaseAnswer], needed: Sequence[Need], destination: Path | None
) -> str | None:
    parts = cards(found)
    if not parts:
        return deliver("no timed case of these runs belongs to a workload\n", destination)
    texts = [Text(), *map(Text, memory(needed))] if needed else []
    return deliver(terminal_text([*parts, *texts], plain=destination is not None), destination)


def phases_and_needed(question: BestQuestion) -> tuple[list[PhaseAnswer], list[Need]]:
    """List the answers about the workloads that a question names, and the memory that they need."""
    found = _answers(of_workloads(question.runs, question.workloads or ()))
    return found, needs_of([each for each in found if not each.contest["older"]], question.runs)


def few(question: BestQuestion, found: Sequence[Contest]) -> bool:
    """Tell whether a question is answered in sentences: it names what it wants, and few contests have it."""
    return question.narrow and 0 < sum(not each["older"] for each in found) <= MOST_SENTENCES


def timed_and_needed(question: BestQuestion) -> tuple[list[Contest], list[Need]]:
    """List the contests that a question is about, and the memory needed at the lengths that it names.

    Raises:
        UsageError: no case has the sizes, and no memory can be forecast there.
    """
    needed = needs(question)
    try:
        return asked(question), needed
    except UsageError:
        if not needed:
            raise
        return [], needed


def asked(question: BestQuestion) -> list[Contest]:
    """List the contests that a question is about."""
    runs = narrowed(question.runs, question.models, question.sizes, question.dtypes)
    found = contests(runs)
    if question.passes is None:
        return found
    chosen = of_passes(found, question.passes)
    mark_older(chosen)
    return chosen


def _answers(runs: Sequence[Run]) -> list[PhaseAnswer]:
    return answers(runs, ranking.parts(runs, frames.frame(runs)))


def _deliver_table(runs: Sequence[Run], found: Sequence[Contest], destination: Path | None) -> str | None:
    if not found:
        none = "no timed case of these runs is ok"
        if not rank_by_a_time(runs):
            none = "no suite of these runs ranks by a time (ssmperf run --suite throughput does)"
        return deliver(f"{none}\n", destination)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in HEADINGS:
        justify: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        grid.add_column(heading, no_wrap=heading != "beside", overflow="fold", justify=justify)
    for first, *rest in rows(found):
        grid.add_row(Text(first, style="cyan"), *map(Text, rest))
    parts = [grid, *_remarks(found)]
    return deliver(terminal_text(parts, plain=destination is not None), destination)


def _remarks(found: Sequence[Contest]) -> list[Text]:
    below = [Text(text, style="dim") for text in remarks(found)]
    if len(below) > MOST_REMARKS:
        more = Text(f"and {len(below) - MOST_REMARKS} more remarks: --json has them all", style="dim")
        below[MOST_REMARKS:] = [more]
    return below


def _deliver_json(found: Sequence[Any], destination: Path | None) -> str | None:
    return deliver(json.dumps(units.as_json(found), indent=2, allow_nan=False) + "\n", destination)
