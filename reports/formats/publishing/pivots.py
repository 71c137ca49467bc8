"""Tables for a paper and a pull request: lengths by backends, the fastest time in bold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ssmperf.suitekit import report

from ...delivery import deliver
from ...rows import frames, ranking, units
from ..exports import escape

if TYPE_CHECKING:
    from ssmperf import Run

MOST_FLOATS = 12  # tables that LaTeX is given before it must place them: it fails with too many in waiting
PADDING = 2  # of a heading, by tabulate
WIDEST = 80  # columns of text, as a comment on a pull request shows them without scrolling
_LATEX = str.maketrans(
    {
        **{special: f"\\{special}" for special in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "µ": r"\textmu{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
        '"': "''",
        "–": "--",
        "≥": r"$\geq$",
        "…": r"\dots{}",
        "°": r"\textdegree{}",
        "·": r"$\cdot$",
    }
)

NO_TIME = ("–", False)
Cells = dict[str, tuple[str, bool]]  # of a length: backend to its text, and whether it is the fastest


@dataclass(frozen=True, slots=True)
class Pivot:
    """One model, dtype and pass on one device. note: what all lines share. lines: by length."""

    title: str
    note: str
    lines: Mapping[str, Cells]

    def backends(self) -> list[str]:
        """Those that are fastest most often first."""
        wins: dict[str, int] = {}
        for cells in self.lines.values():
            for name, (_, fastest) in cells.items():
                wins[name] = wins.get(name, 0) + fastest
        return sorted(wins, key=lambda name: -wins[name])


def pivots(runs: Sequence[Run]) -> Iterator[Pivot]:
    """Give the tables of all suites that rank by a time."""
    table = frames.frame(runs)
    for name, section in frames.sections(runs, table).items():
        if not units.is_time(section.rank):
            continue
        rows = ranking.ranked(table[table["suite"] == name], section.rank)
        rows = rows[rows[section.rank].notna()]
        varying = frames.varying_axes(rows)
        places: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in frames.records(rows):
            place = tuple(units.plain(row[axis]) for axis in ("subject", "dtype", "pass", *varying))
            places.setdefault(place, []).append(row)
        for place, found in places.items():
            yield _pivot(place, found, section.rank)


def _pivot(place: Sequence[str], rows: Sequence[dict[str, Any]], rank: str) -> Pivot:
    subject, dtype, pass_, *others = place
    shared = frames.shared_sizes(rows)
    shared.pop("T", None)
    lines: dict[str, Cells] = {}
    for row in rows:
        length = " ".join(f"{axis}{size}" for axis, size in frames.sizes(row).items() if axis not in shared)
        lines.setdefault(length, {})[frames.named(row)] = (_time(row, rank), bool(row["fastest"]))
    said = " ".join(f"{axis}{size}" for axis, size in shared.items())
    note = ", ".join(filter(None, [said, *others, *frames.devices_and_dates(rows)]))
    return Pivot(f"{subject}, {pass_}, {dtype}", note, lines)


def _time(row: Mapping[str, Any], rank: str) -> str:
    low, high = units.interval_names(rank)
    text = units.of_row(rank, row)
    return f"{text} {units.spread(row[rank], row.get(low), row.get(high))}".strip()


def split(
    pivot: Pivot, write: Callable[[str, bool], str], width_of: Callable[[str, bool], int]
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Give the headings and lines of tables that are narrow enough; each has the lengths in front.

    write, width_of: make a cell and say how wide it is shown, from its text and whether it is the fastest.
    """
    width = 5 + max(map(len, pivot.lines))
    groups: list[list[str]] = [[]]
    used = width
    for name in pivot.backends():
        widths = [width_of(*cells[name]) for cells in pivot.lines.values() if name in cells]
        own = 3 + max(PADDING + len(name), *widths)
        if groups[-1] and used + own > WIDEST:
            groups.append([])
            used = width
        groups[-1].append(name)
        used += own
    for names in groups:
        lines = [
            [write(*cell) for cell in ((length, False), *(cells.get(name, NO_TIME) for name in names))]
            for length, cells in pivot.lines.items()
            if not cells.keys().isdisjoint(names)
        ]
        yield ["", *names], lines


@report("markdown_short")
def markdown_short(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Write tables of at most 80 columns for a pull request: lengths by backends, with intervals."""
    from tabulate import tabulate

    def cell(text: str, fastest: bool) -> str:
        return f"**{escape(text)}**" if fastest else escape(text)

    parts = []
    for pivot in pivots(runs):
        parts.append(f"**{escape(pivot.title)}**")
        for headings, lines in split(pivot, cell, lambda *each: len(cell(*each))):
            align = ["left", *["right"] * (len(headings) - 1)]
            parts.append(
                tabulate(lines, [*map(escape, headings)], "pipe", disable_numparse=True, colalign=align)
            )
        parts.append(escape(pivot.note))
    return deliver("\n\n".join(parts or ["No case has a time."]) + "\n", destination)


@report("latex")
def latex(runs: Sequence[Run], destination: Path | None = None) -> str | None:
    """Write tables for a paper; they need the package booktabs."""
    parts = ["% needs \\usepackage{booktabs}"]
    tables = [
        _latex_table(pd.DataFrame(lines, columns=[*map(in_latex, headings)]), pivot)
        for pivot in pivots(runs)
        for headings, lines in split(pivot, _latex_cell, lambda text, fastest: 1 + len(text))
    ]
    for first in range(0, len(tables), MOST_FLOATS):
        parts += [r"\clearpage"] if first else []
        parts += tables[first : first + MOST_FLOATS]
    return deliver("\n".join(parts) + "\n", destination)


def _latex_table(table: pd.DataFrame, pivot: Pivot) -> str:
    style = table.style.hide(axis="index")
    caption = f"{in_latex(pivot.title)}. {in_latex(pivot.note)}."
    columns = "l" + "r" * (len(table.columns) - 1)
    return style.to_latex(hrules=True, caption=caption, position_float="centering", column_format=columns)


def _latex_cell(text: str, fastest: bool) -> str:
    return f"\\textbf{{{in_latex(text)}}}" if fastest else in_latex(text)


def in_latex(text: Any) -> str:
    """Escape text from outside for LaTeX: it makes no command and no new cell. Other letters become "?"."""
    return units.plain(text).translate(_LATEX).encode("ascii", errors="replace").decode()
