"""Which tests run each time (`pytest --part quick`), and which before an issue closes (`--part rest`).

The rest are tests marked `slow`, and most rows of a sweep. A sweep is a test with parameters; its quick rows
show each value of each parameter once. `slow(but=("scan", "key-*"))` names quick rows of a slow test.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import pytest

PARTS = ("quick", "rest")


def of_part(part: str, items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Divide tests into those of a part and the others."""
    quick = {item.nodeid for rows in sweeps(items) for item in quick_rows(rows)}
    chosen, others = [], []
    for item in items:
        (chosen if (item.nodeid in quick) == (part == "quick") else others).append(item)
    return chosen, others


def sweeps(items: Iterable[pytest.Item]) -> list[list[pytest.Item]]:
    """Group the rows of each test."""
    rows = defaultdict(list)
    for item in items:
        rows[item.nodeid.partition("[")[0]].append(item)
    return list(rows.values())


def quick_rows(rows: Sequence[pytest.Item]) -> list[pytest.Item]:
    slow = rows[0].get_closest_marker("slow")
    if slow is None:
        return with_each_value(rows)
    chosen = {pattern: rows_like(pattern, rows) for pattern in slow.kwargs.get("but", ())}
    stale = [pattern for pattern, items in chosen.items() if not items]
    if stale and len(rows) > 1:
        raise pytest.UsageError(f"{rows[0].nodeid.partition('[')[0]} has no row {', '.join(stale)}")
    return [item for item in rows if any(item in items for items in chosen.values())]


def rows_like(pattern: str, rows: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in rows if fnmatchcase(row_of(item), pattern)]


def with_each_value(rows: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Choose rows until each value of each parameter was there, in an order that mixes the values."""
    seen: set[tuple[int, str]] = set()
    chosen = []
    for item in sorted(rows, key=lambda item: hashlib.sha256(item.name.encode()).digest()):
        values = set(enumerate(row_of(item).split("-")))
        if not values <= seen:
            seen |= values
            chosen.append(item)
    return chosen


def row_of(item: pytest.Item) -> str:
    """Name a row as pytest does between brackets."""
    return item.name.partition("[")[2].removesuffix("]")
