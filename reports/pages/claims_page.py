"""The page of claims: each paper's number and our measurement side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssmperf import ClaimResult, Reproduction
from ssmperf.suitekit import Agreement, Finding, report

from ..delivery import deliver
from ..rows import units
from ..views.texts import claims as texts
from .html import render


@report("html", of="claims")
def html(found: Reproduction, destination: Path | None = None) -> str | None:
    """Render the page as text, or into a file. The same results give the same bytes."""
    return deliver(render("claims.html", _page(found), {}, (), plots=False), destination)


def _page(found: Reproduction) -> dict[str, Any]:
    """Give all data of the template."""
    folders = (found, *found.others)
    return {
        "title": "What papers claim, and what we measured",
        "runs": [
            {
                "name": each.path.name,
                "path": units.plain(each.path),
                **{name: units.plain(each.meta.get(name)) for name in ("created", "command", "hardware")},
            }
            for each in folders
        ],
        "conclusion": found.conclusion,
        "counts": [
            (_mark(each), str(each), sum(result.agreement is each for result in found.results), meaning)
            for each, meaning in texts.MEANINGS.items()
        ],
        "preset": "smoke" if any(each.meta.get("preset") == "smoke" for each in folders) else None,
        "claims": [_claim(each) for each in found.results],
    }


def _claim(each: ClaimResult) -> dict[str, Any]:
    """Give one claim's section."""
    claim = each.claim
    said = ("statement", "printed", "runs", "scaled", "rule", "doubts")
    return {
        "id": units.plain(claim.name).replace(":", "-"),
        "name": units.plain(claim.name),
        "source": texts.source(each),
        "mark": _mark(each.agreement),
        "agreement": str(each.agreement),
        "reason": units.plain(each.reason),
        "course": texts.course(each),
        "failures": texts.failures(each),
        "findings": [_finding(finding) for finding in each.findings],
        **{name: units.plain(getattr(claim, name)) for name in said},
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """Give a row: the printed number and ours in columns of their own."""
    return {
        "what": units.plain(finding.what),
        "printed": units.plain(finding.printed) or "–",
        "ours": texts.ours(finding),
        "mark": _mark(finding.agreement) if finding.decides else "beside",
        "verdict": texts.verdict(finding),
        "reason": texts.reason(finding),
    }


def _mark(agreement: Agreement) -> str:
    """Name the class of a verdict's colour."""
    return str(agreement).replace(" ", "-")
