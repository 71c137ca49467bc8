"""The comparison of two runs as terminal table, Markdown, JUnit XML and annotations: one conclusion first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from ssmperf import ExitCode, Pair, RunComparison
from ssmperf.suitekit import BROKEN, EXIT_MEANS, VERDICTS, report

from ..delivery import deliver
from ..rows import units
from ..views.texts.comparison import (
    NAMED,
    NUMBERS,
    alarms,
    commands,
    listing,
    means,
    named,
    numbers,
    percent,
    remarks,
)
from .exports import annotation, escape
from .tables import terminal_text

STYLES = {"slower": "bold red", "ambiguous": "yellow", "faster": "green", "mended": "green"}
HEADINGS = (*NAMED, *NUMBERS, "case", "why")


@report("table", of="comparison")
def table(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Show the conclusion, alarms and commands, and the changes, those that people act on first."""
    listed = listing(comparison)
    grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=False)
    for heading in HEADINGS:
        justify: Any = "right" if heading in NUMBERS else "left"
        grid.add_column(heading, justify=justify, no_wrap=heading != "why")
    for pair in listed.pairs:
        first, *rest = row(comparison, pair)
        grid.add_row(Text(first, style=_style(pair.verdict)), *map(Text, rest))
    lines: list[Any] = [Text(units.plain(comparison.conclusion), style="bold", no_wrap=True)]
    lines += [Text(f"alarm: {line}", style="bold red", no_wrap=True) for line in alarms(comparison)]
    lines += [Text(f"  {line}", no_wrap=True) for line in commands(comparison)]
    lines += [grid] if listed.pairs else []
    if listed.more:
        lines.append(Text(f"and {listed.more} more: --json and --html have them all", style="dim"))
    lines += [Text(line, style=_style(line.partition(":")[0])) for line in listed.sums]
    lines += [Text(line, style="dim") for line in means(comparison)]
    lines += map(Text, remarks(comparison))
    return deliver(terminal_text(lines, plain=destination is not None), destination)


@report("summary", of="comparison")
def summary(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Show the comparison and its changes as Markdown, for the page of a pull request."""
    listed = listing(comparison)
    origins = [
        (name, *map(escape, (origin.version, origin.device, origin.measured)))
        for name, origin in comparison.origins.items()
    ]
    verdicts = [(name, f"{count:,}", VERDICTS[name]) for name, count in comparison.counts.items()]
    parts = [f"## ssmperf: {comparison.concluded(escape)}"]
    if found := alarms(comparison):
        parts.append("\n".join(f"- **alarm: {escape(text)}**" for text in found))
    if lines := commands(comparison):
        parts.append("\n".join(("```sh", *lines, "```")))
    parts.append(_markdown_table(("side", "version", "device", "measured"), origins))
    if notes := means(comparison):
        parts.append(_bullets(notes))
    if listed.pairs:
        rows = [list(map(escape, row(comparison, pair))) for pair in listed.pairs]
        parts.append(_markdown_table(HEADINGS, rows))
    if listed.more:
        parts.append(f"and {listed.more} more")
    if listed.sums:
        parts.append(_bullets(listed.sums))
    if verdicts:
        parts.append(_markdown_table(("verdict", "cases", "meaning"), verdicts))
    parts.append(_bullets([*remarks(comparison), rule(comparison)]))
    if comparison.page:
        address = _address(comparison.page, destination)
        parts.append(f"[The page with all cases and charts]({address})")
    return deliver("\n\n".join(parts) + "\n", destination)


@report("annotations", of="comparison")
def github_annotations(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Write the conclusion, unless it is a good one, and alarms as lines that GitHub shows above a job."""
    kind = "warning" if comparison.exit_code == ExitCode.UNSURE else "error"
    lines = [] if comparison.ok else [annotation(kind, "ssmperf", comparison.conclusion)]
    lines += [annotation("warning", "ssmperf", text) for text in alarms(comparison)]
    return deliver("\n".join(lines), destination) if lines else None


def rule(comparison: RunComparison) -> str:
    """Explain the threshold and the exit codes in one line."""
    codes = ", ".join(f"{code:d} {meaning}" for code, meaning in EXIT_MEANS.items())
    unsure = "; ambiguity alone ends with 0 (--unsure pass)" if comparison.unsure == "pass" else ""
    threshold = percent(comparison.threshold)
    return f"a case is slower if it is worse by more than {threshold}; exit codes: {codes}{unsure}"


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table; the cells are escaped already."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {escape(text)}" for text in texts)


def _address(page: str, destination: Path | None) -> str:
    """Give the target of a Markdown link: an address as it is, a path relative to the summary's folder."""
    if "://" in page:
        return quote(page, safe="/:?#@!$&'*+,;=%~")
    return quote(page if destination is None else os.path.relpath(page, Path(destination).parent))


@report("junit", of="comparison")
def junit(comparison: RunComparison, destination: Path | None = None) -> str | None:
    """Write one test case per case: slower and broken cases fail, undecided ones are skipped."""
    suite = ElementTree.Element("testsuite", name="ssmperf check")
    properties = ElementTree.SubElement(suite, "properties")
    facts = [("conclusion", comparison.conclusion), ("exit_code", f"{comparison.exit_code:d}")]
    facts += [(name, origin.version) for name, origin in comparison.origins.items()]
    facts += [("alarm", text) for text in alarms(comparison)]
    facts += [("command", text) for text in commands(comparison)]
    facts += [("note", note) for note in (*means(comparison), *remarks(comparison))]
    for name, value in facts:
        ElementTree.SubElement(properties, "property", name=name, value=units.plain(value))
    verdicts = Counter(pair.verdict for pair in comparison.pairs)
    for pair in comparison.pairs:
        case = pair.case
        where = units.plain(f"{case.backend} {case.shape} {case.dtype} {case.pass_}")
        name = units.plain(f"{case.suite}.{case.subject}")
        element = ElementTree.SubElement(suite, "testcase", classname=name, name=where)
        message = units.plain(comparison.told(pair))
        if pair.verdict in (*BROKEN, "slower"):
            failure = ElementTree.SubElement(element, "failure", message=message, type=pair.verdict)
            failure.text = "\n".join(
                (f"case {case.id}", units.plain(pair.reason), *_of_case(comparison, case.id))
            )
        elif pair.verdict == "ambiguous":
            ElementTree.SubElement(element, "skipped", message=message)
    if comparison.unmeasured:
        element = ElementTree.SubElement(
            suite, "testcase", classname="ssmperf", name="the plan of the new run"
        )
        ElementTree.SubElement(element, "failure", message=comparison.unmeasured_text, type="missing")
    suite.attrib |= {
        "tests": str(len(comparison.pairs) + bool(comparison.unmeasured)),
        "failures": str(sum(verdicts[each] for each in (*BROKEN, "slower")) + bool(comparison.unmeasured)),
        "skipped": str(verdicts["ambiguous"]),
        "errors": "0",
    }
    ElementTree.indent(suite)
    return deliver(ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n", destination)


def _of_case(comparison: RunComparison, id_: str) -> list[str]:
    return [line for line in commands(comparison) if id_ in line]


def row(comparison: RunComparison, pair: Pair) -> list[str]:
    """Give a pair's cells as text, in the order of HEADINGS."""
    return [*named(pair), *numbers(pair), comparison.short_id(pair), units.plain(pair.reason)]


def _style(verdict: str) -> str:
    assert verdict in VERDICTS
    return "red" if verdict in BROKEN else STYLES.get(verdict, "")
