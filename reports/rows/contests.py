"""Contests by time: winners, backends beside them and those kept out; the sum of forward and backward.

A contest is a JSON object; `ssmperf.best` says what its fields are. Of several runs, the newest one counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf.suitekit import TRAINING, first_places, moment

from . import frames, ranking, units

if TYPE_CHECKING:
    from ssmperf import Run

PARTS = ("forward", "backward")
SUM = " + ".join(PARTS)
COMMIT_DIGITS = 8
NEVER = datetime.min.replace(tzinfo=UTC)  # the date of a run without one
_NAMED = ("suite", "subject", "shape", "dtype", "pass")
_AXES = tuple(axis for axis in frames.AXES if axis not in (*_NAMED, "model", "recurrence", "backend"))
OF_CALL = ("peak_bytes", "limit_fraction")
_PLACE = (*_NAMED[:-1], "sizes", "hardware", "axes")  # what contests of several passes and runs share
_HEAD = (*_NAMED, "owner", "sizes", "where", "hardware", "run", "date", "commit", "axes", "field")

Contest = dict[str, Any]


def contests(runs: Sequence[Run]) -> list[Contest]:
    """List the contests of all suites that rank by a time."""
    table = frames.frame(runs)
    found: list[Contest] = []
    for name, section in frames.sections(runs, table).items():
        rows = ranking.ranked(table[table["suite"] == name], section.rank)
        found += contests_of(rows, section.rank)
    mark_older(found)
    mark_refuted(found, table)
    return found


def mark_refuted(found: Sequence[Contest], table: pd.DataFrame) -> None:
    """Add to each contest the date of a newer run in which one of its fastest backends is wrong there."""
    places: dict[str, list[Contest]] = {}
    for each in found:
        places.setdefault(_place_of(each, "pass"), []).append(each)
    for row in frames.records(table[table["status"].isin(ranking.INCORRECT)]):
        head, backend = _head(row, None), units.plain(row["backend"])
        date = moment(head["date"]) or NEVER
        for each in places.get(_place_of(head, "pass"), ()):
            if backend in each["fastest"] and date > (moment(each["date"]) or NEVER):
                each["refuted"] = max(each["refuted"], head["date"])


def mark_older(found: Sequence[Contest]) -> None:
    """Add to each contest whether a newer run has it, too."""
    newest: dict[str, datetime] = {}
    dates = [(_place_of(each, "pass"), moment(each["date"]) or NEVER) for each in found]
    for place, date in dates:
        newest[place] = max(date, newest.get(place, NEVER))
    for each, (place, date) in zip(found, dates, strict=True):
        each["older"] = date < newest[place]


def of_passes(found: Iterable[Contest], passes: Sequence[str]) -> list[Contest]:
    """Select the contests of some passes. `training` is the sum of forward and backward.

    Where no run has timed both, it is the pass that was timed.
    """
    places: dict[str, dict[str, Contest]] = {}
    for each in found:
        places.setdefault(_place_of(each, "where", "run"), {})[each["pass"]] = each
    chosen = [
        contest
        for parts in places.values()
        for name in passes
        for contest in ([training(parts)] if name == TRAINING else [parts.get(name)])
        if contest is not None
    ]
    whole = {_place_of(each) for each in chosen if each["pass"] not in PARTS}
    wanted = {*passes, SUM, "forward_backward"}
    return [each for each in chosen if each["pass"] in wanted or _place_of(each) not in whole]


def training(parts: Mapping[str, Contest]) -> Contest | None:
    """Select the contest about training among those of one place, by pass; None if there is none."""
    if parts.keys() >= {*PARTS}:
        return by_sum(parts)
    return next((parts[name] for name in ("forward_backward", *PARTS) if name in parts), None)


def _place_of(contest: Contest, *more: str) -> str:
    return json.dumps([contest[name] for name in (*_PLACE, *more)], default=str)


def axes_that_differ(found: Sequence[Contest]) -> list[str]:
    """List the axes in which contests differ, beyond model, shape, dtype and pass."""
    axes = [contest["axes"] for contest in found]
    return [name for name in (axes[0] if axes else ()) if len({str(each[name]) for each in axes}) > 1]


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
        if contest["pass"] in PARTS and parts.keys() >= {*PARTS} and differ(*_winners(parts).values()):
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
                **{name: units.as_float(row.get(name)) for name in OF_CALL},
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
    head = _head(members[0], rank)
    return _complete(head, entries["competes"], entries["beside"], excluded, None)


def _head(row: Mapping[str, Any], rank: str | None) -> Contest:
    """Describe the place of a row's contest, and when and of which code it was measured."""
    return {
        **{name: units.plain(row[name]) for name in _NAMED},
        "owner": units.plain(row["recurrence"] if units.missing(row["model"]) else row["model"]),
        "sizes": frames.sizes(row),
        "where": units.plain(row["environment"] or row["device"]),
        "hardware": units.plain(row["hardware"] or row["device"]),
        "run": units.plain(row["run"]),
        "date": units.plain(row["date"]),
        "commit": _commit(row),
        "axes": {name: row[name] for name in _AXES},
        "field": rank,
    }


def _commit(row: Mapping[str, Any]) -> str:
    """Name the commit of the fastest backend's code, with a plus sign if there were changes beyond it."""
    kind = "" if units.missing(row["plugin"]) else "plugin_"
    commit = units.plain(row[f"{kind}commit"])[:COMMIT_DIGITS]
    return f"{commit}+" if commit and row[f"{kind}dirty"] is True else commit


def by_sum(parts: Mapping[str, Contest]) -> Contest:
    """Make the contest by the sum of forward and backward. The ends of intervals are added too."""
    first, second = (parts[name] for name in PARTS)

    def added(kind: str) -> list[dict[str, Any]]:
        others = {each["backend"]: each for each in second[kind]}
        pairs = [(each, others[each["backend"]]) for each in first[kind] if each["backend"] in others]
        sums = [
            one
            | {name: _plus(one[name], other[name]) for name in ("value", "low", "high")}
            | {name: _joined(one[name], other[name]) for name in ("mark", "note")}
            | {"peak_bytes": _larger(one, other), "limit_fraction": _share(one, other)}
            for one, other in pairs
        ]
        return sorted(sums, key=lambda each: each["value"])

    competitors, beside = added("competitors"), added("beside")
    baseline = _sum_of_baseline(first, second)
    for each in (*competitors, *beside):
        each["speedup"] = None if baseline is None else baseline / each["value"]
    excluded = {each["backend"]: each for part in (second, first) for each in part["excluded"]}
    head = {name: first[name] for name in _HEAD} | {"pass": SUM}
    found = _complete(head, competitors, beside, list(excluded.values()), _winners(parts))
    return found | {"refuted": max(first["refuted"], second["refuted"])}


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
        **{name: winner and winner[name] for name in ("speedup", *OF_CALL)},
        "runner_up": rival and rival["backend"],
        "runner_up_ratio": rival["value"] / winner["value"] if winner and rival else None,
        "competitors": competitors,
        "beside": beside,
        "excluded": excluded,
        "winners": winners,
        "older": False,
        "refuted": "",
    }


def differ(first: Sequence[str], second: Sequence[str]) -> bool:
    """Tell whether forward and backward both have a winner, and no backend is first in both."""
    return bool(first and second) and not {*first} & {*second}


def _winners(parts: Mapping[str, Contest]) -> dict[str, list[str]]:
    return {name: parts[name]["fastest"] for name in PARTS}


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


def _larger(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    known = [each["peak_bytes"] for each in (one, other) if each["peak_bytes"] is not None]
    return max(known, default=None)


def _share(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Give the least time of both passes over their time."""
    if one["limit_fraction"] is None or other["limit_fraction"] is None:
        return None
    least = sum(each["limit_fraction"] * each["value"] for each in (one, other))
    return float(least / (one["value"] + other["value"]))


def _joined(one: str, other: str) -> str:
    return ", ".join(dict.fromkeys(filter(None, [one, other])))


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
