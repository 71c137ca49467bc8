"""Envelope: how far records show a backend to be right, in quantities whose growth breaks backends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssmperf.engine.cases.record import Status

BROKEN = (Status.WRONG, Status.NAN, Status.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The largest values of some fields up to which every case that was tried is right.

    largest: a value by field, such as `{"decay_span": 88.0, "T": 8192}`; empty if no case is right.
    limited: the fields that something wrong limits: beyond the value of any other, nothing was tried.
    tried: whether any case tells anything.
    """

    largest: Mapping[str, float]
    limited: frozenset[str] = frozenset()
    tried: bool = True

    def exceeded(self, values: Mapping[str, float | None]) -> str | None:
        """Name the first field in which a case is beyond a value that something wrong limits; or None.

        A value of None is not known, and is beyond nothing.
        """
        for name, value in values.items():
            if name in self.limited and value is not None and value > self.largest.get(name, -1.0):
                return name
        return None

    def __str__(self) -> str:
        if not self.tried:
            return "not tried"
        if not self.largest:
            return "right nowhere"
        return f"right to {self.limits}"

    @property
    def limits(self) -> str:
        """The values as text, such as `decay span 88.2, T 8,192`."""
        return ", ".join(_limit(name, value) for name, value in self.largest.items())


def envelope_of(cases: Iterable[tuple[str, Mapping[str, Any]]], fields: Sequence[str]) -> Envelope:
    """Find the envelope of one backend from its cases, which agree in all that the envelope does not name.

    A wrong result limits it, and so does a refusal of the operands themselves, but none of the plan's, which
    knows no operands. Cases that lack a finite value of a field, such as the decay span of resets, do not
    count. The envelope is the box of values that holds no broken case and the most right ones; of several,
    the box with the largest values, the last field first.

    cases: the status of each, and its numbers and sizes by name.
    """
    points = [
        (tuple(value_of(numbers, name) for name in fields), status == Status.OK)
        for status, numbers in cases
        if status == Status.OK or status in BROKEN
    ]
    finite = [([value for value in values if value is not None], good) for values, good in points]
    known = [(values, good) for values, good in finite if len(values) == len(fields)]
    right = [values for values, good in known if good]
    broken = [values for values, good in known if not good]
    if not right:
        return Envelope({}, frozenset(fields if broken else ()), tried=bool(broken))
    sides = [sorted({values[place] for values in right}) for place in range(len(fields))]
    best: tuple[int, tuple[float, ...]] | None = None
    for corner in itertools.product(*sides):
        if any(_inside(values, corner) for values in broken):
            continue
        score = (sum(_inside(values, corner) for values in right), corner[::-1])
        if best is None or score > best:
            best = score
    if best is None or not best[0]:
        return Envelope({}, frozenset(fields))
    corner = best[1][::-1]
    outside = [{place for place, value in enumerate(values) if value > corner[place]} for values in broken]
    limited = {place for places in outside if len(places) == 1 for place in places}
    # a case that is wrong beyond several fields counts for the first, unless another case explains it
    limited |= {min(places) for places in outside if places and not places & limited}
    return Envelope(dict(zip(fields, corner, strict=True)), frozenset(fields[place] for place in limited))


def value_of(numbers: Mapping[str, Any], name: str) -> float | None:
    """Read a finite number by its name; None if there is none."""
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _inside(values: Sequence[float], corner: Sequence[float]) -> bool:
    return all(value <= limit for value, limit in zip(values, corner, strict=True))


def _limit(name: str, value: float) -> str:
    """Write a limit such as `T 8,192`; one that is no whole number has three digits, `decay span 88.2`."""
    text = f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.3g}"
    return f"{name.replace('_', ' ')} {text}"
