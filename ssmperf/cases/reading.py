"""Read JSON of a run folder, whoever wrote it, without what no float and no text file can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

DEEPEST = 60  # levels of nesting; a run has less than ten
LARGEST = 2**1023  # whole numbers up to here are floats, too
MOST_DIGITS = len(str(LARGEST)) + 1  # of one, its sign included


def parse(text: str | bytes, whole: Callable[[str], int | None] = int) -> Any:
    """Parse JSON. Numbers that no float can hold, NaN among them, become None.

    whole: reads whole numbers; Python's `int` refuses those of thousands of digits, and with them the text.

    Lone surrogates, which cannot be written to a file or terminal, become question marks.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return _sound(json.loads(text, parse_int=whole), DEEPEST)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def whole_or_none(digits: str) -> int | None:
    """Read a whole number, None for one that no float can hold."""
    return int(digits) if len(digits) <= MOST_DIGITS else None


def _sound(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if -LARGEST < value < LARGEST else None
    if not isinstance(value, (list, dict)):
        return value
    if levels == 0:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        return {_sound(name, 0): _sound(item, levels - 1) for name, item in value.items()}
    if are_floats(value):  # as samples are, of which there may be millions
        return value
    return [_sound(item, levels - 1) for item in value]


def are_floats(values: Sequence[Any]) -> bool:
    """Tell quickly whether all values of a list are finite floats; a list of huge ones may count as not."""
    return set(map(type, values)) == {float} and math.isfinite(sum(values))
