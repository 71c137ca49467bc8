"""Claims as a plug-in registers them, whose measurements a test controls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ssmperf
from ssmperf.suitekit import ClaimSetting, Estimate, Finding, agree_on_order


class Measured:
    """Pieces `one` and `two`, each with a number of its own; a test counts and replaces their work.

    values: numbers of the pieces, by name; an exception is raised. ran: the pieces that ran, in order.
    text: the finding's text.
    """

    values: dict[str, Any]
    ran: list[str]
    text: str

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return list(self.values)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        self.ran.append(piece)
        setting.on_progress("half way")
        if isinstance(self.values[piece], BaseException):
            raise self.values[piece]
        return {"value": self.values[piece], "folder": str(setting.folder), "budget_s": setting.budget_s}

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        ours = {name: Estimate.exact(found[name]["value"]) for name in found}
        judged = agree_on_order(ours.get("one"), ours.get("two"))
        yield Finding(f"one against two{self.text}", f"larger{self.text}", ours, judged, note=self.text)


def register(
    name: str = "paper:order", *, values: Mapping[str, Any] | None = None, text: str = "", **declared: Any
) -> Any:
    """Register such a claim and return its class."""
    cls = type(
        "Planted", (Measured,), {"values": dict(values or {"one": 2.0, "two": 1.0}), "ran": [], "text": text}
    )
    texts = dict.fromkeys(("paper", "place", "statement", "printed", "runs", "scaled", "rule"), "said")
    return ssmperf.claim(name, **{**texts, "budget_s": 5.0, **declared})(cls)
