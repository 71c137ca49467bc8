"""Runs as files for other programs: Markdown, CSV, Parquet and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import UsageError, report

from . import frames, units

if TYPE_CHECKING:
    from ssmperf import Run

_MARKDOWN = re.compile(r"([\\|`*\[\]~])")
_TEXT_COLUMNS = {"run", "subject", "backend", "shape", "dtype", "pass", "status"}


@report("markdown")
def markdown(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """A GitHub table for each suite, and the cases by status."""
    table = frames.frame(runs)
    parts = [f"# ssmperf: {', '.join(map(escape, frames.run_names(runs)))}", _status_line(table)]
    for name, section in frames.sections(runs, table).items():
        parts.append(f"## {escape(section['title'])}")
        if section["question"]:
            parts.append(escape(section["question"]))
        rows = table[table["suite"] == name]
        if section["note"]:
            parts.append(_matrix(rows, section))
        parts.append(_suite_table(rows, section))
    return deliver("\n\n".join(parts) + "\n", destination)


@report("csv")
def csv(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """One line a record, all fields; nested ones as JSON text.

    Text is written as it is: a name such as `=cmd()` stays data. Import the file as text into a spreadsheet
    that evaluates formulas.
    """
    table = frames.as_text(_complete(runs))
    return deliver(table.to_csv(index=False, lineterminator="\n"), destination)


@report("parquet")
def parquet(runs: Sequence[Run], destination: Path | None = None) -> None:
    """One row a record, all fields; sample lists stay lists, objects become JSON text.

    Raises:
        UsageError: no destination, since Parquet is binary.
    """
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    if destination is None:
        raise UsageError("parquet is a binary format: name the file to write")
    table = _complete(runs)
    columns = {name: _arrow(pyarrow, table[name]) for name in table.columns}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    write(destination, sink.getvalue().to_pybytes())


@report("json")
def json_(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """`{"runs": [{"name", "path", "meta"}], "records": [{"run", ...record}]}`."""
    names = frames.run_names(runs)
    document = {
        "runs": [
            {"name": name, "path": str(run.path), "meta": {**run.meta, "environments": {**run.environments}}}
            for name, run in zip(names, runs, strict=True)
        ],
        "records": [
            {"run": name, **record.to_json()}
            for name, run in zip(names, runs, strict=True)
            for record in run.records
        ],
    }
    return deliver(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n", destination)


def deliver(text: str, destination: Path | None) -> str | None:
    """Text for the terminal, or into a file where one is named."""
    if destination is None:
        return text
    write(destination, text.encode())
    return None


def write(destination: Path, content: bytes) -> None:
    """Raises UsageError where the file cannot be written."""
    path = Path(destination)
    try:
        path.write_bytes(content)
    except FileNotFoundError as error:
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def escape(text: Any) -> str:
    """Text from outside that stays text in a Markdown table: no markup, no HTML, no new cell."""
    safe = units.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", safe)


def _status_line(table: pd.DataFrame) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in frames.status_counts(table).items())
    return f"{len(table)} cases: {counts}." if counts else "No cases."


def _matrix(rows: pd.DataFrame, section: dict[str, Any]) -> str:
    """Worst error over its tolerance by row and backend; a status, and its note, where one did not end ok."""
    from tabulate import tabulate

    cells = frames.matrix(frames.ranked(rows, section["rank"]), section["rows"], section["note"])
    names = sorted({row for row, _ in cells})
    backends = sorted({backend for _, backend in cells}, key=lambda name: (name != frames.BASELINE, name))

    def text(cell: frames.Cell | None) -> str:
        if cell is None:
            return ""
        if cell.status in ("ok", "unsupported") and cell.ok:
            return (
                "ok" if units.missing(cell.error_ratio) else f"{cell.error_ratio:.2g}"
            ) + "\\*" * cell.partial
        return escape(" ".join(filter(None, [cell.status, cell.note])))

    lines = [[escape(name), *(text(cells.get((name, backend))) for backend in backends)] for name in names]
    return tabulate(lines, ["", *map(escape, backends)], tablefmt="pipe", disable_numparse=True)


def _suite_table(rows: pd.DataFrame, section: dict[str, Any]) -> str:
    from tabulate import tabulate

    rows = frames.ranked(rows, section["rank"])
    numbers = frames.shown_columns(rows, section)
    named = [*frames.varying_axes(rows), "subject", "backend", "shape", "dtype", "pass"]
    columns = [*named, *numbers, "status", "reason"]
    lines = [[_cell(row, column, section["rank"]) for column in columns] for row in frames.records(rows)]
    alignment = ["right" if column in numbers else "left" for column in columns]
    headings = [escape(units.label(column)) for column in columns]
    return tabulate(lines, headings, tablefmt="pipe", disable_numparse=True, colalign=alignment)


def _cell(row: dict[str, Any], column: str, rank: str | None) -> str:
    value = row[column]
    if column in _TEXT_COLUMNS or column == "reason":
        return escape(value)
    text = escape(units.number(column, value))
    if column != rank or units.missing(value):
        return text
    low, high = units.interval_names(column)
    text = f"{text} {units.spread(value, row.get(low), row.get(high))}".strip()
    text = f"\\~{text}" if row.get("converged") is False else text
    return f"**{text}**" if row["fastest"] else text


def _complete(runs: Sequence[Run]) -> pd.DataFrame:
    table = frames.frame(runs)
    found = frames.sections(runs, table)
    groups = table.groupby("suite", sort=False)
    parts = [frames.with_speedup(rows, found[str(name)]["rank"]) for name, rows in groups]
    return pd.concat(parts).loc[table.index] if parts else table.assign(speedup=[])


def _arrow(pyarrow: Any, values: pd.Series) -> Any:
    """A column; objects, and values of mixed kinds, as JSON text."""
    items = [None if units.missing(value) else value for value in values]
    if not any(isinstance(item, dict) for item in items):
        try:
            return pyarrow.array(items)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            pass  # mixed kinds: JSON text below keeps them apart
    return pyarrow.array([None if item is None else json.dumps(item) for item in items], pyarrow.string())
