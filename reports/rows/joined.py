"""All suites at a glance: speed, memory, error and length of each model and backend, and the Pareto front.

It needs no suite by name: one that ranks by a time gives the speed, one that ranks by bytes the memory, those
that rank nothing say how far a backend is from the exact result, and those with envelopes up to where it is
right. Who competes is decided as in `best`: from the standings of the ranked rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ssmperf.suitekit import Section

from . import envelopes, frames, ranking, units

LEAST_QUESTIONS = 2  # a single suite is shown by its own table
STEPS = (1.02, 1.02, 3.0)  # factors by which time, memory and error must differ to count
LENGTH_STEP = 2.0  # the same for lengths
LEAST = 1e-9  # of an error over its tolerance
TASK = "task"  # begins the source of operands of a case that trains a network
_KINDS = {"_s": "slowness", "_bytes": "memory"}  # the subject of a suite, by the unit of its rank


@dataclass(slots=True)
class Glance:
    """A backend's line.

    owner: the model, or the recurrence.
    slowness, memory: geometric means of its time and of its bytes over the least ones at the same place,
        among backends that are right; 1 is the best. Where it competes, other cases do not count.
    error: the largest error over its tolerance; beyond an envelope, errors do not count.
    longest: the largest T up to which all lengths are right; None if there is none.
    limited: whether something wrong ends them. If not, longer ones were not tried.
    envelopes: up to where it is right by each suite that gives envelopes, as text.
    learned: the verdict on the networks' learning, as text by task.
    trained: whether these networks have the line's dtype.
    standing: "competes" if it does so in any case; else the worst standing.
    mark: why it does not compete in some cases, and in how many if it does in others.
    front: whether it competes, and no other backend is better in one of the numbers and as good in the rest.
    """

    place: tuple[str, str, str]
    backend: str
    owner: str = ""
    slowness: float | None = None
    memory: float | None = None
    error: float | None = None
    longest: int | None = None
    limited: bool = False
    envelopes: list[str] = field(default_factory=list)
    learned: dict[str, str] = field(default_factory=dict)
    trained: bool = False
    standing: str = "competes"
    mark: str = ""
    front: bool = False

    @property
    def grades(self) -> tuple[float, ...]:
        """Give time, memory and error in steps of STEPS: less is better, infinite is not known."""
        pairs = zip((self.slowness, self.memory, self.error), STEPS, strict=True)
        return tuple(
            math.inf if value is None else round(math.log(max(value, LEAST)) / math.log(step))
            for value, step in pairs
        )

    @property
    def reach(self) -> float:
        """Give the longest T in steps of LENGTH_STEP: more is better."""
        return -math.inf if self.longest is None else round(math.log(self.longest) / math.log(LENGTH_STEP))


@dataclass(slots=True)
class _Seen:
    """Contents of the rows of a line, before it is summed up.

    ratios: by kind, whether the row competes, and its value over the least. standings: the standing and the
    mark of each row. lengths: whether a length is right, by T. limits: the largest T of each envelope
    (None if it is right nowhere), and whether something wrong limits it.
    """

    ratios: dict[str, list[tuple[bool, float]]] = field(default_factory=dict)
    standings: list[tuple[str, str]] = field(default_factory=list)
    lengths: dict[int, bool] = field(default_factory=dict)
    limits: list[tuple[int | None, bool]] = field(default_factory=list)


class _Lines:
    """The lines by place and backend, with the rows seen of each."""

    def __init__(self) -> None:
        self.found: dict[tuple[tuple[str, str, str], str], tuple[Glance, _Seen]] = {}

    def of(self, row: Mapping[str, Any]) -> tuple[Glance, _Seen]:
        where = units.plain(row["environment"] or row["device"])
        place = (units.plain(row["subject"]), units.plain(row["dtype"]), where)
        backend, owner = units.plain(row["backend"]), units.plain(_owner(row))
        return self.found.setdefault((place, backend), (Glance(place, backend, owner), _Seen()))

    def owned(self, row: Mapping[str, Any], *, any_dtype: bool = False) -> list[tuple[Glance, _Seen]]:
        """List the lines of a row's model or recurrence on its backend and hardware."""
        (each, seen), owner = self.of(row), units.plain(_owner(row))
        lines = [
            (other, about)
            for other, about in self.found.values()
            if (other.owner, other.backend, other.place[2]) == (owner, each.backend, each.place[2])
            if any_dtype or other.place[1] == each.place[1]
        ]
        return lines or [(each, seen)]


def glances(parts: Mapping[str, tuple[Section, pd.DataFrame]]) -> list[Glance]:
    """Join the ranked rows of all suites; empty if they answer fewer than two questions."""
    lines = _Lines()
    questions = set()
    for section, rows in parts.values():
        rank = section.rank
        kind = _KINDS.get(units.suffix(rank)) if rank else None
        trained = rows["operand_source"].map(_is_task)
        if rank and kind and rank in rows:
            questions.add(kind)
            _compare(lines, rows, rank, kind)
        elif not rank and rows["error_ratio"].notna().any():
            questions.add("error")
            _measure_errors(lines, rows[~trained], explores=bool(section.envelope))
        if not section.envelope:
            _judge_lengths(lines, rows[~trained])
    for section, rows in parts.values():  # these belong to lines that are known by now
        if section.envelope:
            _explore(lines, rows, section)
        for row in frames.records(rows[rows["operand_source"].map(_is_task)]):
            _add_learned(lines, row)
    if len(questions) < LEAST_QUESTIONS:
        return []
    for each, seen in lines.found.values():
        _sum_up(each, seen)
    shown = _shown([each for each, _ in lines.found.values()])
    _mark_front(shown)
    return sorted(
        shown,
        key=lambda each: (each.place, each.standing != "competes", each.grades, -each.reach, each.backend),
    )


def _shown(every: Sequence[Glance]) -> list[Glance]:
    """Select the lines that have a time or bytes, and those that learned on a backend without a line."""
    measured = [each for each in every if each.slowness is not None or each.memory is not None]
    known = {(each.owner, each.place[2], each.backend) for each in measured}
    models = {key[:2] for key in known}
    return measured + [
        each
        for each in every
        if each.trained and (each.owner, each.place[2]) in models
        if (each.owner, each.place[2], each.backend) not in known
    ]


def _compare(lines: _Lines, rows: pd.DataFrame, rank: str, kind: str) -> None:
    """Relate each row of a suite that ranks to the least value of those that compete with it."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for key, row in zip(frames.keys(rows), frames.records(rows), strict=True):
        known = row["status"] == "ok" and units.is_number(row.get(rank)) and row[rank] > 0
        if known:
            groups.setdefault(key, []).append(row)
        if known or row["status"] in ranking.INCORRECT:
            standing = (str(row["standing"]), units.plain(row["mark"]) or units.plain(row["standing"]))
            lines.of(row)[1].standings.append(standing)
    for members in groups.values():
        competing = [row[rank] for row in members if row["standing"] == "competes"]
        for row in members if competing else ():
            ratio = (row["standing"] == "competes", row[rank] / min(competing))
            lines.of(row)[1].ratios.setdefault(kind, []).append(ratio)


def _measure_errors(lines: _Lines, rows: pd.DataFrame, *, explores: bool) -> None:
    """Read the largest errors. In a suite that explores where backends break, only right cases count."""
    for row in frames.records(rows):
        if not units.missing(row["error_ratio"]) and not (explores and row["status"] in ranking.INCORRECT):
            each, _ = lines.of(row)
            each.error = max(each.error or 0.0, float(row["error_ratio"]))


def _judge_lengths(lines: _Lines, rows: pd.DataFrame) -> None:
    """Read which lengths are right: those at which every case that was judged is."""
    for row in frames.records(rows):
        right = row["status"] == "ok" and not units.missing(row["error_ratio"])
        if (right or row["status"] in ranking.INCORRECT) and not units.missing(row.get("T")):
            lengths = lines.of(row)[1].lengths
            lengths[int(row["T"])] = lengths.get(int(row["T"]), True) and right


def _explore(lines: _Lines, rows: pd.DataFrame, section: Section) -> None:
    """Find the envelope of each backend, and give it to all lines of its model or recurrence."""
    for first, envelope, text in envelopes.reached(rows, section.envelope):
        for each, seen in lines.owned(first):
            each.envelopes.append(text)
            if "T" in section.envelope:
                longest = envelope.largest.get("T")
                limited = "T" in envelope.limited or longest is None
                seen.limits.append((None if longest is None else int(longest), limited))


def _add_learned(lines: _Lines, row: Mapping[str, Any]) -> None:
    """Add what a network learned to the lines of its model and backend, whatever their dtype."""
    if row["status"] == "unsupported":
        return
    text = units.plain(row.get("learned")) or units.plain(row["status"])
    if units.is_number(row.get("holds_to")):
        text += f", holds to {row['holds_to']:.0f} T = {row['holds_to'] * row['T']:,.0f}"
    name = units.plain(str(row["operand_source"]).partition("/")[2])
    lines.of(row)[0].trained = True
    for each, _ in lines.owned(row, any_dtype=True):
        each.learned[name] = text


def _sum_up(each: Glance, seen: _Seen) -> None:
    """Set a line's means, its length and its standing from the rows seen."""
    competing = [entry for entry in seen.standings if entry[0] == "competes"]
    apart = [entry for entry in seen.standings if entry[0] != "competes"]
    each.slowness, each.memory = (
        _mean([ratio for competes, ratio in seen.ratios.get(kind, ()) if competes or not competing])
        for kind in _KINDS.values()
    )
    each.longest, each.limited = _longest(seen)
    if not apart:
        return
    standing, each.mark = max(apart, key=lambda entry: entry[0] in ranking.INCORRECT)
    if competing:
        each.mark += f" in {len(apart)} of {len(seen.standings)}"
    else:
        each.standing = standing


def _longest(seen: _Seen) -> tuple[int | None, bool]:
    """Give the largest T up to which all is right, and whether something wrong limits it."""
    limits = list(seen.limits)
    if seen.lengths:
        wrong = min((T for T, right in seen.lengths.items() if not right), default=math.inf)
        right = [T for T in seen.lengths if wrong > T]
        limits.append((max(right, default=None), wrong < math.inf))
    ends = [longest for longest, limited in limits if limited]
    if ends:
        return min(ends, key=lambda longest: longest or 0), True
    return max((longest for longest, _ in limits if longest is not None), default=None), False


def _mark_front(every: Sequence[Glance]) -> None:
    """Mark the backends that compete and that no other one of their place dominates."""
    places: dict[tuple[str, str, str], list[Glance]] = {}
    for each in every:
        if each.standing == "competes" and each.slowness is not None:
            places.setdefault(each.place, []).append(each)
    for members in places.values():
        for each in members:
            each.front = not any(dominates(other, each) for other in members)


def dominates(one: Glance, other: Glance) -> bool:
    """Tell whether a line is as good as another one in all numbers, and better in one.

    Lengths count only where they were tried: the one that is right at all lengths tried may be right beyond.
    """
    reach = 0.0
    if other.limited and one.reach > other.reach:
        reach = 1.0
    elif one.limited and other.reach > one.reach:
        reach = -1.0
    pairs = list(zip(one.grades, other.grades, strict=True))
    as_good = reach >= 0 and all(a <= b for a, b in pairs)
    return as_good and (reach > 0 or any(a < b for a, b in pairs))


def _owner(row: Mapping[str, Any]) -> Any:
    return row["recurrence"] if units.missing(row["model"]) else row["model"]


def _is_task(source: Any) -> bool:
    """Tell whether a case with this source of operands trains a network."""
    return str(source).partition("/")[0] == TASK


def _mean(ratios: Sequence[float]) -> float | None:
    """Give the geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None
