"""Columns of a block on a terminal: as many as its width takes, with headings of one line or two."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

REASON_WIDTH = 24  # least width that a block leaves for its last column, such as status and reason


def grid(*, show_header: bool = True) -> Table:
    """Make an empty table without lines, whose headings are faint."""
    return Table(box=None, show_header=show_header, header_style="dim", padding=(0, 1), pad_edge=False)


def narrow(room: int, headings: list[str], cells: list[list[Text]]) -> list[str]:
    """Make a block fit: break its headings, then remove the last columns, but keep the first number.

    Returns:
        The headings of the columns that were removed.
    """
    dropped: list[str] = []
    if not _fits(room, headings, cells):
        headings[:] = map(_broken, headings)
    while len(headings) > 4 and not _fits(room, headings, cells):
        dropped.insert(0, headings.pop(-2).replace("\n", " "))
        for line in cells:
            del line[-2]
    return dropped


def _fits(room: int, headings: list[str], cells: list[list[Text]]) -> bool:
    *known, _ = widths(headings, cells)
    return sum(known) + 2 * len(headings) + REASON_WIDTH <= room


def _broken(heading: str) -> str:
    """Break a heading of several words into two lines, as narrow as possible."""
    words = heading.split(" ")
    pairs = [(" ".join(words[:place]), " ".join(words[place:])) for place in range(1, len(words))]
    return "\n".join(min(pairs, key=lambda pair: max(map(len, pair)))) if pairs else heading


def widths(headings: list[str], cells: list[list[Text]]) -> list[int]:
    """Give the width of each column: that of its widest cell or line of its heading."""
    columns = zip(*cells, strict=True)
    return [
        max(*map(len, title.split("\n")), *(text.cell_len for text in column), 0)
        for title, column in zip(headings, columns, strict=True)
    ]
