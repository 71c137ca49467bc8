"""Bytes of real text: the Python standard library's sources, which are on every machine."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from ssmperf.errors import UsageError


@functools.cache
def standard_library() -> bytes:
    """All top-level modules of the standard library, in alphabetical order, as one byte string."""
    folder = Path(os.__file__).parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def read(length: int, *, offset: int = 0, corpus: Path | None = None) -> bytes:
    """`length` bytes of the corpus from `offset`, wrapping around at its end.

    Raises:
        UsageError: the corpus file cannot be read or is empty.
    """
    try:
        text = corpus.read_bytes() if corpus else standard_library()
    except OSError as error:
        raise UsageError(f"cannot read the corpus {corpus}: {error.strerror}") from error
    if not text:
        raise UsageError(f"the corpus {corpus or 'of the standard library'} is empty")
    start = offset % len(text)
    repeats = -(-(start + length) // len(text))
    return (text * repeats)[start : start + length]
