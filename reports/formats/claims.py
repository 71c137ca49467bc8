"""Claims of papers on a terminal: the printed number, ours, the verdict, and the scaling down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ssmperf import ClaimResult, Reproduction
from ssmperf.suitekit import Agreement, report

from ..delivery import deliver
from ..rows import units
from ..views.texts.claims import course, failures, ours, reason, source, verdict
from .tables import terminal_text

STYLES = {Agreement.AGREES: "green", Agreement.DISAGREES: "bold red", Agreement.CANNOT_TELL: "yellow"}


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


def measured(found: Reproduction) -> str:
    """Name the device and the date, and say how to read verdicts."""
    where, when = (units.plain(found.meta.get(name)) for name in ("hardware", "created"))
    rest = "a verdict in brackets stands beside and does not count"
    return f"measured on {where or 'a machine that is not named'}, {when[:10] or 'undated'}; {rest}"


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
