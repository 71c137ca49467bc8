"""Claims of papers on a terminal: the printed number, ours, the verdict, and the scaling down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssmperf import ClaimResult, Reproduction
from ssmperf.suitekit import Agreement, registry, report

from ..delivery import deliver
from ..rows import units
from ..views.texts.claims import MEANINGS, course, failures, ours, places, reason, source, verdict
from .exports import escape
from .tables import terminal_text

STYLES = {
    Agreement.AGREES: "green",
    Agreement.DISAGREES: "bold red",
    Agreement.CANNOT_TELL: "yellow",
    Agreement.WITHDRAWN: "yellow",
}
CODE = re.compile(r"(`[^`]*`)")
HEAD = """# Claims of papers, and our measurements

`ssmperf reproduce` lists what papers claim, `ssmperf reproduce ID...` runs some of it, `--all` all that a
machine can run; `--pieces` runs some pieces, and `--resume` goes on in a folder (`--out`). `ssmperf report
FOLDER... --format markdown` drew this page, and `--html FILE` draws one to look at.

{meanings}

A claim agrees if all of its deciding lines agree, and disagrees if one of them disagrees. A verdict in
brackets is shown beside and decides nothing: a factor on another device than the paper's, our kernel in place
of the paper's, a number that was fitted.
"""


@report("table", of="claims")
def table(found: Reproduction, destination: Path | None = None) -> str | None:
    """Show each claim with its findings, and count the verdicts."""
    parts: list[Any] = [Text(measured(found), style="dim"), Text("")]
    for each in found.results:
        parts += [*_claim(each), Text("")]
    parts.append(Text(found.conclusion, style="bold"))
    return deliver(terminal_text(parts, plain=destination is not None), destination)


@report("json", of="claims")
def json_(found: Reproduction, destination: Path | None = None) -> str | None:
    """Give all that is known of the claims, for scripts."""
    return deliver(json.dumps(found.to_json(), indent=2), destination)


@report("markdown", of="claims")
def markdown(found: Reproduction, destination: Path | None = None) -> str | None:
    """Set each paper's number and ours side by side, as a document: a table of verdicts, then every claim."""
    meanings = "\n".join(f"- *{each}*: {meaning}." for each, meaning in MEANINGS.items())
    parts = [HEAD.format(meanings=meanings), *_overview(found), *map(_section, found.results)]
    return deliver("\n".join(parts).rstrip() + "\n", destination)


def _overview(found: Reproduction) -> list[str]:
    """Write the table of all claims with their verdicts, those that were not run at its end."""
    run = {each.claim.name: each for each in found.results}
    rows = []
    for name, claim in registry.claims().items():
        verdict_ = str(run[name].agreement) if name in run else "not run"
        link = f"[`{units.plain(name)}`](#{_anchor(name)})" if name in run else f"`{units.plain(name)}`"
        rows.append((link, claim.place, claim.statement, verdict_))
    rows.sort(key=lambda row: row[-1] == "not run")
    return [f"{found.conclusion}.", "", *_table(("claim", "in the paper", "statement", "verdict"), rows), ""]


def _section(each: ClaimResult) -> str:
    """Write a claim: what is claimed, the two columns of numbers, and what the verdict is worth."""
    claim = each.claim
    reason_ = f": {each.reason}" if each.reason else ""
    lines = [f"## {units.plain(claim.name)}", "", f"**{each.agreement}**{_named(reason_)}.", ""]
    lines += [f"{_named(claim.statement)} ({_named(source(each))}; printed: {_named(claim.printed)})", ""]
    if each.findings:
        rows = [
            (
                finding.what,
                finding.printed or "–",
                "; ".join(ours(finding)),
                verdict(finding),
                reason(finding),
            )
            for finding in each.findings
        ]
        lines += [*_table(("what", "printed", "ours", "verdict", "reason"), rows), ""]
    lines += [f"- {_named(text)}" for text in failures(each)]
    named = (("Runs", claim.runs), ("Scaled down", claim.scaled), ("Rule", claim.rule))
    lines += [f"- {name}: {_named(text)}." for name, text in named]
    lines += [f"- Who could disagree: {_named(claim.doubts)}."] if claim.doubts else []
    return "\n".join([*lines, f"- {_named(course(each))}.", ""])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table of Markdown."""
    lines = [head, ["---"] * len(head), *(list(map(_cell, row)) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(text: str) -> str:
    return text if text.startswith("[`") else _named(text)


def _named(text: str) -> str:
    """Escape a text but for what stands between backticks, which Markdown shows as it is."""
    parts = CODE.split(units.plain(text))
    return "".join(
        part.replace("|", r"\|") if place % 2 else _spaced(part) for place, part in enumerate(parts)
    )


def _spaced(part: str) -> str:
    """Escape a part of a text, with the blanks at its ends."""
    inner = part.strip()
    return part.replace(inner, escape(inner), 1) if inner else part


def _anchor(name: str) -> str:
    """Name the heading of a claim as GitHub does: small letters, no punctuation."""
    return "".join(letter for letter in units.plain(name).lower() if letter.isalnum() or letter in "-_")


def measured(found: Reproduction) -> str:
    """Name the device and the date, and say how to read verdicts."""
    where, when = (units.plain(found.meta.get(name)) for name in ("hardware", "created"))
    here = f"{where or 'a machine that is not named'}, {when[:10] or 'undated'}"
    rest = "a verdict in brackets stands beside and does not count"
    return f"measured on {' and '.join(places(found.results)) or here}; {rest}"


def _claim(each: ClaimResult) -> list[Any]:
    """Show one claim: its statement, the findings, and the scaling down."""
    claim = each.claim
    head = Text.assemble(
        (units.plain(claim.name), "bold"), "  ", (str(each.agreement), STYLES[each.agreement]),
        f"  {units.plain(each.reason)}",
    )  # fmt: skip
    parts: list[Any] = [
        head,
        Text(f"  {source(each)}", style="dim"),
        Text(f"  {units.plain(claim.statement)}"),
    ]
    if each.findings:
        grid = Table(box=None, header_style="dim", padding=(0, 1), pad_edge=True)
        for heading in ("what", "printed", "ours", "verdict", "reason"):
            grid.add_column(heading, overflow="fold")
        for finding in each.findings:
            cells = map(Text, (units.plain(finding.what), units.plain(finding.printed) or "–"))
            judged = Text(verdict(finding), style=STYLES[finding.agreement] if finding.decides else "dim")
            grid.add_row(*cells, Text("\n".join(ours(finding))), judged, Text(reason(finding), style="dim"))
        parts.append(grid)
    parts += [Text(f"  {text}", style="red") for text in failures(each)]
    return [
        *parts,
        Text(f"  scaled down: {units.plain(claim.scaled)}", style="dim"),
        Text(f"  {course(each)}", style="dim"),
    ]
