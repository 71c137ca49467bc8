"""Crossings: the lengths at which the fastest backend changes.

Lengths are compared at the same number of tokens, or at the same batch where there are no such lengths.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, first_places

from . import frames, units

_WITHOUT = ("shape", "B", "T")  # axes that differ along a curve
_FIXED = tuple(letter for letter in DIMENSIONS if letter not in ("B", "T"))
_AXES = tuple(axis for axis in frames.KEY if axis not in _WITHOUT)

Curve = dict[int, dict[str, dict[str, Any]]]  # rows by length and backend


@dataclass(frozen=True, slots=True)
class Crossing:
    """The fastest backend changes between two lengths, between which it may share its place.

    where: the comparison, in words. held: the size that both lengths share, in words.
    before, after: the fastest backends. shortest, longest: the two lengths.
    at: the length at which straight lines through the times cross, in logs.
    """

    where: str
    held: str
    before: str
    after: str
    shortest: int
    longest: int
    at: float

    @property
    def statement(self) -> str:
        """Say it in a sentence."""
        near = float(f"{self.at:.2g}")
        return (
            f"{self.where}: {self.after} overtakes {self.before} at about T = {near:,.0f} "
            f"(measured at {self.shortest:,} and {self.longest:,}, {self.held})"
        )


def crossings(rows: pd.DataFrame, rank: str | None) -> list[Crossing]:
    """List the crossings of a suite that ranks by a time, in the order of its subjects.

    A backend that does not compete takes part in none. A shared first place is no change: what leads to the
    change or away from it may be one.
    """
    if not units.is_time(rank) or rank not in rows:
        return []
    timed = rows[(rows["status"] == "ok") & (rows["standing"] == "competes") & rows["T"].notna()]
    return [
        crossing
        for where, held, curve in _curves(frames.records(timed), rank)
        for crossing in _of_curve(where, held, curve, rank)
    ]


def _curves(rows: list[dict[str, Any]], rank: str) -> Iterator[tuple[str, str, Curve]]:
    """Group rows to curves: by the number of tokens, else by the batch, if there are two lengths."""
    groups: dict[tuple[Hashable, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if units.is_number(row.get(rank)) and row[rank] > 0:
            same = (*(_hashable(row.get(name)) for name in (*_AXES, "subject", *_FIXED)),)
            groups.setdefault(same, []).append(row)
    for members in groups.values():
        for held in (_tokens, _batch):
            parts: dict[str, Curve] = {}
            for row in members:
                parts.setdefault(held(row), {}).setdefault(int(row["T"]), {})[str(row["backend"])] = row
            curves = {text: curve for text, curve in parts.items() if len(curve) > 1}
            yield from ((_where(members[0]), text, curve) for text, curve in curves.items())
            if curves:
                break


def _of_curve(where: str, held: str, curve: Curve, rank: str) -> Iterator[Crossing]:
    shortest, *longer = sorted(curve)
    for length in longer:
        first, second = curve[shortest], curve[length]
        both = first.keys() & second.keys()
        before, after = (_fastest({name: side[name] for name in both}, rank) for side in (first, second))
        if before and {*after} - {*before} and {*after} & {*before}:
            continue  # another one shares the place: who has it alone at a longer length?
        if before and not {*before} & {*after}:
            at = _meeting(curve, before[0], after[0], shortest, length, rank)
            yield Crossing(where, held, " and ".join(before), " and ".join(after), shortest, length, at)
        shortest = length


def _meeting(curve: Curve, one: str, other: str, shortest: int, longest: int, rank: str) -> float:
    """Find where the lines through two times cross, in logs: `one` is faster at first, `other` at last."""
    gaps = [
        (T, math.log(curve[T][other][rank] / curve[T][one][rank]))  # above 0: `one` is faster
        for T in sorted(curve)
        if shortest <= T <= longest and one in curve[T] and other in curve[T]
    ]
    (low, start), (high, end) = next(
        pair for pair in itertools.pairwise(gaps) if pair[0][1] > 0 >= pair[1][1]
    )
    return math.exp(math.log(low) + start / (start - end) * math.log(high / low))


def _fastest(rows: Mapping[str, dict[str, Any]], rank: str) -> list[str]:
    """Name the backends that share the first place, the quickest first."""
    low, high = units.interval_names(rank)
    names = sorted(rows, key=lambda name: (rows[name][rank], name))
    ordered = [rows[name] for name in names]
    ends = [
        (float(row[rank]), units.as_float(row.get(low)), units.as_float(row.get(high))) for row in ordered
    ]
    return [units.plain(name) for name, first in zip(names, first_places(ends), strict=True) if first]


def _where(row: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{letter}{row[letter]:.0f}" for letter in _FIXED if not units.missing(row.get(letter)))
    return " ".join(
        filter(None, [units.plain(row["subject"]), sizes, units.plain(row["dtype"]), row["pass"]])
    )


def _tokens(row: Mapping[str, Any]) -> str:
    return f"{int(row['B'] * row['T']):,} tokens"


def _batch(row: Mapping[str, Any]) -> str:
    return f"B = {int(row['B']):,}"


def _hashable(value: Any) -> Hashable:
    return "" if units.missing(value) else value if isinstance(value, (str, int, float)) else repr(value)
