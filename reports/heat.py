"""Model × backend matrices for the page: a text, a colour and a hover for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ssmperf import DIMENSIONS

from . import frames, units


def matrices(
    rows: pd.DataFrame,
    rank: str | None,
    split: Sequence[str] = ("pass", "dtype"),
    by: str = "subject",
    note: str | None = None,
) -> list[dict[str, Any]]:
    """Model × backend: of all cases, and of each value of these axes (and run) where there are several.

    by, note: see `frames.matrix`.
    """
    views = [("all cases", rows)]
    axes = ["run", *split] if rows["run"].nunique() > 1 else [*split]
    groups = [(_named(axes, names), part) for names, part in rows.groupby(axes)]
    if len(groups) > 1:
        views += groups
    if len(rows) < 2:
        return []
    return [{"label": label, **_matrix(part, rank, by, note)} for label, part in views]


def _named(axes: Sequence[str], values: Sequence[Any]) -> str:
    """`forward, T4096`: sizes with their letter."""
    pairs = zip(axes, values, strict=True)
    return ", ".join(
        f"{axis}{value:g}" if axis in DIMENSIONS else units.plain(value) for axis, value in pairs
    )


def _matrix(rows: pd.DataFrame, rank: str | None, by: str, note: str | None) -> dict[str, Any]:
    cells = frames.matrix(rows, by, note)
    subjects = sorted({subject for subject, _ in cells})
    backends = sorted({backend for _, backend in cells}, key=lambda name: (name != frames.BASELINE, name))
    return {
        "backends": backends,
        "rows": [
            (subject, [(name, _heat(cells.get((subject, name)), rank)) for name in backends])
            for subject in subjects
        ],
    }


def _heat(cell: frames.Cell | None, rank: str | None) -> dict[str, Any] | None:
    """A matrix cell's text, colour class and strength, and what to say on hover."""
    if cell is None:
        return None
    broken = cell.status not in ("ok", "unsupported")
    value = cell.speedup if rank else cell.error_ratio
    hover = [f"{cell.ok} of {cell.cases} cases ok", *cell.reasons[:3]]
    if len(cell.reasons) > 3:
        hover.append(f"and {len(cell.reasons) - 3} more reasons")
    if cell.ok == 0 or (broken and not rank):
        kind = "none" if cell.status == "unsupported" else "broken"
        return {"text": cell.status, "small": cell.note, "kind": kind, "strength": 1, "hover": hover,
                "partial": cell.partial}  # fmt: skip
    if units.missing(value):
        return {
            "text": "ok",
            "small": "",
            "kind": "plain",
            "strength": 0,
            "hover": hover,
            "partial": cell.partial,
        }
    if rank:
        doublings = math.log2(value)
        kind = "up" if doublings > 0.07 else "down" if doublings < -0.07 else "plain"
        strength = min(1.0, abs(doublings) / 5)
        text, small = units.ratio(value), ""
        hover.insert(0, f"best {units.ratio(value)}, geometric mean {units.ratio(cell.mean_speedup)} "
                        f"against {frames.BASELINE}")  # fmt: skip
    else:
        kind = "up" if value <= 0.5 else "edge" if value <= 1 else "down"
        strength = min(1.0, abs(math.log10(max(value, 1e-4) / 0.5)) / 3) if kind != "edge" else 0.6
        text, small = units.number("error", cell.error), f"{value:.2g} tol"
        hover.insert(0, f"worst error {text} is {value:.2g} of its tolerance")
    return {"text": text, "small": small, "kind": kind, "strength": round(strength, 2), "hover": hover,
            "partial": cell.partial}  # fmt: skip
