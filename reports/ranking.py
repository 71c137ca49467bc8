"""Which row of a comparison is fastest, and how each relates to the baseline."""

from __future__ import annotations

import math
from collections.abc import Hashable

import pandas as pd

from ssmperf import DIMENSIONS

from . import frames, units


def with_speedup(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Add `speedup`: the baseline's value over the row's own, if both are `ok` and have the same key."""
    values = _rank_values(table, field)
    row_keys = frames.keys(table)
    base = {
        key: value
        for key, backend, value in zip(row_keys, table["backend"], values, strict=True)
        if backend == frames.BASELINE and not math.isnan(value)
    }
    speedups = [base.get(key, math.nan) / value for key, value in zip(row_keys, values, strict=True)]
    return table.assign(speedup=pd.Series(speedups, index=table.index, dtype=float))


def mark_fastest(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Add `fastest` (the least value of `field` among the `ok` rows of a key) and `rivals` (their number)."""
    values = _rank_values(table, field)
    row_keys = frames.keys(table)
    best: dict[tuple[Hashable, ...], float] = {}
    rivals: dict[tuple[Hashable, ...], int] = {}
    for key, value in zip(row_keys, values, strict=True):
        if not math.isnan(value):
            best[key] = min(value, best.get(key, math.inf))
            rivals[key] = rivals.get(key, 0) + 1
    fastest = [value == best.get(key) for key, value in zip(row_keys, values, strict=True)]
    return table.assign(
        fastest=pd.Series(fastest, index=table.index, dtype=bool),
        rivals=pd.Series([rivals.get(key, 0) for key in row_keys], index=table.index, dtype=int),
    )


def ranked(table: pd.DataFrame, rank: str | None) -> pd.DataFrame:
    """Add `speedup`, `fastest` and `rivals`, and sort: rows of equal keys together, the fastest first.

    Groups are in the order of their subject, shape and axes; rows without a value come last.
    """
    table = mark_fastest(with_speedup(table, rank), rank)
    ordering = table.assign(_value=_rank_values(table, rank), _subject=table["subject"].astype(str))
    axes = [name for name in frames.KEY if name not in ("model", "shape")]
    by = ["_subject", *DIMENSIONS, *axes, "_value", "backend"]
    return table.loc[ordering.sort_values(by, kind="stable", na_position="last").index]


def wins(table: pd.DataFrame) -> dict[str, int]:
    """Count the contests (keys with two or more `ok` rivals) that each backend won, most first."""
    won = table.loc[table["fastest"] & (table["rivals"] > 1), "backend"].value_counts()
    return dict(sorted(((str(name), int(count)) for name, count in won.items()), key=lambda w: (-w[1], w[0])))


def _rank_values(table: pd.DataFrame, field: str | None) -> list[float]:
    """Give a field's values: NaN for rows that are not `ok`, and for values that are not positive."""
    if field is None or field not in table:
        return [math.nan] * len(table)
    pairs = zip(table[field], table["status"], strict=True)
    return [
        float(value) if status == "ok" and not units.missing(value) and value > 0 else math.nan
        for value, status in pairs
    ]
