"""The comparison of two runs: terminal table, Markdown summary, JUnit XML, and its part of the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from ssmperf import BROKEN, VERDICTS, ExitCode, Pair, RunComparison, report

from . import units
from .exports import deliver, escape
from .tables import terminal_text

UNREMARKABLE = ("same", "new", "failing")  # always counted, but listed only if nothing else is there
MOST_ROWS = 60
STYLES = {"slower": "red", "ambiguous": "yellow", "faster": "green", "mended": "green"}
EXIT_MEANS: dict[int, str] = {
    ExitCode.OK: "no regression",
    ExitCode.REGRESSION: "slower",
    ExitCode.BAD_CASE: "wrong, lost or missing cases",
    ExitCode.UNSURE: "cannot tell",
}
HEADINGS = (
    "verdict",
    "suite",
    "model",
    "backend",
    "shape",
    "dtype",
    "pass",
    "base",
    "new",
    "new / base",
    "why",
)


@report("table", of="comparison")
def table(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Show what changed, worst first, and the conclusion."""
    shown = remarkable(comparison)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in HEADINGS:
        number = heading in ("base", "new", "new / base")
        grid.add_column(heading, justify="right" if number else "left", no_wrap=heading != "why")
    for pair in shown[:MOST_ROWS]:
        style = "red" if pair.verdict in BROKEN else STYLES.get(pair.verdict, "")
        first, *rest = row(pair)
        grid.add_row(Text(first, style=style), *map(Text, rest))
    lines: list[Any] = [grid] if shown else []
    if len(shown) > MOST_ROWS:
        lines.append(Text(f"and {len(shown) - MOST_ROWS} more: --json has them all", style="dim"))
    lines += [Text(f"environments differ: {difference}") for difference in comparison.differences]
    lines.append(Text(conclusion(comparison), style="bold"))
    return deliver(terminal_text(lines, plain=destination is not None), destination)


@report("summary", of="comparison")
def summary(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Show what changed as Markdown, for the page of a pull request."""
    shown = remarkable(comparison)
    parts = ["## ssmperf check", escape(conclusion(comparison))]
    if comparison.differences:
        parts.append("\n".join(f"- environments differ: {escape(each)}" for each in comparison.differences))
    if shown:
        lines = [HEADINGS, ["---"] * len(HEADINGS), *(map(escape, row(pair)) for pair in shown[:MOST_ROWS])]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    if len(shown) > MOST_ROWS:
        parts.append(f"and {len(shown) - MOST_ROWS} more")
    return deliver("\n\n".join(parts) + "\n", destination)


@report("junit", of="comparison")
def junit(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Write one test case per case: slower and broken cases fail, undecided ones are skipped."""
    suite = ElementTree.Element("testsuite", name="ssmperf check", tests=str(len(comparison.pairs)))
    failures = skipped = 0
    for pair in comparison.pairs:
        case = pair.case
        where = units.plain(f"{case.backend} {case.shape} {case.dtype} {case.pass_}")
        name = units.plain(f"{case.suite}.{case.subject}")
        element = ElementTree.SubElement(suite, "testcase", classname=name, name=where)
        message = units.plain(" ".join(filter(None, [pair.verdict, change(pair), pair.reason])))
        if pair.verdict in (*BROKEN, "slower"):
            failures += 1
            ElementTree.SubElement(element, "failure", message=message, type=pair.verdict)
        elif pair.verdict == "ambiguous":
            skipped += 1
            ElementTree.SubElement(element, "skipped", message=message)
    suite.attrib |= {"failures": str(failures), "skipped": str(skipped), "errors": "0"}
    ElementTree.indent(suite)
    return deliver(ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n", destination)


def view(comparison: RunComparison) -> dict[str, Any]:
    """Give the HTML page's data of a comparison."""
    return {
        "conclusion": conclusion(comparison),
        "counts": comparison.counts,
        "meanings": VERDICTS,
        "differences": list(comparison.differences),
        "headings": HEADINGS,
        "rows": [{"verdict": pair.verdict, "cells": row(pair)} for pair in remarkable(comparison)],
        "threshold": f"{comparison.threshold:.3g}",
    }


def remarkable(comparison: RunComparison) -> Sequence[Pair]:
    """Select the pairs that changed, or all pairs if none did."""
    changed = [pair for pair in comparison.pairs if pair.verdict not in UNREMARKABLE]
    return changed or comparison.pairs


def row(pair: Pair) -> list[str]:
    """Give a pair's cells as text, in the order of HEADINGS."""
    case = pair.case
    numbers = [units.number(pair.field, value) if pair.field else "" for value in (pair.base, pair.new)]
    return [
        pair.verdict,
        *(units.plain(part) for part in (case.suite, case.subject, case.backend)),
        str(case.shape),
        case.dtype,
        case.pass_,
        *numbers,
        change(pair),
        units.plain(pair.reason),
    ]


def change(pair: Pair) -> str:
    """Give the ratio and its interval as text, such as 1.98 (1.95 to 2.02)."""
    if pair.ratio is None or pair.low is None or pair.high is None:
        return ""
    interval = "" if pair.low == pair.high else f" ({pair.low:.3g} to {pair.high:.3g})"
    return f"{pair.ratio:.3g}{interval}"


def conclusion(comparison: RunComparison) -> str:
    """Give the counts of the verdicts, and the meaning of the exit code."""
    counted = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
    code = comparison.exit_code
    return (
        f"{EXIT_MEANS[code]}: {len(comparison.pairs)} cases, {counted or 'none in common'}; "
        f"threshold {comparison.threshold:.3g} (exit {code:d})"
    )
