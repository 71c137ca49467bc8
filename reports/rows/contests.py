"""Contests by time: winners, backends beside them and those kept out; the sum of forward and backward.

A contest is a JSON object; `ssmperf.best` says what its fields are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, first_places

from . import frames, ranking, units

if TYPE_CHECKING:
    from ssmperf import Run

PARTS = ("forward", "backward")
SUM = " + ".join(PARTS)
_NAMED = ("suite", "subject", "shape", "dtype", "pass")
_AXES = tuple(axis for axis in frames.AXES if axis not in (*_NAMED, "model", "recurrence", "backend"))

Contest = dict[str, Any]


def contests(runs: Sequence[Run]) -> list[Contest]:
    """List the contests of all suites that rank by a time."""
    table = frames.frame(runs)
    found: list[Contest] = []
    for name, section in frames.sections(runs, table).items():
        rows = ranking.ranked(table[table["suite"] == name], section.rank)
        found += contests_of(rows, section.rank)
    return found


def rank_by_a_time(runs: Sequence[Run]) -> bool:
    """Whether a suite of these runs ranks by a time."""
    found = frames.sections(runs, frames.frame(runs)).values()
    return any(units.is_time(section.rank) for section in found)


def contests_of(rows: pd.DataFrame, rank: str | None) -> list[Contest]:
    """List the contests of a suite, whose rows `ranked` has sorted: one per key that has a time.

    If no backend is first in both forward and backward, a contest by their sum follows the two. There is none
    if the suite ranks by something else than a time.
    """
    if not units.is_time(rank):
        return []
    groups: dict[tuple[Hashable, ...], list[dict[str, Any]]] = {}
    for key, row in zip(frames.keys(rows), frames.records(rows), strict=True):
        groups.setdefault(key, []).append(row)
    place = frames.KEY.index("pass")
    passes: dict[tuple[Hashable, ...], dict[str, Contest]] = {}
    found: list[Contest] = []
    for key, members in groups.items():
        if not any(_timed(row, rank) for row in members):
            continue
        contest = _contest(members, rank)
        found.append(contest)
        parts = passes.setdefault((*key[:place], *key[place + 1 :]), {})
        parts[contest["pass"]] = contest
        if contest["pass"] in PARTS and parts.keys() >= {*PARTS} and _differ(parts):
            found.append(by_sum(parts))
    return found


def statement(contest: Contest) -> str:
    """Say in a sentence that forward and backward have different winners, and name the one by the sum."""
    where = " ".join(contest[name] for name in ("subject", "shape", "dtype"))
    won = "; ".join(f"{name}: {_names(contest['winners'][name])}" for name in PARTS)
    sums = ", ".join(f"{each['backend']} {_time(contest, each)}" for each in contest["competitors"])
    by_sum = f"{_names(contest['fastest'])} by the sum ({sums})" if sums else "none has both"
    return f"{where}: forward and backward have different winners ({won}); {by_sum}"


def kept_out(found: Sequence[Contest]) -> list[str]:
    """List the backends that are kept out, each with the reason, but not those that only decline a pass."""
    reasons: dict[tuple[str, ...], str] = {}
    for contest in found:
        for each in contest["excluded"]:
            if each["status"] == "unsupported" or contest["winners"]:
                continue
            pass_ = () if each["status"] in ranking.INCORRECT else (contest["pass"],)
            where = (each["backend"], *(contest[name] for name in ("subject", "shape", "dtype")), *pass_)
            if reasons.get(where, "").startswith(f"{each['status']} in "):
                continue  # that reason says where the backend is wrong
            reasons[where] = each["reason"]
    return [
        f"{backend} does not compete for {' '.join(where)}: {reason}"
        for (backend, *where), reason in reasons.items()
    ]


def notes(found: Sequence[Contest]) -> list[str]:
    """List the times that are not ranked as measured, each with the reason."""
    return [
        f"{each['backend']} for {' '.join(contest[name] for name in ('subject', 'shape', 'dtype', 'pass'))}: "
        f"{each['note']}"
        for contest in found
        if not contest["winners"]
        for each in (*contest["competitors"], *contest["beside"])
        if each["note"]
    ]


def _contest(members: Sequence[dict[str, Any]], rank: str) -> Contest:
    """Describe a contest, whose rows are in the order of `ranked`."""
    timed = [row for row in members if _timed(row, rank)]
    low, high = units.interval_names(rank)
    entries = {
        standing: [
            {
                "backend": units.plain(row["backend"]),
                "value": float(row[rank]),
                "low": units.as_float(row.get(low)),
                "high": units.as_float(row.get(high)),
                "speedup": units.as_float(row["speedup"]),
                "mark": units.plain(row["mark"]),
                "note": units.plain(row["time_note"]),
                "limit_fraction": units.as_float(row.get("limit_fraction")),
            }
            for row in timed
            if row["standing"] == standing
        ]
        for standing in ("competes", "beside")
    }
    excluded = [
        {
            "backend": units.plain(row["backend"]),
            "status": str(row["standing"]),
            "reason": _reason(row),
        }
        for row in members
        if row["standing"] not in entries
    ]
    row = members[0]
    head = {
        **{name: units.plain(row[name]) for name in _NAMED},
        "sizes": {name: int(row[name]) for name in DIMENSIONS if units.is_number(row[name])},
        "where": units.plain(row["environment"] or row["device"]),
        "run": units.plain(row["run"]),
        "date": units.plain(row["date"]),
        "axes": {name: row[name] for name in _AXES},
        "field": rank,
    }
    return _complete(head, entries["competes"], entries["beside"], excluded, None)


def by_sum(parts: dict[str, Contest]) -> Contest:
    """Make the contest by the sum of forward and backward. The ends of intervals are added too."""
    first, second = (parts[name] for name in PARTS)

    def added(kind: str) -> list[dict[str, Any]]:
        others = {each["backend"]: each for each in second[kind]}
        pairs = [(each, others[each["backend"]]) for each in first[kind] if each["backend"] in others]
        sums = [
            one
            | {name: _plus(one[name], other[name]) for name in ("value", "low", "high")}
            | {name: _joined(one[name], other[name]) for name in ("mark", "note")}
            | {"limit_fraction": _share(one, other)}
            for one, other in pairs
        ]
        return sorted(sums, key=lambda each: each["value"])

    competitors, beside = added("competitors"), added("beside")
    baseline = _sum_of_baseline(first, second)
    for each in (*competitors, *beside):
        each["speedup"] = None if baseline is None else baseline / each["value"]
    excluded = {each["backend"]: each for part in (second, first) for each in part["excluded"]}
    winners = {name: parts[name]["fastest"] for name in PARTS}
    head = {name: first[name] for name in (*_NAMED, "sizes", "where", "run", "date", "axes", "field")} | {
        "pass": SUM
    }
    return _complete(head, competitors, beside, list(excluded.values()), winners)


def _complete(
    head: Contest,
    competitors: list[dict[str, Any]],
    beside: list[dict[str, Any]],
    excluded: list[dict[str, Any]],
    winners: dict[str, list[str]] | None,
) -> Contest:
    """Add the holders of the first place. competitors: in the order of their times."""
    shares = first_places([(each["value"], each["low"], each["high"]) for each in competitors])
    fastest = [each["backend"] for each, first in zip(competitors, shares, strict=True) if first]
    winner = competitors[0] if competitors else None
    rival = competitors[1] if len(competitors) > 1 else None
    return {
        **head,
        "fastest": fastest,
        "tied": len(fastest) > 1,
        "backend": winner and winner["backend"],
        "value": winner and winner["value"],
        "speedup": winner and winner["speedup"],
        "limit_fraction": winner and winner["limit_fraction"],
        "runner_up": rival and rival["backend"],
        "runner_up_ratio": rival["value"] / winner["value"] if winner and rival else None,
        "competitors": competitors,
        "beside": beside,
        "excluded": excluded,
        "winners": winners,
    }


def _differ(parts: dict[str, Contest]) -> bool:
    """Tell whether forward and backward both have a winner, and no backend is first in both."""
    first, second = ({*parts[name]["fastest"]} for name in PARTS)
    return bool(first and second) and not first & second


def _sum_of_baseline(first: Contest, second: Contest) -> float | None:
    """Add the baseline's times, if it competes in both passes."""
    found = [
        each["value"]
        for part in (first, second)
        for each in part["competitors"]
        if each["backend"] == frames.BASELINE
    ]
    return math.fsum(found) if len(found) == 2 else None


def _timed(row: dict[str, Any], rank: str) -> bool:
    return bool(row["status"] == "ok" and units.is_number(row.get(rank)) and row[rank] > 0)


def _reason(row: dict[str, Any]) -> str:
    status = str(row["standing"])
    reason = units.plain(row["standing_reason"])
    return reason if reason.startswith(status) else f"{status}: {reason}"


def _names(names: Sequence[str]) -> str:
    """Join the names that share a place."""
    return f"{', '.join(names)} (tied)" if len(names) > 1 else "".join(names) or "none"


def _time(contest: Contest, entry: dict[str, Any]) -> str:
    return units.number(contest["field"], entry["value"])


def _share(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Give the least time of both passes over their time."""
    if one["limit_fraction"] is None or other["limit_fraction"] is None:
        return None
    least = sum(each["limit_fraction"] * each["value"] for each in (one, other))
    return float(least / (one["value"] + other["value"]))


def _joined(one: str, other: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, [one, other])))


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
