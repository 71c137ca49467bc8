"""The page of a comparison: the conclusion, the ratios as a chart, and one table row per case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssmperf import VERDICTS, Case, Pair, RunComparison, report

from . import compare, frames, units
from .exports import deliver
from .html import render, run_views

_USUAL = ("suite", "recurrence", "model", "backend", "shape", "dtype", "pass_")
_OTHERS = tuple(field.name for field in dataclasses.fields(Case) if field.name not in _USUAL)
_DATA = ("details", "ratios")  # read by the page's scripts


@report("html", of="comparison")
def html(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same runs give the same bytes."""
    page = _page(comparison)
    scripts = ("table.js", "ratios.js") if page["ratios"] else ("table.js",)
    return deliver(render("comparison.html", page, _DATA, scripts, plots=bool(page["ratios"])), destination)


def _page(comparison: RunComparison) -> dict[str, Any]:
    """Give all data of the page: that of its template, and that of its scripts (`_DATA`)."""
    runs = [comparison.base, comparison.new]
    varying = [name for name in _OTHERS if len({getattr(pair.case, name) for pair in comparison.pairs}) > 1]
    lines = [_line(place, pair, varying) for place, pair in enumerate(comparison.pairs)]
    charts = _charts(comparison)
    values = {axis: sorted({line["filters"][axis] for line in lines}) for axis in compare.NAMED}
    return {
        "title": " → ".join(frames.run_names(runs)),
        "runs": run_views(runs, frames.frame(runs)),
        "conclusion": comparison.conclusion,
        "counts": comparison.counts,
        "meanings": VERDICTS,
        "sums": [(text.partition(":")[0], text) for text in compare.listing(comparison).sums],
        "remarks": compare.remarks(comparison),
        "means": _means(comparison),
        "charts": [chart["title"] for chart in charts],
        "named": [*compare.NAMED, *map(units.label, varying)],
        "numbers": (*compare.NUMBERS, "least change"),
        "rows": lines,
        "filters": {axis: found for axis, found in values.items() if len(found) > 1},
        "details": _details(comparison),
        "ratios": charts,
    }


def _line(place: int, pair: Pair, varying: Sequence[str]) -> dict[str, Any]:
    """Give a pair's table row. numbers: each with text, unrounded value to sort by, and a note; or none."""
    base, new, _ = compare.numbers(pair)
    named = compare.named(pair)
    numbers = [
        (base, pair.base, ""),
        (new, pair.new, ""),
        (compare.ratio(pair.ratio), pair.ratio, compare.interval(pair)),
        (compare.least_change(pair), pair.least_change, ""),
    ]
    return {
        "place": place,
        "filters": dict(zip(compare.NAMED, named, strict=True)),
        "named": [*named, *(units.plain(getattr(pair.case, name)) for name in varying)],
        "numbers": [] if pair.base is None else numbers,
        "reason": units.plain(pair.reason),
    }


def _details(comparison: RunComparison) -> list[dict[str, Any]]:
    """Give what each row unfolds to: the numbers in full, and the command that repeats the case."""
    runs = {"base": comparison.base, "new": comparison.new}
    numbers = {name: {record.case.id: record.numbers for record in run.records} for name, run in runs.items()}
    return [
        _detail(pair, {name: found.get(pair.case.id, {}) for name, found in numbers.items()})
        for pair in comparison.pairs
    ]


def _detail(pair: Pair, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Give what one row unfolds to. records: the numbers of the case by run."""
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
        "errors": [],
        "reason": units.plain(pair.reason),
        "command": next(filter(None, reversed(commands)), ""),
        "samples": [],
        "count": 0,
    }


def _means(comparison: RunComparison) -> list[dict[str, Any]]:
    """Give one row per suite and backend, after the suite's own."""
    rows = []
    for suite, mean in comparison.means.items():
        every = [("all", mean.overall), *(mean.backends.items() if len(mean.backends) > 1 else ())]
        for name, each in every:
            rows.append({
                "suite": units.plain(suite), "field": units.label(mean.field), "backend": units.plain(name),
                "ratio": compare.ratio(each.ratio), "cases": each.cases, "first": name == "all",
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
        f"{pair.verdict}: {compare.change(pair)}",
        numbers,
        units.plain(pair.case),
        f"least change that would be found: {compare.least_change(pair)}"
        if pair.least_change is not None
        else "",
    ]
    return "\n".join(filter(None, lines))
