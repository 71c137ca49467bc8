"""Backends whose package is not installed: a table leaves them out, and one line names them."""

from __future__ import annotations

import pandas as pd

from . import units

NOT_INSTALLED = "needs the package"  # how the reason begins where a backend's package is not installed


def split(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Take out the backends that need a missing package in all of their cases.

    If no other backend is left, all rows stay.

    Returns:
        the remaining rows, and one line per missing package.
    """
    missing = rows["status"].eq("unsupported") & rows["reason"].map(units.plain).str.startswith(NOT_INSTALLED)
    always = missing.groupby(rows["backend"], sort=True).all()
    gone = rows["backend"].isin(always.index[always])
    if gone.all() or not gone.any():
        return rows, []
    reasons = rows.loc[gone].groupby("backend", sort=True)["reason"].first()
    backends: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        backends.setdefault(units.plain(reason), []).append(units.plain(name))
    return rows[~gone], [f"left out: {', '.join(names)} ({why})" for why, names in backends.items()]
