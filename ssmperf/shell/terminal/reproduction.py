"""The list of claims, as data and as a table."""

from __future__ import annotations

from typing import Any

from ssmperf.engine import registry
from ssmperf.shell.terminal.display import brief

DEVICES = {"cpu": "C", "cuda": "GPU"}
KEY = "runs on: C is two CPU cores or a GPU. Run with: ssmperf reproduce ID..., or --all."


def listed() -> list[dict[str, Any]]:
    """Describe every claim."""
    return [each.to_json() for each in registry.claims().values()]


def as_table(claims: list[dict[str, Any]]) -> str:
    """Show the claims as a text table."""
    from tabulate import tabulate

    rows = [
        {
            "id": each["id"],
            "paper": brief(f"{_short(each['paper'])}, {each['place']}"),
            "claim": brief(each["statement"]),
            "runs on": DEVICES[each["device"]],
            "budget": budget(each["budget_s"], each["budget_of"]),
        }
        for each in claims
    ]
    widths = [None, 40, 64, None, None]
    return f"{tabulate(rows, headers='keys', tablefmt='simple', maxcolwidths=widths)}\n\n{KEY}"


def budget(seconds: float, of: str) -> str:
    """Write a budget, such as "2 min" or "10 min per piece"."""
    text = f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
    return text if of == "claim" else f"{text} per {of}"


def _short(paper: str) -> str:
    """Cut a title at its colon: papers are known by the part before it."""
    return str(paper).partition(":")[0].partition(",")[0]
