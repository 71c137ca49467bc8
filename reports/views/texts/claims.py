"""The texts of a claim that its formats share: its source, our numbers, verdicts and failures."""

from __future__ import annotations

from collections.abc import Iterable

from ssmperf import ClaimResult
from ssmperf.suitekit import Agreement, Finding

from ...rows import units

MEANINGS = {
    Agreement.AGREES: "the same order, with disjoint 95 % intervals over seeds or rounds; or the printed "
    "number within our interval, whose half is at most a tenth of it, and nothing scaled down",
    Agreement.DISAGREES: "the opposite, with disjoint intervals",
    Agreement.CANNOT_TELL: "anything else, such as overlapping intervals, a piece that was not run, a rival "
    "that was not trained or stays at chance, a number that was scaled down",
    Agreement.WITHDRAWN: "measured under an earlier rule, and to be measured again",
}


def ours(finding: Finding) -> list[str]:
    """Write our numbers with their names and intervals."""
    return [
        units.plain(str(estimate) if len(finding.ours) == 1 else f"{name}: {estimate}")
        for name, estimate in finding.ours.items()
        if estimate is not None
    ] or ["–"]


def verdict(finding: Finding) -> str:
    """Write a finding's verdict, in brackets if it does not count for that of the claim."""
    return str(finding.agreement) if finding.decides else f"({finding.agreement})"


def reason(finding: Finding) -> str:
    return units.plain("; ".join(filter(None, (finding.reason, finding.note))))


def source(each: ClaimResult) -> str:
    return units.plain(f"{each.claim.paper}, {each.claim.place}")


def course(each: ClaimResult) -> str:
    """Say how much of a claim was measured, how long that took, and where."""
    if not each.planned:
        return "not run"
    noun = "piece" if each.planned == 1 else "pieces"
    spent = f"{each.spent_s:.1f} s" if each.spent_s < 100 else f"{each.spent_s / 60:.1f} min"
    return units.plain(
        "; ".join(filter(None, (f"{each.done} of {each.planned} {noun}, {spent}", each.where)))
    )


def places(results: Iterable[ClaimResult]) -> list[str]:
    """Name the devices, with dates, on which claims were measured."""
    return list(dict.fromkeys(units.plain(each.where) for each in results if each.where))


def failures(each: ClaimResult) -> list[str]:
    return [units.plain(f"{piece} failed: {why}") for piece, why in (each.failures or {}).items()]
