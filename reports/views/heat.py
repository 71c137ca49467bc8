"""Model × backend matrices for the page: text, colour and hover text of each cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, Section

from ..rows import frames, units
from .matrix import Cell, Matrix, matrix

MOST_REASONS = 3  # of a cell, on hover


def matrices(rows: pd.DataFrame, section: Section) -> list[dict[str, Any]]:
    """Make the matrix of all cases, and one per combination of the axes that split it, if there are several.

    Several runs split it too. A single case needs no matrix.
    """
    if len(rows) < 2:
        return []
    axes = ["run", *section.split] if rows["run"].nunique() > 1 else [*section.split]
    groups = [(_label(axes, values), part) for values, part in rows.groupby(axes)] if axes else []
    views = [("all cases", rows), *(groups if len(groups) > 1 else [])]
    return [{"label": label, **_view(part, section)} for label, part in views]


def _label(axes: Sequence[str], values: Sequence[Any]) -> str:
    """Name a combination of values, such as `forward, T4096`."""
    pairs = zip(axes, values, strict=True)
    return ", ".join(
        f"{axis}{value:g}" if axis in DIMENSIONS else units.plain(value) for axis, value in pairs
    )


def _view(rows: pd.DataFrame, section: Section) -> dict[str, Any]:
    """Give a matrix as the page's template reads it."""
    found = matrix(rows, section)
    heats = {place: _heat(cell, section.rank) for place, cell in found.cells.items()}
    shown = [name for name in found.backends if not _says_nothing(name, found, heats)]
    return {
        "backends": [*map(units.plain, shown)],
        "shares": found.has_shares,
        "rows": [
            (
                units.plain(found.label(row)),
                [(units.plain(name), heats.get((row, name))) for name in shown],
            )
            for row in found.rows
        ],
    }


def _says_nothing(name: str, found: Matrix, heats: Mapping[tuple[str, str], Mapping[str, Any]]) -> bool:
    """Tell whether a column is that of the baseline, and each of its cells says 1.00× and nothing else."""
    if name != frames.BASELINE or len(found.backends) == 1:
        return False
    places = [(row, name) for row in found.rows if (row, name) in found.cells]
    same = {"text": units.ratio(1.0), "small": "", "partial": False}
    return all(same.items() <= heats[place].items() and not found.cells[place].reasons for place in places)


def _heat(cell: Cell, rank: str | None) -> dict[str, Any]:
    """Give a cell's text and small text, colour (kind and strength from 0 to 1), and lines of hover text."""
    shown = _shown(cell, rank)
    reasons = [*cell.reasons[:MOST_REASONS]]
    if len(cell.reasons) > MOST_REASONS:
        reasons.append(f"and {len(cell.reasons) - MOST_REASONS} more reasons")
    hover = [*shown.pop("hover"), f"{cell.ok} of {cell.cases} cases ok", *reasons]
    small = " ".join(filter(None, [shown["small"], cell.mark]))
    return {**shown, "small": small, "hover": hover, "partial": cell.partial}


def _shown(cell: Cell, rank: str | None) -> dict[str, Any]:
    """Show the status if there is no number to show, else the speedup of a ranked suite, or the error."""
    if cell.shows_status(rank):
        kind = "none" if cell.status == "unsupported" else "broken"
        return {"text": cell.status, "small": cell.note, "kind": kind, "strength": 1, "hover": []}
    if cell.shows_share:
        text = units.number("share_fraction", cell.share)
        hover = [f"at best {text} of the fastest's speed, or of the least value"]
        return {"text": text, "small": "", "kind": "plain", "strength": 0, "hover": hover}
    if units.missing(cell.speedup if rank else cell.error_ratio):
        return {"text": "ok", "small": "", "kind": "plain", "strength": 0, "hover": []}
    return _speedup(cell) if rank else _error(cell)


def _speedup(cell: Cell) -> dict[str, Any]:
    """Show the best speedup; the colour says how many doublings of the speed that is."""
    doublings = math.log2(cell.speedup)
    text, mean = units.ratio(cell.speedup), units.ratio(cell.mean_speedup)
    return {
        "text": text,
        "small": "",
        "kind": "plain" if cell.mark else _direction(doublings),
        "strength": round(min(1.0, abs(doublings) / 5), 2),
        "hover": [f"best {text}, geometric mean {mean} against {frames.BASELINE}"],
    }


def _direction(doublings: float) -> str:
    return "up" if doublings > 0.07 else "down" if doublings < -0.07 else "plain"


def _error(cell: Cell) -> dict[str, Any]:
    """Show the worst error; the colour says how far it is from half of its tolerance."""
    ratio, text = cell.error_ratio, units.number("error", cell.error)
    kind = "up" if ratio <= 0.5 else "edge" if ratio <= 1 else "down"
    strength = 0.6 if kind == "edge" else min(1.0, abs(math.log10(max(ratio, 1e-4) / 0.5)) / 3)
    return {
        "text": text,
        "small": f"{ratio:.2g} tol",
        "kind": kind,
        "strength": round(strength, 2),
        "hover": [f"worst error {text} is {ratio:.2g} of its tolerance"],
    }
