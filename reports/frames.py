"""Runs as tidy frames: one row a record, and what follows from comparing rows. Pure functions.

Rows are compared only where every axis but the backend agrees (`KEY`), within one run and environment.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import DIMENSIONS, REGIMES, Case, split_source

from .units import missing, plain

if TYPE_CHECKING:
    from ssmperf import Run

BASELINE = "sequential"
AXES = tuple({"pass_": "pass"}.get(field.name, field.name) for field in dataclasses.fields(Case))
KEY = ("run", "environment", *(axis for axis in AXES if axis != "backend"))
SEVERITY = ("wrong", "nan", "crash", "oom", "timeout", "unsupported", "ok")

_HEAD = ("run", "suite", "subject", "backend", "shape", "dtype", "pass", "status", "reason")


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a record: its JSON keys, and beside them

    run       a name of the run, unique among `runs`
    subject   the model, or `recurrence[regime]` for a case of a bare recurrence
    topic     the model, or `recurrence[regimes]`, `recurrence[analytic]`, ... for all bare cases of that kind
    shape     the shape as text; B, T, C, H, K, V, D, N hold its sizes
    hardware  the device's name, where the run's environment states one
    environment  the same, with its id where environments share a device's name
    error_ratio, worst_object    the largest error over its tolerance, and where it occurred
    """
    rows = [
        _row(name, run, record.case.subject, record.to_json())
        for name, run in zip(run_names(runs), runs, strict=True)
        for record in run.records
    ]
    _name_environments(rows)
    seen = list(dict.fromkeys(column for row in rows for column in row))
    needed = (*_HEAD, "topic", *KEY, *DIMENSIONS, "hardware", "error_ratio", "worst_object")
    columns = list(dict.fromkeys((*_HEAD, *DIMENSIONS, *seen, *needed)))
    return pd.DataFrame(rows, columns=columns)


def run_names(runs: Sequence[Run]) -> list[str]:
    """The tag of each run, else its folder's name; numbered where two would be the same."""
    names = [plain(run.meta.get("tag")) or plain(Path(run.path).name) or "run" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} #{place}" for place, name in enumerate(names, 1)]
    return names


def sections(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The report section of each suite that has records, as data; a plain one where the run has none."""
    known: dict[str, dict[str, Any]] = {}
    for run in runs:
        known |= run.meta.get("suites") or {}
    plainest: dict[str, Any] = {
        "question": "",
        "columns": [],
        "rank": None,
        "charts": [],
        "split": ["pass", "dtype"],
        "rows": "subject",
        "note": None,
    }
    return {
        name: {"title": name, **plainest, **known.get(name, {})} for name in dict.fromkeys(table["suite"])
    }


def shown_columns(table: pd.DataFrame, section: Mapping[str, Any]) -> list[str]:
    """A section's columns that hold anything, the ranked one first; the ratio to the baseline follows it."""
    rank = section["rank"]
    named = [rank, "speedup", *section["columns"]] if rank else [*section["columns"]]
    taken = {*_HEAD, *AXES}
    return [
        column
        for column in dict.fromkeys(named)
        if column in table and column not in taken and table[column].notna().any()
    ]


def varying_axes(table: pd.DataFrame) -> list[str]:
    """Axes beside model, backend, shape, dtype and pass that take more than one value, `run` first."""
    usual = {"suite", "model", "recurrence", "backend", "shape", "dtype", "pass"}
    places = ("run", "environment", "device")
    varying = [
        axis for axis in (*places, *AXES) if axis not in usual and table[axis].nunique(dropna=False) > 1
    ]
    # a bare recurrence's regime is part of its subject's name: what varies between subjects alone is no axis
    within = table.groupby("subject")
    return list(dict.fromkeys(
        axis for axis in varying if axis in places or within[axis].nunique(dropna=False).gt(1).any()
    ))  # fmt: skip


def keys(table: pd.DataFrame, names: Sequence[str] = KEY) -> list[tuple[Hashable, ...]]:
    """The comparison key of each row, missing values as empty text."""
    columns = [[("" if missing(value) else value) for value in table[name]] for name in names]
    return list(zip(*columns, strict=True))


def with_speedup(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Adds `speedup`: the baseline's value over the row's own, both `ok` and of the same key, else NaN."""
    values = _ranked(table, field)
    row_keys = keys(table)
    base = {
        key: value
        for key, backend, value in zip(row_keys, table["backend"], values, strict=True)
        if backend == BASELINE and not math.isnan(value)
    }
    speedups = [base.get(key, math.nan) / value for key, value in zip(row_keys, values, strict=True)]
    return table.assign(speedup=pd.Series(speedups, index=table.index, dtype=float))


def mark_fastest(table: pd.DataFrame, field: str | None = "latency_s") -> pd.DataFrame:
    """Adds `fastest` (least value of `field` among `ok` rows of a key) and `rivals` (how many those are)."""
    values = _ranked(table, field)
    row_keys = keys(table)
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
    """`with_speedup` and `mark_fastest`, each group of equal keys together, its fastest row first.

    Groups come in the order of their subject, shape and axes; rows without a value come last.
    """
    table = mark_fastest(with_speedup(table, rank), rank)
    ordering = table.assign(_value=_ranked(table, rank), _subject=table["subject"].astype(str))
    axes = [name for name in KEY if name not in ("model", "shape")]
    by = ["_subject", *DIMENSIONS, *axes, "_value", "backend"]
    return table.loc[ordering.sort_values(by, kind="stable", na_position="last").index]


def wins(table: pd.DataFrame) -> dict[str, int]:
    """How many contests (keys with two or more `ok` rivals) each backend won, most first."""
    won = table.loc[table["fastest"] & (table["rivals"] > 1), "backend"].value_counts()
    return dict(sorted(((str(name), int(count)) for name, count in won.items()), key=lambda w: (-w[1], w[0])))


def status_counts(table: pd.DataFrame) -> dict[str, int]:
    """Cases by status, `ok` first, then by severity; statuses that do not occur are left out."""
    counts = table["status"].value_counts().to_dict()
    order = ["ok", *(status for status in SEVERITY if status != "ok")]
    return {status: int(counts[status]) for status in order if counts.get(status)}


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """All cases of one subject and backend: what went wrong, how fast at best, how far off at worst."""

    status: str
    cases: int
    ok: int
    reasons: tuple[str, ...]
    speedup: float
    mean_speedup: float
    error: float
    error_ratio: float
    note: str = ""

    @property
    def partial(self) -> bool:
        return 0 < self.ok < self.cases


def matrix(table: pd.DataFrame, by: str = "subject", note: str | None = None) -> dict[tuple[str, str], Cell]:
    """A cell for each (subject or topic, backend) of a frame that `ranked` has seen.

    note: a field whose first value the cell keeps.
    """
    groups = table.groupby([by, "backend"], sort=True)
    return {(str(row), str(backend)): _cell(rows, note) for (row, backend), rows in groups}


def _cell(rows: pd.DataFrame, note: str | None) -> Cell:
    statuses = set(rows["status"])
    failed = [status for status in SEVERITY[:-2] if status in statuses]
    status = failed[0] if failed else "ok" if "ok" in statuses else "unsupported"
    reasons = dict.fromkeys(plain(reason) for reason in rows["reason"] if not missing(reason))
    speedups = [float(value) for value in rows["speedup"] if not missing(value)]
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else math.nan
    judged = [row for row in records(rows) if not missing(row["error_ratio"])]
    worst = max(judged, key=lambda row: row["error_ratio"], default=None)
    return Cell(
        status=status,
        cases=len(rows),
        ok=int((rows["status"] == "ok").sum()),
        reasons=tuple(reasons),
        speedup=max(speedups, default=math.nan),
        mean_speedup=mean,
        error=math.nan if worst is None else float(worst["errors"][worst["worst_object"]]),
        error_ratio=math.nan if worst is None else float(worst["error_ratio"]),
        note=next((plain(value) for value in rows[note] if not missing(value)), "") if note in rows else "",
    )


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested facts under dotted names."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain objects, by column name."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """The same frame with nested values (errors, samples, kernels) as JSON text."""

    def text(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, (dict, list, tuple)) else value

    nested = [name for name in table.columns if table[name].dtype == object]
    return table.assign(**{name: [text(value) for value in table[name]] for name in nested})


def _row(name: str, run: Run, subject: str, record: dict[str, Any]) -> dict[str, Any]:
    sizes = record.pop("shape")
    if record["env_id"] is None and len(run.environments) == 1:
        record["env_id"] = next(iter(run.environments))  # refused while planning, so it never ran
    source = split_source(record["operand_source"])[0]
    family = "regimes" if source in REGIMES else source
    return {
        **record,
        **sizes,
        "run": name,
        "subject": subject,
        "topic": record["model"] or f"{record['recurrence']}[{family}]",
        "shape": " ".join(f"{letter}{size}" for letter, size in sizes.items()),
        "hardware": hardware(run.environments.get(record["env_id"]), record["device"]),
        **_worst(record.get("errors"), record.get("tolerances")),
    }


def _name_environments(rows: list[dict[str, Any]]) -> None:
    """Sets `environment`: the hardware's name, and the id where several environments share it."""
    ids: dict[str | None, set[str | None]] = {}
    for row in rows:
        ids.setdefault(row["hardware"], set()).add(row["env_id"])
    for row in rows:
        shared = len(ids[row["hardware"]]) > 1
        row["environment"] = " ".join(filter(None, [row["hardware"], row["env_id"] if shared else None]))


def hardware(environment: Any, device: str) -> str | None:
    """The name of the device in an environment, or None where it states none."""
    parts = environment.get("hardware") if isinstance(environment, Mapping) else None
    part = parts.get("cpu" if device == "cpu" else "gpu") if isinstance(parts, Mapping) else None
    name = (part.get("name") or part.get("model")) if isinstance(part, Mapping) else None
    return None if name is None else plain(name)


def _worst(errors: Any, tolerances: Any) -> dict[str, Any]:
    if not isinstance(errors, Mapping) or not isinstance(tolerances, Mapping):
        return {"error_ratio": math.nan, "worst_object": None}
    ratios = {
        name: error / tolerances[name]
        for name, error in errors.items()
        if not missing(error) and tolerances.get(name)
    }
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    return {"error_ratio": ratios[worst] if worst is not None else math.nan, "worst_object": worst}


def _ranked(table: pd.DataFrame, field: str | None) -> list[float]:
    """The values of a field on `ok` rows, NaN elsewhere and where a value is not positive."""
    if field is None or field not in table:
        return [math.nan] * len(table)
    pairs = zip(table[field], table["status"], strict=True)
    return [float(v) if s == "ok" and not missing(v) and v > 0 else math.nan for v, s in pairs]
