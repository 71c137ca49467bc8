"""A calibration as text and as JSON: the machine's resolution by kind of case."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from ssmperf.comparison.remarks import busy_line
from ssmperf.engine.machine.calibration import Calibration, path_for
from ssmperf.engine.machine.spread import WITNESSED_CASES

if TYPE_CHECKING:
    from ssmperf.comparison.versions.calibrate import WrittenCalibration

HEADINGS = ("kind", "cases", "rounds", "spread", "largest", "1 case", f"{WITNESSED_CASES} cases")
MEANING = f"""\
spread: standard deviation between processes, as an upper bound; largest: difference of two rounds;
1 case, {WITNESSED_CASES} cases: smallest trustworthy threshold, the change that a check of so many cases
finds with one round per side. Smaller changes need more rounds."""


def as_table(found: Calibration) -> str:
    """Format a calibration as a table, one line per kind of case."""
    rows = [
        (
            kind,
            spread.cases,
            spread.rounds,
            f"±{_percent(spread.spread)}",
            _percent(math.expm1(spread.largest)),
            _percent(spread.threshold(1)),
            _percent(spread.threshold(WITNESSED_CASES)),
        )
        for kind, spread in found.kinds.items()
    ]
    align = ("left", *("right",) * (len(HEADINGS) - 1))
    return tabulate(rows, headers=HEADINGS, tablefmt="simple", colalign=align, disable_numparse=True)


def as_text(done: WrittenCalibration) -> str:
    """Show a new calibration: its table, what it means, and whether the machine was busy meanwhile."""
    found, busy = done.calibration, busy_line(done.run.records)
    lines = [found.device, "", as_table(found), "", MEANING, ""]
    if busy:
        lines.append(f"{busy}: the noise of others is part of these spreads")
    if len(found.sessions) == 1:
        lines.append("one session says nothing about other days: calibrate again tomorrow, sessions add up")
    return "\n".join(
        [*lines, f"calibration written to {done.path} ({_sessions(found)}); run: {done.run.path}"]
    )


def as_json(done: WrittenCalibration) -> dict[str, Any]:
    """Return a new calibration with its thresholds, its file and its run, as plain JSON."""
    found = done.calibration.to_json()
    for kind, spread in done.calibration.kinds.items():
        found["kinds"][kind]["thresholds"] = {
            str(cases): spread.threshold(cases) for cases in (1, WITNESSED_CASES)
        }
    return {
        **found,
        "sessions": len(done.calibration.sessions),
        "busy": busy_line(done.run.records),
        "path": str(done.path),
        "run": str(done.run.path),
    }


def section(found: Calibration | None, reason: str | None) -> list[str]:
    """Give the lines of `ssmperf doctor` about a device's calibration."""
    if found is None:
        return [f"calibration: {reason}"]
    table = [f"  {line}" for line in as_table(found).splitlines()]
    return [f"calibration of {found.created} ({path_for(found.device)}):", *table]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _sessions(found: Calibration) -> str:
    return "1 session" if len(found.sessions) == 1 else f"{len(found.sessions)} sessions"
