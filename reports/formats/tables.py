"""The terminal table: one block per group of comparable cases, or a matrix if there are too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ssmperf.suitekit import Section, busy_line, judged_lines, node_lines, report

from ..delivery import deliver
from ..rows import absent, answers, contests, crossings, envelopes, frames, joined, ranking, units
from ..views import coverage, glance, grids
from ..views.matrix import Cell, matrix
from ..views.palette import STATUS_STYLES
from ..views.texts import answers as answer_texts
from . import failures, lengths

if TYPE_CHECKING:
    from ssmperf import Run

MOST_ROWS = 80  # a suite with more is shown as a matrix
PIPE_WIDTH = 180  # columns if the output is no terminal
MOST_SUMS = 12
MOST_REASONS = 4  # of lower bounds, per column
MOST_CONCLUSIONS = 80


@report("table")
def table(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Show each suite's records on a terminal; there are colours only if the output is a terminal."""
    rows = frames.frame(runs)
    console = _console(plain=destination is not None)
    with console.capture() as capture:
        parts = ranking.parts(runs, rows)
        for part in answer_texts.cards(answers.answers(runs, parts)):
            console.print(part)
        for section, members in parts.values():
            _suite(console, members, section, runs)
        glance.print_glances(console, joined.glances(parts))
        console.print(_summary(rows))
        for line in (*judged_lines(runs), *node_lines(runs)):
            console.print(Text(units.plain(line), style="yellow"))
        if busy := busy_line([record for run in runs for record in run.records]):
            console.print(Text(busy, style="yellow"))
    return deliver(_stripped(capture.get()), destination)


def terminal_text(parts: Iterable[Any], *, plain: bool) -> str:
    """Print parts with rich to a text; in colour if the output is a terminal and `plain` is not set.

    A text with `no_wrap` stays one line, so that it can be searched for and copied.
    """
    console = _console(plain=plain)
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    return _stripped(capture.get()).rstrip("\n")


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip(" ") for line in text.split("\n"))


def _console(*, plain: bool) -> Console:
    terminal = Console(no_color=True, force_terminal=False) if plain else Console()
    if not terminal.is_terminal:
        return Console(width=PIPE_WIDTH, no_color=True, force_terminal=False, highlight=False)
    return Console(highlight=False)


def _suite(console: Console, rows: pd.DataFrame, section: Section, runs: Sequence[Run]) -> None:
    total = len(rows)
    rows, left_out = absent.split(rows)
    console.print(Text(units.plain(section.title), style="bold"), end="")
    question = units.plain(section.question)
    console.print(Text(f"  {question}" if question else "", style="dim"))
    console.print()
    if section.coverage:
        for name, text in coverage.coverage(rows, section.coverage):
            console.print(Text(f" {units.plain(units.label(name)):16} {units.plain(text)}"))
        failures.print_kinds(console, rows, runs)
    elif section.envelope:
        _envelopes(console, rows, section)
        failures.print_kinds(console, rows, runs)
    elif len(rows) > MOST_ROWS:
        _matrix(console, rows, section)
        failures.print_kinds(console, rows, runs)
        shown = " ".join(units.plain(run.path) for run in runs)
        console.print(Text(f"  all {total} rows: ssmperf report {shown} --format csv", style="dim"))
    elif section.rank is None and _of_errors(section) and rows["error_ratio"].notna().any():
        _matrix(console, rows, section)
        failures.print_kinds(console, rows, runs)
    else:
        _groups(console, rows, section)
        failures.print_commands(console, rows, runs)
    for line in left_out:
        console.print(Text(f"  {line}", style="dim"))
    lengths.print_blocks(console, lengths.blocks(rows, section))
    _sums(console, contests.contests_of(rows, section.rank))
    _conclusions(console, rows, section)
    _crossings(console, crossings.crossings(rows, section.rank))
    if "converged" in rows and (rows["converged"] == False).any():  # noqa: E712
        console.print(Text("  ~ the interval did not settle in the time allowed", style="dim"))
    if len(rows) <= MOST_ROWS and any(
        units.host_note(section.rank or "", row) for row in frames.records(rows)
    ):
        console.print(
            Text("  host: it needs longer to issue the call than the device to run it", style="dim")
        )
    console.print()


def _of_errors(section: Section) -> bool:
    """Tell whether a suite asks for errors, which the matrix shows, and not for numbers of its own alone."""
    return any(name.startswith("error_") for name in section.columns)


def _sums(console: Console, found: Sequence[contests.Contest]) -> None:
    """Print one line per place where forward and backward have different winners."""
    split = [contest for contest in found if contest["winners"]]
    for contest in split[:MOST_SUMS]:
        console.print(Text(f"  {contests.statement(contest)}", style="dim"))
    if len(split) > MOST_SUMS:
        console.print(Text(f"  and {len(split) - MOST_SUMS} more: ssmperf best", style="dim"))


def _conclusions(console: Console, rows: pd.DataFrame, section: Section) -> None:
    """Print one line per record that its suite sums up in a sentence."""
    for name in frames.conclusion(rows, section):
        told = rows[rows[name].notna()]
        axes = ["subject", "backend", "shape", *frames.varying_axes(rows)]
        for row in frames.records(told.head(MOST_CONCLUSIONS)):
            who = "  ".join(filter(None, (units.plain(row[axis]) for axis in axes)))
            console.print(Text.assemble(("  " + who, "cyan"), f"  {units.plain(row[name])}"))
        if len(told) > MOST_CONCLUSIONS:
            console.print(Text(f"  and {len(told) - MOST_CONCLUSIONS} more", style="dim"))


def _crossings(console: Console, found: Sequence[crossings.Crossing]) -> None:
    """Print one line per place where another backend takes over as T grows."""
    for crossing in found[:MOST_SUMS]:
        console.print(Text(f"  {crossing.statement}", style="dim"))
    if len(found) > MOST_SUMS:
        console.print(
            Text(f"  and {len(found) - MOST_SUMS} more crossings: the page has them all", style="dim")
        )


def _groups(console: Console, rows: pd.DataFrame, section: Section) -> None:
    """Print one block per group of comparable cases, in aligned columns: its heading, then the backends."""
    columns = frames.shown_columns(rows, section)
    cells = [_line(row, columns, section.rank) for row in frames.records(rows)]
    headings = ["", "backend", *map(units.label, columns), "status"]
    dropped = grids.narrow(console.width, headings, cells)
    widths = grids.widths(headings, cells)
    plain = ["subject", "shape", "dtype", "pass"]
    axes = [*plain, *frames.varying_axes(rows)]
    show_header = True
    for group, members in _places_by_key(frames.keys(rows, axes)):
        heading, *rest = [
            units.plain(part) if axis in plain else f"{units.label(axis)} {units.plain(part)}"
            for axis, part in zip(axes, group, strict=True)
            if part != ""
        ]
        console.print(Text.assemble((heading, "bold cyan"), f"  {' · '.join(rest)}"))
        block = grids.grid(show_header=show_header)
        for i, title in enumerate(headings):
            number = 2 <= i < len(headings) - 1
            last = i == len(headings) - 1
            block.add_column(title, justify="right" if number else "left", no_wrap=not last, overflow="fold",
                             min_width=None if last else widths[i])  # fmt: skip
        for member in members:
            block.add_row(*cells[member])
        console.print(Padding(block, (0, 0, 1, 1)))
        show_header = False
    if dropped:
        console.print(Text(f"  too narrow here for: {', '.join(dropped)}", style="dim"))
    if "speedup" in columns and not units.is_time(section.rank):  # readers of times know which way
        text = f"{units.label('speedup')}: {_ratio(str(section.rank))}"
        console.print(Text(f"  {text}", style="dim"))
    if text := units.legend(columns):
        console.print(Text(f"  {text}", style="dim"))
    _bounds(console, rows, columns)


def _bounds(console: Console, rows: pd.DataFrame, columns: Iterable[str]) -> None:
    """Print why some numbers are lower bounds, one line per distinct reason."""
    listed = frames.records(rows)
    for column in columns:
        reasons = [units.plain(row[f"{column}_reason"]) for row in listed if units.is_bound(column, row)]
        for reason in list(dict.fromkeys(reasons))[:MOST_REASONS]:
            console.print(Text(f"  ≥ {units.label(column)} is at least that: {reason}", style="dim"))


def _line(row: dict[str, Any], columns: Iterable[str], rank: str | None) -> list[Text]:
    style = "bold green" if row["fastest"] else ""
    name = Text(units.plain(row["backend"]), style=style)
    notes = [units.plain(row["mark"]), "tied" if row["tied"] else "", frames.elsewhere(row)]
    if any(notes):
        name.append(f" ({', '.join(filter(None, notes))})", style="dim")
    line = [Text("▸" if row["fastest"] else " ", style=style), name]
    for column in columns:
        value = row[column]
        text = Text(units.of_row(column, row), style=style if column in (rank, "speedup") else "")
        if column == rank and units.is_number(value):
            low, high = units.interval_names(column)
            if row.get("converged") is False:
                text = Text("~", style="yellow").append_text(text)
            if low in row:
                text.append(f"{units.spread(value, row.get(low), row.get(high)):>8}", style="dim")
            if host := units.host_note(column, row):
                text = Text(f"{host}  ", style="yellow").append_text(text)
        line.append(text)
    return [*line, _status(row)]


def _status(row: dict[str, Any]) -> Text:
    text = Text(units.plain(row["status"]), style=STATUS_STYLES.get(row["status"], ""))
    if row["status"] == "ok" and row["standing"] in ranking.INCORRECT:
        return text.append(f", but {frames.reason(row)}", style="dim")
    if doubts := units.plain(row["time_note"]) or frames.doubts(row):
        return text.append(f", {doubts}", style="yellow")
    reason = units.plain(row["reason"])
    return text.append(f": {reason}", style="dim") if reason and row["status"] != "ok" else text


def _envelopes(console: Console, rows: pd.DataFrame, section: Section) -> None:
    """Print one line per subject and backend: up to where it is right, and the worst of each number."""
    found = envelopes.lines(rows, section)
    run = [line for line in found if set(line.counts) != {"unsupported"} or line.worst]
    columns = [name for name in section.columns if any(name in line.worst for line in run)]
    limits = [units.label(name) for name in section.envelope]
    columns = [name for name in columns if name not in section.envelope]
    headings = [
        "model",
        "backend",
        *(f"right to {limits[0]}", *limits[1:]),
        *map(units.label, columns),
        "cases",
    ]
    cells = [
        [
            Text(line.subject, style="cyan"),
            Text(line.backend),
            *(Text(line.right_to[name]) for name in section.envelope),
            *(Text(line.worst.get(name, "–")) for name in columns),
            Text(", ".join(f"{count} {status}" for status, count in line.counts.items())),
        ]
        for line in run
    ]
    dropped = grids.narrow(console.width, headings, cells)
    grid = grids.grid()
    for place, heading in enumerate(headings):
        number = 2 <= place < len(headings) - 1
        grid.add_column(heading, justify="right" if number else "left", no_wrap=place < 2 or number)
    for line in cells:
        grid.add_row(*line)
    console.print(Padding(grid, (0, 0, 1, 1)))
    dtypes = " / ".join(map(str, dict.fromkeys(rows["dtype"])))
    legend = (
        "right to: the largest values up to which all cases are right; "
        f"≥: nothing wrong was found beyond; then the worst ({dtypes})"
    )
    console.print(Text(f"  {legend}", style="dim"))
    if dropped:
        console.print(Text(f"  too narrow here for: {', '.join(dropped)}", style="dim"))
    refused = sorted({line.backend for line in found} - {line.backend for line in run})
    if refused:
        console.print(Text(f"  unsupported in all cases: {', '.join(refused)}", style="dim"))


def _matrix(console: Console, rows: pd.DataFrame, section: Section) -> None:
    """Print model × backend, in as many tables below one another as the width asks for."""
    found = matrix(rows, section)
    labels = {row: units.plain(found.label(row)) for row in found.rows}
    first = max(map(len, ["model", *labels.values()])) + 2
    texts = {key: _matrix_cell(cell, section.rank) for key, cell in found.cells.items()}
    widths = {}
    for name in found.backends:
        lengths = [text.cell_len for (_, backend), text in texts.items() if backend == name]
        widths[name] = 2 + max(*map(len, _split(name)), *lengths)
    for chunk in _chunks(found.backends, widths, console.width - first - 2):
        grid = grids.grid()
        grid.add_column("model", no_wrap=True, min_width=first - 1)
        for name in chunk:
            heading = "\n".join(_split(name))
            grid.add_column(heading, justify="right", no_wrap=True, min_width=widths[name] - 2)
        for row in found.rows:
            cells = [texts.get((row, name), Text("")) for name in chunk]
            grid.add_row(Text(labels[row], style="cyan"), *cells)
        console.print(Padding(grid, (0, 0, 1, 1)))
    console.print(Text(f"  {_legend(section, shares=found.has_shares)}", style="dim"))


def _legend(section: Section, *, shares: bool) -> str:
    partly = (
        "or a status, which is wrong or nan if any case of the cell is wrong or nan; "
        "* some of its cases did not end ok"
    )
    if not section.rank:
        return f"each cell: the worst error over its tolerance (right at or below 1), {partly}"
    what = f"{_ratio(section.rank)}, the best of its cases"
    if shares:
        what += (
            f" (in rows without {frames.BASELINE}: the best {units.label(section.rank)} over the backend's)"
        )
    return f"each cell: {what} at the same shape, dtype, pass and device, {partly}"


def _ratio(rank: str) -> str:
    return f"{frames.BASELINE}'s {units.label(rank)} over the backend's (above 1× is better)"


def _matrix_cell(cell: Cell, rank: str | None) -> Text:
    style = STATUS_STYLES.get(cell.status, "")
    if cell.shows_status(rank):
        star = "*" if cell.partial else ""
        return Text(" ".join(filter(None, [units.plain(cell.status) + star, cell.note])), style=style)
    value = cell.speedup if rank else cell.error_ratio
    if cell.shows_share:
        best = "bold green" if cell.share >= 1 and not cell.mark else ""
        text = Text(units.number("share_fraction", cell.share), style=best)
    elif units.missing(value):
        text = Text("ok", style="green")
    elif rank:
        gain = "bold green" if value >= 1.05 else "red" if value < 0.95 else ""
        text = Text(units.ratio(value), style="" if cell.mark else gain)
    else:
        text = Text(f"{value:.2g}", style="green" if value <= 1 else "bold red")
    if cell.partial:
        text.append("*", style=style or "yellow")
    return text.append(f" {cell.mark}", style="dim") if cell.mark else text


def _summary(rows: pd.DataFrame) -> Text:
    text = Text(f"{len(rows)} cases", style="bold")
    for place, (status, count) in enumerate(frames.status_counts(rows).items()):
        text.append(" · " if place else ": ").append(f"{count} {status}", style=STATUS_STYLES.get(status, ""))
    return text


def _split(name: str) -> list[str]:
    """Split a long name into lines that end after an underscore."""
    parts = units.plain(name).split("_") if len(name) > 10 else [units.plain(name)]
    return [part + "_" * (place < len(parts) - 1) for place, part in enumerate(parts)]


def _chunks(names: Sequence[str], widths: dict[str, int], room: int) -> Iterable[list[str]]:
    """Divide the names into groups whose widths fit the room."""
    chunk: list[str] = []
    for name in names:
        if chunk and sum(widths[other] for other in chunk) + widths[name] > room:
            yield chunk
            chunk = []
        chunk.append(name)
    if chunk:
        yield chunk


def _places_by_key(keys: Iterable[tuple[Any, ...]]) -> Iterable[tuple[tuple[Any, ...], list[int]]]:
    """Give each distinct key with the places at which it stands."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return groups.items()
