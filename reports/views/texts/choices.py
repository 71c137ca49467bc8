"""The first screen of a page: a sentence per combination of choices, from which its script selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...rows import units
from ...rows.contests import Contest
from ..choices import Choice
from .answers import DAY, brief, differing, doubts

NO_LENGTH = "–"


def views(found: Sequence[Choice]) -> list[dict[str, Any]]:
    """Give each combination and its sentences: one per contest, those of the newest run first."""
    return [
        {
            "name": choice.name,
            "kind": "workloads" if choice.workload else "models",
            "T": NO_LENGTH if choice.T is None else str(choice.T),
            "length": NO_LENGTH if choice.T is None else f"{choice.T:,}",
            "dtype": choice.dtype,
            "pass": choice.pass_,
            "place": _place(choice),
            "lines": _lines(choice),
        }
        for choice in found
    ]


def _place(choice: Choice) -> str:
    length = "" if choice.T is None else f" at T = {choice.T:,}"
    return f"{choice.name}{length}, {choice.dtype}, {choice.pass_}"


def _lines(choice: Choice) -> list[dict[str, str]]:
    facts = [name for name in ("suite", "run") if len({contest[name] for contest in choice.found}) > 1]
    return [
        {
            "winner": brief(contest),
            "rest": "".join(f", {part}" for part in (*_share(contest), *doubts(contest))),
            "about": " · ".join(filter(None, _about(contest, told, facts))),
        }
        for contest, told in zip(choice.found, differing(choice.found), strict=True)
    ]


def _share(contest: Contest) -> list[str]:
    share = contest["limit_fraction"]
    return [] if share is None else [f"{units.number('limit_fraction', share)} of the limit"]


def _about(contest: Contest, told: Sequence[str], facts: Sequence[str]) -> list[str]:
    """Give the other sizes of a contest, the device, what tells it from the others, and the date."""
    sizes = " ".join(f"{letter}{size}" for letter, size in contest["sizes"].items() if letter != "T")
    return [sizes, contest["hardware"], *told, *(contest[name] for name in facts), contest["date"][:DAY]]
