"""Runs as tidy frames: one row per record.

Rows are compared only if they agree in every axis but the backend (`KEY`), within one run and environment.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import REGIMES, Case, Record, UnreadableRun
from ssmperf.suitekit import (
    DIMENSIONS,
    Origin,
    Section,
    Standing,
    believed,
    environment_of,
    split_source,
    standings,
    with_native_parts,
)

from .units import is_number, missing, plain

if TYPE_CHECKING:
    from ssmperf import Run

BASELINE = "sequential"
AXES = tuple({"pass_": "pass"}.get(field.name, field.name) for field in dataclasses.fields(Case))
KEY = ("run", "environment", *(axis for axis in AXES if axis != "backend"))
SEVERITY = ("wrong", "nan", "crash", "oom", "timeout", "unsupported", "ok")

_HEAD = ("run", "suite", "subject", "backend", "shape", "dtype", "pass", "status", "reason")
_STANDING = ("standing", "mark", "standing_reason", "time_note")
_ORIGIN = tuple(field.name for field in dataclasses.fields(Origin))


def frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Make a frame with one row per record, as far as it can be believed. Beside its JSON keys it has these:

    run: a name of the run, unique among `runs`.
    subject: the model, or `recurrence[regime]` for a case of a bare recurrence.
    topic: the model, or `recurrence[regimes]`, `recurrence[analytic]`, ... for all bare cases of that kind.
    shape: the shape as text; its sizes are in the columns B, T, C, H, K, V, D, N.
    hardware: the device's name, if the run's environment states one.
    environment: like hardware, with an id if environments that do not compare share a device's name.
    error_ratio, worst_object: the largest ratio of an error to its tolerance, and the object that has it.
    standing, mark, standing_reason, time_note: whether the backend competes; see `ssmperf.Standing`.
    date, tag, commit, dirty, plugin, plugin_sha256, plugin_commit, plugin_dirty: when it was measured, and of
    which code; see `ssmperf.Origin`.
    """
    rows = [
        _row(name, run, with_native_parts(record), standing)
        for name, run in zip(run_names(runs), runs, strict=True)
        for record, standing in zip(believed(run), standings(run), strict=True)
    ]
    _name_environments(rows)
    seen = list(dict.fromkeys(column for row in rows for column in row))
    needed = (*_HEAD, "topic", *KEY, *DIMENSIONS, "hardware", "error_ratio", "worst_object", *_STANDING,
              *_ORIGIN)  # fmt: skip
    columns = list(dict.fromkeys((*_HEAD, *DIMENSIONS, *seen, *needed)))
    return pd.DataFrame(rows, columns=columns)


def run_names(runs: Sequence[Run]) -> list[str]:
    """Name each run by its tag, or else by its folder; number the names if two are the same."""
    names = [plain(run.meta.get("tag")) or plain(Path(run.path).name) or "run" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} #{place}" for place, name in enumerate(names, 1)]
    return names


def sections(runs: Sequence[Run], table: pd.DataFrame) -> dict[str, Section]:
    """Read the section of each suite that has records. With several runs, the last one's section counts.

    A suite that no run describes gets a section with its name and nothing else.

    Raises:
        UnreadableRun: a run describes its suites by damaged data.
    """
    found = {str(name): Section(title=str(name), question="", columns=()) for name in table["suite"].unique()}
    for run in runs:
        described = run.meta.get("suites") or {}
        if not isinstance(described, Mapping):
            raise UnreadableRun(f"{run.path}: the sections of its suites are damaged")
        for name in found.keys() & described.keys():
            try:
                found[name] = Section.from_json(described[name])
            except UnreadableRun as error:
                raise UnreadableRun(f"{run.path}, suite {name}: {error}") from error
    return found


def shown_columns(table: pd.DataFrame, section: Section) -> list[str]:
    """List a section's columns that hold any value: the ranked one and the speedup first."""
    named = [section.rank, "speedup", *section.columns] if section.rank else section.columns
    taken = {*_HEAD, *AXES}
    return [
        column
        for column in dict.fromkeys(named)
        if column in table and column not in taken and table[column].notna().any()
    ]


def conclusion(table: pd.DataFrame, section: Section) -> list[str]:
    """List the field of a section's conclusions, if any row has one."""
    name = section.conclusion
    return [name] if name is not None and name in table and table[name].notna().any() else []


def varying_axes(table: pd.DataFrame) -> list[str]:
    """List the axes beside model, backend, shape, dtype and pass that take several values, `run` first."""
    usual = {"suite", "model", "recurrence", "backend", "shape", "dtype", "pass"}
    places = ("run", "environment", "device")
    varying = [
        axis for axis in (*places, *AXES) if axis not in usual and table[axis].nunique(dropna=False) > 1
    ]
    # a bare recurrence's regime is part of its subject's name: an axis must vary within a subject
    within = table.groupby("subject")
    return list(dict.fromkeys(
        axis for axis in varying if axis in places or within[axis].nunique(dropna=False).gt(1).any()
    ))  # fmt: skip


def keys(table: pd.DataFrame, names: Sequence[str] = KEY) -> list[tuple[Hashable, ...]]:
    """Give the comparison key of each row, with empty text for missing values."""
    columns = [[("" if missing(value) else value) for value in table[name]] for name in names]
    return list(zip(*columns, strict=True))


def status_counts(table: pd.DataFrame) -> dict[str, int]:
    """Count the cases of each status that occurs: `ok` first, then by severity."""
    counts = table["status"].value_counts().to_dict()
    order = ["ok", *(status for status in SEVERITY if status != "ok")]
    return {status: int(counts[status]) for status in order if counts.get(status)}


def named(row: Mapping[str, Any]) -> str:
    """Give a row's backend with its mark, such as `surrogate_raw (bound 0.999)`."""
    mark = plain(row["mark"])
    return f"{plain(row['backend'])} ({mark})" if mark else plain(row["backend"])


def sizes(row: Mapping[str, Any]) -> dict[str, int]:
    """Give the sizes of a row by letter, in the order in which its shape names them."""
    return {name: int(row[name]) for name in DIMENSIONS if is_number(row[name])}


def shared_sizes(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Give the sizes by letter in which all rows agree."""
    first, *others = map(sizes, rows)
    return {name: size for name, size in first.items() if all(each.get(name) == size for each in others)}


def devices_and_dates(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the devices on which rows were measured, and the days."""
    devices = {plain(row["hardware"]) for row in rows if not missing(row.get("hardware"))}
    days = {plain(row["date"])[:10] for row in rows if not missing(row.get("date"))}
    return [*sorted(devices), *sorted(days)]


def elsewhere(row: Mapping[str, Any]) -> str:
    """Say on whose operands a time was measured, as in "as hgrn"; empty if on those of its own model."""
    model = row.get("timed_as")
    return "" if missing(model) else f"as {plain(model)}"


def reason(row: Mapping[str, Any]) -> str:
    """Say why a row's case is not ok, or else why its backend does not compete, or what to doubt."""
    return plain(row["reason"]) or plain(row["standing_reason"]) or doubts(row)


def doubts(row: Mapping[str, Any]) -> str:
    """Say what looks wrong about a case that is ok, though it may be innocent; empty if nothing does."""
    found = row.get("doubts")
    if row["status"] != "ok" or not isinstance(found, list):
        return ""
    texts = [plain(each) for each in found if isinstance(each, str)]
    return f"doubtful: {'; '.join(texts)}" if texts else ""


def flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested facts to dotted names."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Give the rows as plain objects, by column name."""
    names = [*map(str, table.columns)]
    columns = (table[name].tolist() for name in table.columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Copy a frame with its nested values (errors, samples, kernels) as JSON text."""

    def text(value: Any) -> Any:
        return json.dumps(value) if isinstance(value, (dict, list, tuple)) else value

    nested = [name for name in table.columns if table[name].dtype == object]
    return table.assign(**{name: [text(value) for value in table[name]] for name in nested})


def _row(name: str, run: Run, measured: Record, standing: Standing) -> dict[str, Any]:
    record, origin = measured.to_json(), Origin.of(run, measured).to_json()
    sizes = record.pop("shape")
    place = environment_of(run, measured)
    record["env_id"] = record["env_id"] or place  # the plan refused the case, so it never ran
    source = split_source(record["operand_source"])[0]
    family = "regimes" if source in REGIMES else source
    return {
        **record,
        **sizes,
        "run": name,
        "subject": measured.case.subject,
        "topic": record["model"] or f"{record['recurrence']}[{family}]",
        "shape": " ".join(f"{letter}{size}" for letter, size in sizes.items()),
        "hardware": hardware(run.environments.get(record["env_id"]), record["device"]),
        "environment": place,
        **_worst(record.get("errors"), record.get("tolerances")),
        **dict(zip(_STANDING, (standing.name, standing.mark, standing.reason, standing.note), strict=True)),
        **{name: plain(value) if isinstance(value, str) else value for name, value in origin.items()},
    }


def _name_environments(rows: list[dict[str, Any]]) -> None:
    """Set `environment`: the hardware's name, followed by the id if several environments share that name."""
    ids: dict[str | None, set[str | None]] = {}
    for row in rows:
        ids.setdefault(row["hardware"], set()).add(row["environment"])
    for row in rows:
        shared = len(ids[row["hardware"]]) > 1
        row["environment"] = " ".join(filter(None, [row["hardware"], row["environment"] if shared else None]))


def hardware(environment: Any, device: str) -> str | None:
    """Give the device's name that an environment states, or None."""
    parts = environment.get("hardware") if isinstance(environment, Mapping) else None
    part = parts.get("cpu" if device == "cpu" else "gpu") if isinstance(parts, Mapping) else None
    name = (part.get("name") or part.get("model")) if isinstance(part, Mapping) else None
    return None if name is None else plain(name)


def _worst(errors: Any, tolerances: Any) -> dict[str, Any]:
    """Find the largest ratio of an error to its tolerance, and its object."""
    if not isinstance(errors, Mapping) or not isinstance(tolerances, Mapping):
        return {"error_ratio": math.nan, "worst_object": None}
    ratios = {
        name: error / tolerances[name]
        for name, error in errors.items()
        if is_number(error) and is_number(tolerances.get(name)) and tolerances[name]
    }
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    return {"error_ratio": ratios[worst] if worst is not None else math.nan, "worst_object": worst}
