"""Coverage: of each axis, how many cases have which value, and how many of these are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ssmperf.suitekit import DIMENSIONS, UNPACKED

FINE = ("ok", "unsupported")
CALL, PACKING = "call", "packing"
MOST_VALUES = 24  # of an axis, those of the most cases


def coverage(rows: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, str]]:
    """Give a name and a text for each axis that the cases have.

    Sizes are counted by powers of two, a call by its words, and a packing by what it holds.
    """
    found = []
    for name in names:
        if name in rows and rows[name].notna().any():
            found.append((name, _text(name, rows)))
    return found


def _text(name: str, rows: pd.DataFrame) -> str:
    cases: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    order: dict[str, Any] = {}
    for value, status in zip(rows[name], rows["status"], strict=True):
        for place, label in _labels(name, value):
            cases[label] += 1
            wrong[label] += status not in FINE
            order[label] = place
    shown = {label for label, _ in cases.most_common(MOST_VALUES)} | {each for each in wrong if wrong[each]}
    parts = [
        _part(label, cases[label], wrong[label]) for label in sorted(shown, key=lambda each: order[each])
    ]
    return " · ".join(parts)


def _part(label: str, cases: int, wrong: int) -> str:
    return f"{label} {cases:,}" + (f" ({wrong:,} wrong)" if wrong else "")


def _labels(name: str, value: Any) -> Iterable[tuple[Any, str]]:
    """Give the labels under which a value counts, with their places in the order."""
    if value is None or value != value:
        return
    if name in DIMENSIONS:
        low = 1 << (int(value).bit_length() - 1)
        yield low, str(low) if low == 1 else f"{low:,}–{2 * low - 1:,}"
    elif name == CALL:
        for word in {"grad=" if each.startswith("grad=") else each for each in value.split()}:
            yield word, word
    elif name == PACKING and value != UNPACKED:
        lengths = {part.partition("x")[0] for part in value.split(",")}
        yield "packed", "packed"
        if "0" in lengths:
            yield "with an empty sequence", "with an empty sequence"
    else:
        yield str(value), str(value)
