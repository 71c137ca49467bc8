"""All suites at a glance: speed, memory, error and length of each model and backend, and the Pareto front.

It needs no suite by name: one that ranks by a time gives the speed, one that ranks by bytes the memory, and
those that rank nothing say how far a backend is from the exact result, and up to which length it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ssmperf import Section

from . import frames, ranking, units

LEAST_QUESTIONS = 2  # a single suite is shown by its own table
STEPS = (1.02, 1.02, 3.0, 2.0)  # factors by which time, memory, error and length must differ to count
LEAST = 1e-9  # of an error over its tolerance


@dataclass(slots=True)
class Glance:
    """A backend's line.

    slowness, memory: geometric means of its time and of its bytes over the least ones at the same place,
        among backends that are right; 1 is the best. error: the largest error over its tolerance.
    longest: the largest T up to which all lengths are right.
    standing: as in the comparisons by time, or else the worst of all. mark: see `ssmperf.Standing`.
    front: whether it competes, and no other backend is better in one of the numbers and as good in the rest.
    """

    place: tuple[str, str, str]
    backend: str
    slowness: float | None = None
    memory: float | None = None
    error: float | None = None
    longest: int | None = None
    standing: str = "competes"
    mark: str = ""
    front: bool = False
    ratios: dict[str, list[float]] = field(default_factory=dict)

    @property
    def grades(self) -> tuple[float, ...]:
        """Give what is compared in steps of STEPS: less is better, infinite is not known."""
        shorter = None if self.longest is None else 1 / self.longest
        pairs = zip((self.slowness, self.memory, self.error, shorter), STEPS, strict=True)
        return tuple(
            math.inf if value is None else round(math.log(max(value, LEAST)) / math.log(step))
            for value, step in pairs
        )


def glances(parts: Mapping[str, tuple[Section, pd.DataFrame]]) -> list[Glance]:
    """Join the ranked rows of all suites; empty if they answer fewer than two questions."""
    found: dict[tuple[Any, ...], Glance] = {}
    questions = set()
    for section, rows in parts.values():
        rank = section.rank
        kind = {"_s": "slowness", "_bytes": "memory"}.get(units.suffix(rank)) if rank else None
        if rank and kind and rank in rows:
            questions.add(kind)
            _compare(found, rows, rank, kind)
        elif not rank and rows["error_ratio"].notna().any():
            questions.add("error")
            _judge(found, rows)
    if len(questions) < LEAST_QUESTIONS:
        return []
    for each in found.values():
        each.slowness, each.memory = (_mean(each.ratios.get(kind, [])) for kind in ("slowness", "memory"))
    _mark_front(list(found.values()))
    shown = [each for each in found.values() if each.slowness is not None or each.memory is not None]
    return sorted(
        shown, key=lambda each: (each.place, each.standing != "competes", each.grades, each.backend)
    )


def _compare(found: dict[tuple[Any, ...], Glance], rows: pd.DataFrame, rank: str, kind: str) -> None:
    """Relate each row of a suite that ranks to the least value of those that compete with it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for key, row in zip(frames.keys(rows), frames.records(rows), strict=True):
        if row["status"] == "ok" and units.is_number(row.get(rank)) and row[rank] > 0:
            groups.setdefault(key, []).append(row)
    for members in groups.values():
        competing = [row[rank] for row in members if row["standing"] == "competes"]
        for row in members:
            each = _glance(found, row)
            if competing:
                each.ratios.setdefault(kind, []).append(row[rank] / min(competing))
            if row["standing"] != "competes":
                each.standing, each.mark = str(row["standing"]), units.plain(row["mark"])


def _judge(found: dict[tuple[Any, ...], Glance], rows: pd.DataFrame) -> None:
    """Read the errors of a suite that ranks nothing, and up to which length a backend is right."""
    right: dict[int, tuple[Glance, dict[int, bool]]] = {}
    for row in frames.records(rows):
        each = _glance(found, row)
        if not units.missing(row["error_ratio"]):
            each.error = max(each.error or 0.0, float(row["error_ratio"]))
        if row["status"] in ranking.INCORRECT:
            each.standing, each.mark = str(row["status"]), each.mark or f"{row['status']} in {row['suite']}"
        if row["status"] in ("ok", *ranking.INCORRECT) and not units.missing(row.get("T")):
            _, lengths = right.setdefault(id(each), (each, {}))
            lengths[int(row["T"])] = lengths.get(int(row["T"]), True) and row["status"] == "ok"
    for each, lengths in right.values():
        for T in sorted(lengths):
            if not lengths[T]:
                break
            each.longest = max(each.longest or 0, T)


def _glance(found: dict[tuple[Any, ...], Glance], row: Mapping[str, Any]) -> Glance:
    where = units.plain(row["environment"] or row["device"])
    place = (units.plain(row["subject"]), units.plain(row["dtype"]), where)
    backend = units.plain(row["backend"])
    return found.setdefault((place, backend), Glance(place, backend))


def _mark_front(every: Sequence[Glance]) -> None:
    """Mark the backends that compete and that no other one of their place dominates."""
    places: dict[tuple[str, str, str], list[Glance]] = {}
    for each in every:
        if each.standing == "competes" and each.slowness is not None:
            places.setdefault(each.place, []).append(each)
    for members in places.values():
        for each in members:
            each.front = not any(_dominates(other.grades, each.grades) for other in members)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _mean(ratios: Sequence[float]) -> float | None:
    """Give the geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None
