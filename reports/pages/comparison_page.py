"""The page of a comparison: the conclusion, the ratios as a chart, and one table row per case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmperf import Case, Pair, RunComparison
from ssmperf.suitekit import VERDICTS, report

from ..delivery import deliver
from ..rows import frames, units
from ..views.texts import comparison as texts
from . import case_tables
from .case_tables import Column, number_cell
from .html import render, run_views

_USUAL = ("suite", "recurrence", "model", "backend", "shape", "dtype", "pass_")
_OTHERS = tuple(field.name for field in dataclasses.fields(Case) if field.name not in _USUAL)


@report("html", of="comparison")
def html(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same runs give the same bytes."""
    page, data = _page(comparison)
    scripts = ("table.js", "ratios.js") if page["charts"] else ("table.js",)
    return deliver(render("comparison.html", page, data, scripts, plots=bool(page["charts"])), destination)


def _page(comparison: RunComparison) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the data of the page's template, and those of its scripts."""
    runs = [comparison.base, comparison.new]
    columns = _columns(comparison)
    charts = _charts(comparison)
    values = {column.name: sorted(set(column.cells)) for column in columns[: len(texts.NAMED)]}
    return {
        "title": units.plain(comparison.conclusion),
        "heading": " → ".join(frames.run_names(runs)),
        "runs": run_views(runs, frames.frame(runs)),
        "conclusion": units.plain(comparison.conclusion),
        "alarms": texts.alarms(comparison),
        "commands": texts.commands(comparison),
        "counts": comparison.counts,
        "meanings": VERDICTS,
        "sums": [(text.partition(":")[0], text) for text in texts.listing(comparison).sums],
        "remarks": texts.remarks(comparison),
        "means": _means(comparison),
        "charts": [chart["title"] for chart in charts],
        "columns": columns,
        "count": len(comparison.pairs),
        "filters": [(axis, axis, found) for axis, found in values.items() if len(found) > 1],
    }, {
        "cases-1": case_tables.table(columns, [units.plain(pair.reason) for pair in comparison.pairs]),
        "details-1": case_tables.details(_details(comparison)),
        "ratios": charts,
    }


def _columns(comparison: RunComparison) -> list[Column]:
    """Give the columns that name the cases, those of their numbers, the cases' ids, and `reason`."""
    pairs = comparison.pairs
    varying = [name for name in _OTHERS if len({getattr(pair.case, name) for pair in pairs}) > 1]
    named = [
        [*texts.named(pair), *(units.plain(getattr(pair.case, name)) for name in varying)] for pair in pairs
    ]
    numbers = [_numbers(pair) for pair in pairs]
    return [
        *(
            Column(name, units.label(name) if name in varying else name, [line[place] for line in named])
            for place, name in enumerate((*texts.NAMED, *varying))
        ),
        *(
            Column(name, name, [line[place] for line in numbers], number=True)
            for place, name in enumerate((*texts.NUMBERS, "least change"))
        ),
        Column("case", "case", [comparison.short_id(pair) for pair in pairs]),
        Column("reason", "why", [""] * len(pairs)),
    ]


def _numbers(pair: Pair) -> list[list[Any] | None]:
    """Give a pair's cells with numbers; none of a pair that the base lacks."""
    if pair.base is None:
        return [None] * (len(texts.NUMBERS) + 1)
    base, new, _ = texts.numbers(pair)
    return [
        number_cell(base, pair.base),
        number_cell(new, pair.new),
        number_cell(texts.ratio(pair.ratio), pair.ratio, texts.interval(pair)),
        number_cell(texts.least_change(pair), pair.least_change),
    ]


def _details(comparison: RunComparison) -> list[dict[str, Any]]:
    """Give each row's details: the numbers in full, and the command that repeats the case."""
    runs = {"base": comparison.base, "new": comparison.new}
    numbers = {name: {record.case.id: record.numbers for record in run.records} for name, run in runs.items()}
    return [
        _detail(pair, {name: found.get(pair.case.id, {}) for name, found in numbers.items()})
        for pair in comparison.pairs
    ]


def _detail(pair: Pair, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Give one row's details. records: the numbers of the case by run."""
    facts = {
        "case_id": pair.case.id,
        "interval, low": pair.low,
        "interval, high": pair.high,
        "p, corrected": pair.p,
        "rounds": pair.rounds,
    }
    for name, record in records.items():
        facts[f"{name}: samples"] = record.get("samples")
        facts[f"{name}: busy"] = record.get("busy") or None
    commands = [units.plain(record.get("command")) for record in records.values()]
    return {
        "fields": [
            [name, units.number(name, value), ""] for name, value in facts.items() if value is not None
        ],
        "command": next(filter(None, reversed(commands)), ""),
    }


def _means(comparison: RunComparison) -> list[dict[str, Any]]:
    """Give one row per suite and backend, after the suite's own."""
    rows = []
    for suite, mean in comparison.means.items():
        every = [("all", mean.overall), *(mean.backends.items() if len(mean.backends) > 1 else ())]
        for name, each in every:
            rows.append({
                "suite": units.plain(suite), "field": units.label(mean.field), "backend": units.plain(name),
                "ratio": texts.ratio(each.ratio), "cases": each.cases, "first": name == "all",
            })  # fmt: skip
    return rows


def _charts(comparison: RunComparison) -> list[dict[str, Any]]:
    """Give one chart per suite: its cases by ratio, each with its interval."""
    suites: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        if pair.ratio is not None and pair.low is not None:
            suites.setdefault(pair.case.suite, []).append(pair)
    return [
        {
            "title": f"{units.plain(suite)}: {units.label(pairs[0].field or '')}, new / base",
            "threshold": comparison.threshold,
            "points": [
                {
                    "verdict": pair.verdict,
                    "y": pair.ratio,
                    "low": pair.low,
                    "high": pair.high,
                    "text": _hover(pair),
                }
                for pair in sorted(pairs, key=lambda pair: pair.ratio or 0.0)
            ],
        }
        for suite, pairs in sorted(suites.items())
    ]


def _hover(pair: Pair) -> str:
    """Describe a point in lines of text."""
    numbers = " → ".join(units.number(pair.field or "", value) for value in (pair.base, pair.new))
    lines = [
        f"{pair.verdict}: {texts.change(pair)}",
        numbers,
        units.plain(pair.case),
        f"least change that would be found: {texts.least_change(pair)}"
        if pair.least_change is not None
        else "",
    ]
    return "\n".join(filter(None, lines))
