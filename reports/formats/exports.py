"""Runs as files for other programs: Markdown, CSV, Parquet and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf import UsageError
from ssmperf.suitekit import Section, judged_lines, node_lines, report

from ..delivery import deliver, write
from ..rows import absent, contests, frames, ranking, units
from ..views.matrix import Cell, matrix

if TYPE_CHECKING:
    from ssmperf import Run

_MARKDOWN = re.compile(r"([\\|`*\[\]~])")
_TEXT_COLUMNS = {"run", "subject", "backend", "shape", "dtype", "pass", "status"}


@report("markdown")
def markdown(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Write one GitHub table per suite, and the number of cases per status. The fastest times are bold."""
    table = frames.frame(runs)
    parts = [f"# ssmperf: {', '.join(map(escape, frames.run_names(runs)))}", _status_line(table)]
    parts += map(escape, (*judged_lines(runs), *node_lines(runs)))
    for name, section in frames.sections(runs, table).items():
        parts.append(f"## {escape(section.title)}")
        if section.question:
            parts.append(escape(section.question))
        rows, left_out = absent.split(table[table["suite"] == name])
        if section.note:
            parts.append(_matrix_table(rows, section))
        rows = ranking.ranked(rows, section.rank)
        parts.append(_suite_table(rows, section))
        if left_out:
            parts.append("\n".join(f"- {escape(line)}" for line in left_out))
        sums = [contest for contest in contests.contests_of(rows, section.rank) if contest["winners"]]
        if sums:
            parts.append("\n".join(f"- {escape(contests.statement(contest))}" for contest in sums))
    return deliver("\n\n".join(parts) + "\n", destination)


@report("csv")
def csv(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Write one line per record with all fields; nested values as JSON text.

    Text is written unchanged, even a name such as `=cmd()`: a spreadsheet that evaluates formulas should
    import the file as text.
    """
    table = frames.as_text(_complete(runs))
    return deliver(table.to_csv(index=False, lineterminator="\n"), destination)


@report("parquet")
def parquet(runs: Sequence[Run], destination: Path | None = None) -> None:
    """Write one row per record with all fields; lists of samples stay lists, objects become JSON text.

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
    """Write `{"runs": [{"name", "path", "meta"}], "records": [{"run", ...record}]}`."""
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


def escape(text: Any) -> str:
    """Escape text from outside for a Markdown table: it makes no markup, no HTML and no new cell."""
    safe = units.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", safe)


def annotation(kind: str, title: str, text: str) -> str:
    """Write a line that GitHub turns into an annotation; text from outside makes no second command of it."""
    name, message = (
        units.plain(each).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        for each in (title, text)
    )
    return f"::{kind} title={name.replace(':', '%3A').replace(',', '%2C')}::{message}"


def _status_line(table: pd.DataFrame) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in frames.status_counts(table).items())
    return f"{len(table)} cases: {counts}." if counts else "No cases."


def _matrix_table(rows: pd.DataFrame, section: Section) -> str:
    """Show the worst error over its tolerance per row and backend, or a status with its note."""
    from tabulate import tabulate

    found = matrix(ranking.ranked(rows, section.rank), section)
    lines = [
        [escape(found.label(row)), *(_matrix_cell(found.cells.get((row, name))) for name in found.backends)]
        for row in found.rows
    ]
    return tabulate(lines, ["", *map(escape, found.backends)], tablefmt="pipe", disable_numparse=True)


def _matrix_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if cell.shows_status(None):
        return escape(" ".join(filter(None, [cell.status, cell.note])))
    text = "ok" if units.missing(cell.error_ratio) else f"{cell.error_ratio:.2g}"
    return " ".join(filter(None, [text + "\\*" * cell.partial, escape(cell.mark)]))


def _suite_table(rows: pd.DataFrame, section: Section) -> str:
    from tabulate import tabulate

    numbers = frames.shown_columns(rows, section)
    named = [*frames.varying_axes(rows), "subject", "backend", "shape", "dtype", "pass"]
    columns = [*named, *numbers, "status", *frames.conclusion(rows, section), "reason"]
    lines = [[_cell(row, column, section.rank) for column in columns] for row in frames.records(rows)]
    alignment = ["right" if column in numbers else "left" for column in columns]
    headings = [escape(units.label(column)) for column in columns]
    return tabulate(lines, headings, tablefmt="pipe", disable_numparse=True, colalign=alignment)


def _cell(row: dict[str, Any], column: str, rank: str | None) -> str:
    value = row[column]
    if column == "backend":
        return escape(frames.named(row))
    if column == "reason":
        return escape(frames.reason(row))
    if column in _TEXT_COLUMNS:
        return escape(value)
    text = escape(units.of_row(column, row))
    if column != rank or not units.is_number(value):
        return text
    low, high = units.interval_names(column)
    text = f"{text} {units.spread(value, row.get(low), row.get(high))}".strip()
    text = f"\\~{text}" if row.get("converged") is False else text
    return f"**{text}**" + " (tied)" * row["tied"] if row["fastest"] else text


def _complete(runs: Sequence[Run]) -> pd.DataFrame:
    """Make the frame of all records, with speedup and winners by the field that each suite ranks by."""
    table = frames.frame(runs)
    found = frames.sections(runs, table)
    groups = table.groupby("suite", sort=False)
    ranks = {name: section.rank for name, section in found.items()}
    parts = [
        ranking.mark_fastest(ranking.with_speedup(rows, ranks[str(name)]), ranks[str(name)])
        for name, rows in groups
    ]
    return pd.concat(parts).loc[table.index] if parts else ranking.mark_fastest(table.assign(speedup=[]))


def _arrow(pyarrow: Any, values: pd.Series) -> Any:
    """Make an Arrow column; objects, lists of lists or objects, and mixed kinds become JSON text."""
    items = [None if units.missing(value) else value for value in values]
    lists = [item for item in items if isinstance(item, list)]
    nested = any(isinstance(each, (dict, list)) for item in lists for each in item)
    if not nested and not any(isinstance(item, dict) for item in items):
        try:
            return pyarrow.array(items)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            pass  # mixed kinds: as JSON text they stay distinct
    return pyarrow.array([None if item is None else json.dumps(item) for item in items], pyarrow.string())
