"""Bytes of real text: the sources of Python's standard library, which every machine has."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def standard_library() -> bytes:
    """Read all top-level modules of the standard library, in alphabetical order, as one byte string."""
    folder = Path(os.__file__).parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def read(length: int, *, offset: int = 0) -> bytes:
    """Read `length` bytes of the corpus from `offset` on, wrapping around at its end."""
    text = standard_library()
    start = offset % len(text)
    repeats = -(-(start + length) // len(text))
    return (text * repeats)[start : start + length]
