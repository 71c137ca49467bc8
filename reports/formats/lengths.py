"""Numbers by length on a terminal: a suite's charts over T, one line per subject and backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ssmperf.suitekit import Chart, Section

from ..rows import frames, units
from ..views import grids
from ..views.palette import STATUS_STYLES

MOST_LINES = 40  # of a block
REFERENCE = "reference"  # stands for the status of a chart's reference
_NAMED = ("subject", "backend")
_OTHERS = ("dtype", "pass")  # named where they vary


@dataclass(slots=True)
class ChartText:
    """A chart as text. lines: by their labels, the text and the status by length; references follow."""

    title: str
    labels: list[str]
    lengths: list[int]
    lines: dict[tuple[str, ...], dict[int, tuple[str, str]]] = field(default_factory=dict)


def blocks(rows: pd.DataFrame, section: Section) -> list[ChartText]:
    """List the blocks of a suite that ranks nothing: charts over a length, if they have two lengths."""
    if section.rank or section.envelope:
        return []
    made = [_block(rows, chart) for chart in section.charts if _is_length(chart.x)]
    return [block for block in made if len(block.lengths) > 1]


def print_blocks(console: Console, found: Sequence[ChartText]) -> None:
    """Print one line per subject and backend of each block, with one column per length."""
    for block in found:
        console.print(Text(f"  {units.plain(block.title)}", style="bold"))
        headings = [*block.labels, *(f"{length:,}" for length in block.lengths), ""]
        shown = list(block.lines.items())[:MOST_LINES]
        cells = [
            [*map(Text, labels), *(_cell(*values.get(T, ("", "ok"))) for T in block.lengths), Text("")]
            for labels, values in shown
        ]
        dropped = grids.narrow(console.width + grids.REASON_WIDTH, headings, cells)
        grid = grids.grid()
        for place, heading in enumerate(headings):
            grid.add_column(heading, justify="left" if place < len(block.labels) else "right", no_wrap=True)
        for line in cells:
            grid.add_row(*line)
        console.print(Padding(grid, (0, 0, 1, 2)))
        if dropped:
            console.print(Text(f"  too narrow here for: {', '.join(dropped)}", style="dim"))
        if len(block.lines) > len(shown):
            more = len(block.lines) - len(shown)
            console.print(Text(f"  and {more} more: the page's chart has them all", style="dim"))


def _is_length(name: str) -> bool:
    return name == "T" or name.endswith("lengths")


def _block(rows: pd.DataFrame, chart: Chart) -> ChartText:
    """Read a chart's numbers, also those of cases that are wrong; of several at one length, the largest.

    A case that failed and has no number is named by its status.
    """
    block = ChartText(chart.title or f"{units.label(chart.y)} by {units.label(chart.x)}", [], [])
    if chart.x not in rows or chart.y not in rows:
        return block
    known = rows[rows[chart.x].notna() & rows[chart.y].notna()]
    failed = rows[rows[chart.x].map(units.is_number) & ~rows["status"].isin(["ok", "unsupported"])]
    failed = failed[~failed.index.isin(known.index)]
    for axis in ("subject", "operand_source"):  # a training that failed has no place among errors
        failed = failed[failed[axis].isin(known[axis])]
    varying = frames.varying_axes(known) if len(known) else []
    axes = [*_NAMED, *(name for name in _OTHERS if known[name].nunique() > 1), *varying]
    block.labels = [units.label(name) for name in axes]
    order = sorted(
        frames.records(pd.concat([known, failed])),
        key=lambda row: (
            *(units.plain(row[name]) for name in varying),
            units.plain(row["subject"]),
            row["backend"] != frames.BASELINE,
            units.plain(row["backend"]),
        ),
    )
    largest: dict[tuple[tuple[str, ...], int], float] = {}
    references: dict[tuple[str, ...], dict[int, tuple[str, str]]] = {}
    for row in order:
        labels = tuple(units.plain(row[name]) for name in axes)
        for T, value, text in _values(row, chart.x, chart.y):
            if value >= largest.get((labels, T), value):
                largest[labels, T] = value
                block.lines.setdefault(labels, {})[T] = (text, str(row["status"]))
        if units.missing(row[chart.y]):
            block.lines.setdefault(labels, {}).setdefault(int(row[chart.x]), ("", str(row["status"])))
        for name in chart.references:  # of a task, whatever learns it
            values = {T: (text, REFERENCE) for T, _, text in _values(row, chart.x, name)}
            references.setdefault((units.label(name), "", *labels[len(_NAMED) :]), values)
    block.lines |= {labels: values for labels, values in references.items() if values}
    groups = list(dict.fromkeys(labels[len(_NAMED) :] for labels in block.lines))
    block.lines = dict(sorted(block.lines.items(), key=lambda line: groups.index(line[0][len(_NAMED) :])))
    block.lengths = sorted({T for values in block.lines.values() for T in values})
    return block


def _values(row: Mapping[str, Any], x: str, y: str) -> Iterator[tuple[int, float, str]]:
    """Give each length of a row with its value and its text; a row of no lists has one."""
    low, high = units.interval_names(y)
    columns = [row.get(name) for name in (x, y, low, high)]
    several = isinstance(columns[0], list)
    listed = [column if isinstance(column, list) else [column if not several else None] for column in columns]
    for place, (T, value) in enumerate(zip(listed[0], listed[1], strict=False)):
        if units.is_number(T) and units.is_number(value):
            ends = [each[place] if place < len(each) else None for each in listed[2:]]
            yield int(T), float(value), _text(y, float(value), *ends)


def _text(name: str, value: float, low: Any, high: Any) -> str:
    """Write a value with the wider half of its interval: as a share if it has a unit, else as a number."""
    text = units.number(name, value)
    if units.suffix(name):
        return " ".join(filter(None, [text, units.spread(value, low, high)]))
    if not (units.is_number(low) and units.is_number(high)):
        return text
    return f"{text} ±{max(high - value, value - low, 0.0):.1g}"


def _cell(text: str, status: str) -> Text:
    if status not in ("ok", REFERENCE):
        return Text(f"{text} {status}".strip(), style=STATUS_STYLES.get(status, ""))
    return Text(text, style="dim" if status == REFERENCE else "")
