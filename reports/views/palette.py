"""Colours and line marks: a backend has the same in every chart of a report."""

from __future__ import annotations

from collections.abc import Iterable

BASELINE_COLOUR = "#8a8f98"
# Mid-tone hues that keep a contrast of 3 : 1 on white and on near-black.
COLOURS = (
    "#3b7ddd", "#e8710a", "#1a9c5b", "#d6409f", "#8e5bd9", "#c79a00",
    "#0d9db8", "#e5484d", "#6f8f00", "#b0643c", "#5b6ee1", "#d07a9a",
)  # fmt: skip
# Each mark by its name in plotly and in matplotlib. Marks tell lines apart without colour.
MARKS = (
    ("circle", "o"), ("square", "s"), ("diamond", "D"), ("triangle-up", "^"), ("triangle-down", "v"),
    ("cross", "P"), ("x", "X"), ("pentagon", "p"), ("star", "*"), ("hexagon", "h"),
)  # fmt: skip
STATUS_STYLES = {
    "ok": "green",
    "wrong": "bold red",
    "nan": "bold red",
    "crash": "bold red",
    "oom": "yellow",
    "timeout": "yellow",
    "unsupported": "bright_black",
}


def colours(names: Iterable[str], baseline: str) -> dict[str, str]:
    """Give each name a colour: grey for the baseline, the others in alphabetical order."""
    others = [name for name in sorted(set(names)) if name != baseline]
    return {baseline: BASELINE_COLOUR} | {
        name: COLOURS[place % len(COLOURS)] for place, name in enumerate(others)
    }


def marks(names: Iterable[str], baseline: str) -> dict[str, tuple[str, str]]:
    """Give each name a mark, by its names in plotly and in matplotlib; the baseline has the first."""
    others = [name for name in sorted(set(names)) if name != baseline]
    return {name: MARKS[place % len(MARKS)] for place, name in enumerate([baseline, *others])}
