"""Rank the backends of a comparison, and relate each to the baseline."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, Section, first_places

from . import frames, units

if TYPE_CHECKING:
    from ssmperf import Run

Part = tuple[Section, pd.DataFrame]  # a suite's section and its ranked rows
INCORRECT = ("wrong", "nan")
_TIERS = {"competes": 0, "beside": 1}  # the order within a comparison; a backend that is kept out comes last


def with_speedup(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Add `speedup`: the baseline's value over the row's own, if both are `ok` and have the same key.

    A baseline that is known to be wrong is none.
    """
    values = _rank_values(table, field)
    row_keys = frames.keys(table)
    base = {
        key: value
        for key, backend, standing, value in zip(
            row_keys, table["backend"], table["standing"], values, strict=True
        )
        if backend == frames.BASELINE and standing not in INCORRECT and not math.isnan(value)
    }
    speedups = [base.get(key, math.nan) / value for key, value in zip(row_keys, values, strict=True)]
    return table.assign(speedup=pd.Series(speedups, index=table.index, dtype=float))


def mark_fastest(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Add the outcome of each comparison by a field.

    rivals: the number of rows that compete: `ok`, with a value, and of a backend that is right and exact.
    fastest: whether the row has the first place among at least two rivals, alone or shared.
    tied: whether it shares that place: the values are near, and the intervals overlap.
    """
    values = _rank_values(table, field)
    low, high = (_column(table, name) for name in units.interval_names(field or ""))
    competing = _competing(table, values)
    fastest, tied = set[int](), set[int]()
    for members in competing.values():
        shares = first_places([(values[place], low[place], high[place]) for place in members])
        winners = [place for place, first in zip(members, shares, strict=True) if first]
        if len(members) > 1:
            fastest.update(winners)
        if len(winners) > 1:
            tied.update(winners)
    rivals = [len(competing[key]) for key in frames.keys(table)]
    places = range(len(table))
    return table.assign(
        fastest=pd.Series([place in fastest for place in places], index=table.index, dtype=bool),
        tied=pd.Series([place in tied for place in places], index=table.index, dtype=bool),
        rivals=pd.Series(rivals, index=table.index, dtype=int),
    )


def shares_of_fastest(table: pd.DataFrame, field: str | None) -> pd.Series:
    """Give the least value of a comparison over the row's own; NaN where fewer than two rows compete."""
    values = _rank_values(table, field)
    competing = _competing(table, values)
    least = {key: min(values[place] for place in found) for key, found in competing.items() if len(found) > 1}
    shares = [least.get(key, math.nan) / value for key, value in zip(frames.keys(table), values, strict=True)]
    return pd.Series(shares, index=table.index, dtype=float)


def ranked(table: pd.DataFrame, rank: str | None) -> pd.DataFrame:
    """Add `speedup`, `fastest`, `tied` and `rivals`; sort rows of equal keys together, the fastest first.

    Backends that are shown beside the others follow those that compete, and backends that are kept out follow
    these. Groups are in the order of their subject, shape and axes; rows without a value come last.
    """
    table = mark_fastest(with_speedup(table, rank), rank)
    values = pd.Series(_rank_values(table, rank), index=table.index, dtype=float)
    tiers = table["standing"].map(lambda standing: _TIERS.get(standing, len(_TIERS)))
    tiers = tiers.where(values.notna(), len(_TIERS) + 1)
    ordering = table.assign(_value=values, _tier=tiers, _subject=table["subject"].astype(str))
    axes = [name for name in frames.KEY if name not in ("model", "shape")]
    by = ["_subject", *DIMENSIONS, *axes, "_tier", "_value", "backend"]
    return table.loc[ordering.sort_values(by, kind="stable", na_position="last").index]


def parts(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, Part]:
    """Give each suite's section and its rows, ranked. table: the frame of the runs."""
    return {
        name: (section, ranked(table[table["suite"] == name], section.rank))
        for name, section in frames.sections(runs, table).items()
    }


def wins(table: pd.DataFrame) -> dict[str, int]:
    """Count the comparisons in which each backend has the first place, alone or shared, most first."""
    won = table.loc[table["fastest"], "backend"].value_counts()
    return dict(sorted(((str(name), int(count)) for name, count in won.items()), key=lambda w: (-w[1], w[0])))


def decided(table: pd.DataFrame) -> tuple[int, int]:
    """Count the comparisons that have a first place, and those of them in which it is shared."""
    won, shared = ({*frames.keys(table[table[column]])} for column in ("fastest", "tied"))
    return len(won), len(shared)


def _competing(table: pd.DataFrame, values: Sequence[float]) -> dict[tuple[Hashable, ...], list[int]]:
    """Give the places of the rows that compete in each comparison: right and exact, with a value."""
    found: dict[tuple[Hashable, ...], list[int]] = {}
    for place, (key, standing) in enumerate(zip(frames.keys(table), table["standing"], strict=True)):
        members = found.setdefault(key, [])
        if standing == "competes" and not math.isnan(values[place]):
            members.append(place)
    return found


def _rank_values(table: pd.DataFrame, field: str | None) -> list[float]:
    """Give a field's values: NaN for rows that are not `ok`, and for values that are not positive."""
    if field is None or field not in table:
        return [math.nan] * len(table)
    pairs = zip(table[field], table["status"], strict=True)
    return [
        float(value) if status == "ok" and units.is_number(value) and value > 0 else math.nan
        for value, status in pairs
    ]


def _column(table: pd.DataFrame, name: str) -> list[float | None]:
    """Give a column's numbers, None where there is none."""
    if name not in table:
        return [None] * len(table)
    return [units.as_float(value) for value in table[name]]
