"""Packing: the lengths of sequences that lie one after another in the one batch element.

As a text it lists lengths, `1300,547,0,1`, where `1024x8` stands for eight sequences of 1,024 steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.shape import LARGEST
from ssmperf.errors import UsageError

UNPACKED = "none"
FORMS = "none, 1300,547,0,1, 1024x8 or @lengths.json"
MOST_SEQUENCES = 1 << 20
MOST_BYTES = 16 << 20  # of a file of lengths
_PART = re.compile(r"(?P<length>\d{1,19})(?:x(?P<count>\d{1,9}))?")


def read_packing(value: Any) -> str:
    """Read a packing as a text or as a sequence of lengths, and write it in its shortest form.

    Raises:
        UsageError: it is not understood, has no step, or has too many sequences.
    """
    if value is None or value == UNPACKED:
        return UNPACKED
    lengths = _parsed(value) if isinstance(value, str) else _checked(value)
    if not 1 <= sum(lengths) <= LARGEST:
        raise UsageError(f"packing must have at least one step and fewer than 2^63, got {value!r:.80}")
    runs = ((length, sum(1 for _ in equal)) for length, equal in groupby(lengths))
    return ",".join(str(length) if count == 1 else f"{length}x{count}" for length, count in runs)


def lengths_of(packing: str) -> tuple[int, ...] | None:
    """List the lengths of a packing; None if nothing is packed."""
    return None if packing == UNPACKED else tuple(_parsed(packing))


def read_lengths_file(text: str) -> Any:
    """Read the lengths in the JSON file of a packing `@FILE`; any other value is returned unchanged.

    Raises:
        UsageError: there is no such file, or it holds no list of whole numbers.
    """
    if not (isinstance(text, str) and text.startswith("@")):
        return text
    file = Path(text[1:])
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            raise UsageError(f"packing {text}: must be a file of at most {MOST_BYTES >> 20} MiB")
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"packing {text} cannot be read as JSON: {error}") from error
    if not isinstance(found, list):
        raise UsageError(f"packing {text} must hold a list of lengths, such as [1300, 547, 0, 1]")
    return _checked(found)


def _parsed(text: str) -> list[int]:
    lengths: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"packing {text!r:.80} is not understood (forms: {FORMS})")
        count = int(match["count"] or 1)
        if not 1 <= count <= MOST_SEQUENCES - len(lengths):
            raise UsageError(f"packing {text!r:.80}: must have 1 to {MOST_SEQUENCES} sequences")
        lengths += [int(match["length"])] * count
    return lengths


def _checked(values: Any) -> list[int]:
    lengths: Sequence[Any] = list(values) if isinstance(values, Iterable) else [values]
    for length in lengths:
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise UsageError(f"packing takes lengths from 0 on, got {length!r:.80} (forms: {FORMS})")
    if not 1 <= len(lengths) <= MOST_SEQUENCES:
        raise UsageError(f"packing must have 1 to {MOST_SEQUENCES} sequences, got {len(lengths)}")
    return list(lengths)
