"""Bytes of real text: the sources of Python's standard library, which every machine has, or the user's."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterator
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


HELD_OUT = 10  # one of so many files, or of so many equal parts of a single file
NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


@functools.lru_cache(maxsize=4)
def split_text(corpus: Path | None = None) -> tuple[bytes, bytes]:
    """Read a text and split it into a part to learn and a part that is held out, each as one byte string.

    Of several files, whole files are held out: those with the least checksums of their relative paths, at
    least one. If there is one file, its last part is held out.

    corpus: a text file, or a folder of text files; None means the standard library's sources with its
        packages, without its tests.

    Raises:
        OSError: a file cannot be read.
        ValueError: one of the parts is empty.
    """
    if corpus is not None and not corpus.is_dir():
        text = corpus.read_bytes()
        end = len(text) - len(text) // HELD_OUT
        learnt, unseen = text[:end], text[end:]
    else:
        folder = Path(os.__file__).parent if corpus is None else corpus
        names = sorted(_files(folder, only_sources=corpus is None))
        drawn = sorted(names, key=lambda name: zlib.crc32(name.as_posix().encode()))
        held = set(drawn[: max(1, len(names) // HELD_OUT)])
        parts = [[name for name in names if (name in held) is unseen] for unseen in (False, True)]
        learnt, unseen = (b"".join((folder / name).read_bytes() for name in each) for each in parts)
    if not (learnt and unseen):
        raise ValueError(f"{corpus or 'the standard library'} is too small to hold a part of it out")
    return learnt, unseen


def _files(folder: Path, *, only_sources: bool) -> Iterator[Path]:
    """List the files in a folder by their relative paths; the folders of NOT_SOURCES are no sources."""
    for place, folders, files in os.walk(folder):
        if only_sources:
            folders[:] = [name for name in folders if name not in NOT_SOURCES]
            files = [name for name in files if name.endswith(".py")]
        yield from (Path(place, name).relative_to(folder) for name in files)
