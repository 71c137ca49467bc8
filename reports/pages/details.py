"""Details on the page: all fields of a case, the cases that did not end ok, the environments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import UnreadableRun
from ssmperf.suitekit import DIMENSIONS, Calibration

from ..rows import frames, units
from . import case_tables

if TYPE_CHECKING:
    from ssmperf import Run

MOST_OBJECTS, MOST_PIECES = 12, 64  # of a diagnosis
MOST_SAMPLES = 60_000  # on the whole page; of more, every n-th is kept
_NOT_DETAILS = {"run", "subject", "samples_s", "command", "reason", "fastest", "tied", "rivals", "mark",
                "standing", "standing_reason", "time_note", "schema_version", "worst_object", "environment",
                "traceback", "diagnosis", *DIMENSIONS}  # fmt: skip


def samples_kept(cases: int) -> int:
    """Give how many samples of a case are kept on a page with so many cases."""
    return max(16, min(120, MOST_SAMPLES // max(1, cases)))


def details(rows: pd.DataFrame, keep: int) -> dict[str, Any]:
    """Give all fields of each row, for the page's script. keep: of more samples, every n-th is kept."""
    return case_tables.details([_detail(row, keep) for row in frames.records(rows)])


def _detail(row: Mapping[str, Any], keep: int) -> dict[str, Any]:
    fields = [
        [name, units.of_row(name, row), _exact(name, value)]
        for name, value in row.items()
        if name not in _NOT_DETAILS and not units.missing(value) and not isinstance(value, Mapping)
        if name != "busy" or value != []
    ]
    samples = row.get("samples_s")
    samples = samples if isinstance(samples, (list, tuple)) else []
    stride = -(-len(samples) // keep) if samples else 1
    shown = [value for value in samples[::stride] if isinstance(value, (int, float)) and value is not True]
    return {
        "fields": fields + _configuration(row.get("configuration")),
        "errors": _errors(row),
        "diagnosis": _diagnosis(row.get("diagnosis")),
        "traceback": units.plain_lines(row.get("traceback")),
        "command": units.plain(row.get("command")),
        "samples": [float(f"{value:.4g}") for value in shown],
        "count": len(samples),
    }


def _errors(row: Mapping[str, Any]) -> list[list[str]]:
    """Give each judged object's name, error, tolerance, row error and row tolerance as text."""
    errors, *others = (
        numbers if isinstance(numbers := row.get(field), Mapping) else {}
        for field in ("errors", "tolerances", "row_errors", "row_tolerances")
    )
    return [
        [
            units.plain(name),
            units.number("error", error),
            units.number("tolerance", others[0].get(name)),
            units.number("error", others[1].get(name)),
            units.number("tolerance", others[2].get(name)),
        ]
        for name, error in errors.items()
    ]


def _diagnosis(found: Any) -> list[dict[str, Any]]:
    """Give each wrong object's name, its diagnosis, and its errors over time, for a small plot."""
    return [
        {
            "object": units.plain(each.get("object")),
            "text": units.plain(each.get("text")),
            "tolerance": _positive(each.get("tolerance")),
            "envelope": _envelope(each.get("envelope")),
            "T": _length(each.get("steps")),
        }
        for each in (found if isinstance(found, list) else ())[:MOST_OBJECTS]
        if isinstance(each, Mapping)
    ]


def _length(steps: Any) -> int | None:
    length = steps.get("T") if isinstance(steps, Mapping) else None
    return length if isinstance(length, int) else None


def _envelope(errors: Any) -> list[float | None]:
    """Give errors as numbers, and None for those that are not finite."""
    listed = errors[:MOST_PIECES] if isinstance(errors, list) else []
    return [float(f"{each:.3g}") if _is_number(each) else None for each in listed]


def _positive(value: Any) -> float | None:
    return float(f"{value:.3g}") if _is_number(value) and value > 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _configuration(rows: Any) -> list[list[str]]:
    """Give one field per entry that the timed call looked up in tables of configurations."""
    return [
        [
            units.plain(label),
            units.plain(", ".join(f"{name} {value}" for name, value in row.items() if value is not None)),
            "",
        ]
        for label, row in (rows.items() if isinstance(rows, Mapping) else ())
        if isinstance(row, Mapping)
    ]


def _exact(name: str, value: Any) -> str:
    """Give the number in its base unit if its text is rounded."""
    return f"{value:.8g}" if isinstance(value, float) and units.suffix(name) else ""


def problems(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Group the cases that did not end ok by status, then by reason, most cases first."""
    found = []
    for status in frames.SEVERITY:
        rows = table[table["status"] == status]
        if status == "ok" or rows.empty:
            continue
        reasons: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for row in frames.records(rows):
            who = tuple(units.plain(row[name]) for name in ("suite", "subject", "backend"))
            where = " ".join(units.plain(row[name]) for name in ("shape", "dtype", "pass"))
            reasons.setdefault(units.plain(row["reason"]), {}).setdefault(who, []).append(where)
        groups: list[dict[str, Any]] = [
            {"reason": reason, "count": sum(map(len, cases.values())), "cases": sorted(cases.items())}
            for reason, cases in reasons.items()
        ]
        groups.sort(key=lambda group: (-group["count"], group["reason"]))
        found.append({"status": status, "count": len(rows), "reasons": groups})
    return found


def environments(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Group the facts of each environment by their first name: hardware, versions, git, ceilings."""
    found = []
    for name, run in zip(frames.run_names(runs), runs, strict=True):
        for env_id, facts in run.environments.items():
            groups: dict[str, list[tuple[str, str]]] = {}
            for fact, value in facts.items() if isinstance(facts, Mapping) else ():
                if fact == "calibration" and value is not None:
                    groups["calibration"] = _calibration(value)
                    continue
                if fact == "calibration_reason" and value is None:
                    continue
                nested = isinstance(value, Mapping) and value
                group = groups.setdefault(str(fact) if nested else "general", [])
                items = frames.flat(value).items() if nested else [(fact, value)]
                group += [(str(key), _fact(str(key), item)) for key, item in items]
            found.append(
                {"run": name, "id": env_id, "groups": sorted(groups.items(), key=lambda g: g[0] != "general")}
            )
    return found


def _calibration(data: Any) -> list[tuple[str, str]]:
    """Give a calibration's facts: its date, and the resolution of one round per side by kind of case."""
    try:
        found = Calibration.from_json(data)
    except UnreadableRun as error:
        return [("unreadable", units.plain(error))]
    facts = [("created", units.plain(found.created))]
    for kind, spread in found.kinds.items():
        one, twenty = (f"{100 * spread.threshold(cases):.1f} %" for cases in (1, 20))
        facts.append(
            (
                kind,
                f"±{100 * spread.spread:.1f} % between processes; one round shows {one} in one case, "
                f"{twenty} in twenty ({spread.cases} cases, {spread.rounds} rounds)",
            )
        )
    return facts


def _fact(name: str, value: Any) -> str:
    if isinstance(value, int) and not units.suffix(name):
        return str(value)
    return units.number(name, value)
