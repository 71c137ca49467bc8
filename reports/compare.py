"""The comparison of two runs as terminal table, Markdown, JUnit XML and annotations: one conclusion first."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from ssmperf import BROKEN, EXIT_MEANS, VERDICTS, ExitCode, Pair, RunComparison, report

from . import units
from .exports import annotation, deliver, escape
from .tables import terminal_text

UNREMARKABLE = ("same", "new", "failing")  # always counted, but listed only if nothing else is there
MOST_ROWS = 60
MOST_UNREMARKABLE = 12
MOST_ALIKE = 3  # wrong or lost cases of one backend, or ambiguous ones of a kind; more become one line
MOST_MODELS = 4  # named in such a line
STYLES = {"slower": "bold red", "ambiguous": "yellow", "faster": "green", "mended": "green"}
NAMED = ("verdict", "suite", "model", "backend", "shape", "dtype", "pass")
NUMBERS = ("base", "new", "new / base")
HEADINGS = (*NAMED, *NUMBERS, "case", "why")


@dataclass(frozen=True, slots=True)
class Listing:
    """Contents of a report.

    pairs: one row each. sums: lines such as "missing: 12 cases of backend triton (gla, hgrn)".
    more: number of pairs left out.
    """

    pairs: tuple[Pair, ...]
    sums: tuple[str, ...]
    more: int


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


def listing(comparison: RunComparison) -> Listing:
    """Choose the pairs that changed, or some of all if none did; many of one kind become one line.

    Missing cases are summed up by backend, as are wrong and lost ones, if a backend has more than a few, and
    ambiguous ones that lie within the threshold or cannot be compared, if there are more than a few.
    """
    changed = [pair for pair in comparison.pairs if pair.verdict not in UNREMARKABLE]
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in changed:
        if pair.verdict in BROKEN:
            groups.setdefault((pair.verdict, pair.case.backend), []).append(pair)
        elif pair.verdict == "ambiguous" and (pair.low is None or within(pair, comparison.threshold)):
            groups.setdefault((pair.verdict, pair.reason or "" if pair.low is None else ""), []).append(pair)
    summed = [g for (verdict, _), g in groups.items() if verdict == "missing" or len(g) > MOST_ALIKE]
    gone = {pair.case.id for group in summed for pair in group}
    rows = [pair for pair in changed if pair.case.id not in gone]
    most = MOST_ROWS
    if not changed:
        rows, most = list(comparison.pairs), MOST_UNREMARKABLE
    sums = [_sum(group) for group in sorted(summed, key=lambda group: list(VERDICTS).index(group[0].verdict))]
    if comparison.unmeasured:
        sums.append(f"missing: {comparison.unmeasured_text}")
    return Listing(tuple(rows[:most]), tuple(sums), max(0, len(rows) - most))


def within(pair: Pair, threshold: float) -> bool:
    """Tell whether a ratio lies within the threshold."""
    return pair.ratio is not None and 1 / (1 + threshold) <= pair.ratio <= 1 + threshold


def _sum(pairs: Sequence[Pair]) -> str:
    """Sum up pairs of one verdict in a line."""
    first = pairs[0]
    backend = units.plain(first.case.backend)
    if first.verdict == "ambiguous":
        if first.low is None:
            return f"ambiguous: {len(pairs)} cases: {units.plain(first.reason)}"
        least = min(pair.least_change for pair in pairs if pair.least_change is not None)
        return (
            f"ambiguous: {len(pairs)} cases within the threshold, whose noise could hide a change of "
            f"{percent(least)} or more"
        )
    if len(pairs) == 1:
        return f"{first.verdict}: 1 case of backend {backend} ({units.plain(first.case)})"
    models = list(dict.fromkeys(units.plain(pair.case.subject) for pair in pairs))
    named = ", ".join(models[:MOST_MODELS]) + (", …" if len(models) > MOST_MODELS else "")
    reason, times = Counter(units.plain(pair.reason) for pair in pairs).most_common(1)[0]
    why = f": {reason}" if first.verdict != "missing" else ""
    if why and times < len(pairs):
        why += f" ({times} times)"
    return f"{first.verdict}: {len(pairs)} cases of backend {backend} ({named}){why}"


def means(comparison: RunComparison) -> list[str]:
    """Give the geometric mean of the ratios of each suite in a line."""
    return [
        f"{units.plain(suite)}: geometric mean of new / base {ratio(mean.overall.ratio)} "
        f"({units.label(mean.field)}, {mean.overall.cases} {'case' if mean.overall.cases == 1 else 'cases'})"
        for suite, mean in comparison.means.items()
    ]


def remarks(comparison: RunComparison) -> list[str]:
    """Say how the runs were compared, what would have been found, and what else to know about them."""
    differences = (f"environments differ: {each}" for each in comparison.differences)
    found = (comparison.method, comparison.resolution, *differences, *comparison.notes)
    return [units.plain(each) for each in found if each]


def alarms(comparison: RunComparison) -> list[str]:
    """Say what a reader must know before the verdicts."""
    return list(map(units.plain, comparison.alarms))


def commands(comparison: RunComparison) -> list[str]:
    """List the commands that lead on from the comparison."""
    return list(map(units.plain, comparison.commands))


def _of_case(comparison: RunComparison, id_: str) -> list[str]:
    return [line for line in commands(comparison) if id_ in line]


def row(comparison: RunComparison, pair: Pair) -> list[str]:
    """Give a pair's cells as text, in the order of HEADINGS."""
    return [*named(pair), *numbers(pair), comparison.short_id(pair), units.plain(pair.reason)]


def named(pair: Pair) -> list[str]:
    """Give a pair's verdict and the names of its case, in the order of NAMED."""
    case = pair.case
    texts = (case.suite, case.subject, case.backend, case.shape, case.dtype, case.pass_)
    return [pair.verdict, *map(units.plain, texts)]


def numbers(pair: Pair) -> list[str]:
    """Give a pair's numbers as text, in the order of NUMBERS."""
    values = [units.number(pair.field, value) if pair.field else "" for value in (pair.base, pair.new)]
    return [*values, change(pair)]


def change(pair: Pair) -> str:
    """Give the ratio and its interval as text, such as 1.981 (1.953 to 2.018)."""
    found = interval(pair)
    return f"{ratio(pair.ratio)} ({found})" if found else ratio(pair.ratio)


def interval(pair: Pair) -> str:
    """Give the interval of the ratio as text; empty if it is a point or unknown."""
    return "" if pair.low is None or pair.low == pair.high else f"{ratio(pair.low)} to {ratio(pair.high)}"


def ratio(value: float | None) -> str:
    """Give a ratio with as many digits as a threshold of a few percent needs."""
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.3g}"


def least_change(pair: Pair) -> str:
    """Give the least increase that would have been found as text, such as +8.4 %."""
    return "" if pair.least_change is None else f"+{percent(pair.least_change)}"


def percent(value: float) -> str:
    """Write a share as a percentage with two digits, or as a whole number."""
    return f"{100 * value:.0f} %" if value >= 0.095 else f"{100 * value:.2g} %"


def _style(verdict: str) -> str:
    assert verdict in VERDICTS
    return "red" if verdict in BROKEN else STYLES.get(verdict, "")
