"""Bytes of real text: the sources of Python's standard library, which every machine has, or the user's."""

from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt


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


WINDOW = 32  # bytes that must not occur in the text to learn, but for a share of REPEATED
REPEATED = 0.02
_MIX = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
HELD_OUT = 10  # one of so many files, or of so many equal parts of a single file
NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


@functools.lru_cache(maxsize=4)
def split_text(corpus: Path | None = None) -> tuple[bytes, bytes]:
    """Read a text and split it into a part to learn and a part that is held out, each as one byte string.

    Of several files, whole files are held out: a tenth of them, in the order of the checksums of their
    relative paths, but only files of which fewer than 2 % of the windows of 32 bytes occur in another file.
    There may be fewer such files. If there is one file, its last part is held out, and `repeated_share`
    says how much of it repeats.

    corpus: a text file, or a folder of text files; None means the standard library's sources with its
        packages, without its tests.

    Raises:
        OSError: a file cannot be read.
        ValueError: one of the parts is empty, or every file repeats others.
    """
    if corpus is not None and not corpus.is_dir():
        text = corpus.read_bytes()
        end = len(text) - len(text) // HELD_OUT
        learnt, unseen = text[:end], text[end:]
    else:
        folder = Path(os.__file__).parent if corpus is None else corpus
        names = sorted(_files(folder, only_sources=corpus is None))
        drawn = sorted(names, key=lambda name: zlib.crc32(name.as_posix().encode()))
        texts = {name: (folder / name).read_bytes() for name in names}
        shares = _repeats(texts)
        own = [name for name in drawn if shares[name] < REPEATED] if len(names) > 1 else []
        if names and not own:
            raise ValueError(
                f"each file of {folder} has {REPEATED:.0%} of its windows of {WINDOW} bytes in other files: "
                "pass a single file, whose last tenth is held out"
            )
        held = set(own[: max(1, len(names) // HELD_OUT)])
        learnt, unseen = (
            b"".join(texts[name] for name in names if (name in held) is unseen) for unseen in (False, True)
        )
    if not (learnt and unseen):
        raise ValueError(f"{corpus or 'the standard library'} is too small to hold a part of it out")
    return learnt, unseen


@functools.lru_cache(maxsize=4)
def repeated_share(corpus: Path | None = None) -> float:
    """Give the share of the held-out windows of 32 bytes that occur in the text to learn."""
    learnt, unseen = map(_windows, split_text(corpus))
    if not (len(learnt) and len(unseen)):
        return 0.0
    learnt.sort()
    places = np.searchsorted(learnt, unseen)
    return float((learnt[np.minimum(places, len(learnt) - 1)] == unseen).mean())


def _repeats(texts: Mapping[Path, bytes]) -> dict[Path, float]:
    """Give the share of each file's windows that occur in another file."""
    found = [_windows(text) for text in texts.values()]
    lengths = [len(each) for each in found]
    windows, files = np.concatenate(found), np.repeat(np.arange(len(found)), lengths)
    order = np.argsort(windows)
    windows, files = windows[order], files[order]
    starts = np.flatnonzero(np.diff(windows, prepend=windows[:1] - np.uint64(1)))
    several = np.minimum.reduceat(files, starts) != np.maximum.reduceat(files, starts)
    shared = np.repeat(several, np.diff(starts, append=len(windows)))
    counts = np.bincount(files, weights=shared, minlength=len(found))
    return {name: count / max(1, length) for name, count, length in zip(texts, counts, lengths, strict=True)}


def _windows(text: bytes) -> npt.NDArray[np.uint64]:
    """Give a fingerprint of each window of 32 bytes; none of a shorter text."""
    letters = np.frombuffer(text, np.uint8)
    count = len(letters) - WINDOW + 1
    if count < 1:
        return np.empty(0, np.uint64)
    words = np.zeros(len(letters) - 7, np.uint64)
    for place in range(8):
        words |= letters[place : place + len(words)].astype(np.uint64) << np.uint64(8 * place)
    mixed = words[:count].copy()
    for part, factor in enumerate(_MIX, 1):
        mixed ^= mixed >> np.uint64(29)
        mixed = mixed * factor + words[8 * part : 8 * part + count]
    return mixed


def _files(folder: Path, *, only_sources: bool) -> Iterator[Path]:
    """List the files in a folder by their relative paths; the folders of NOT_SOURCES are no sources."""
    for place, folders, files in os.walk(folder):
        if only_sources:
            folders[:] = [name for name in folders if name not in NOT_SOURCES]
            files = [name for name in files if name.endswith(".py")]
        yield from (Path(place, name).relative_to(folder) for name in files)
