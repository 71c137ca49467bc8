"""Read the files of a run folder, whoever wrote them.

Only regular files are opened, archives are unpacked line by line and not without end, and JSON comes without
what no float and no text file can hold.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

DEEPEST = 60  # levels of nesting; a run has less than ten
LARGEST = 2**1023  # whole numbers up to here are floats, too
MOST_DIGITS = len(str(LARGEST)) + 1  # of one, its sign included
LONGEST = 64 << 20  # bytes of a line, and of a file that is read whole; two million samples take 44 MB
MOST_UNPACKED = 100  # times the size of an archive; runs are packed to a twentieth
SMALL = 1 << 20  # bytes that any archive may unpack to
_BLOCK = 1 << 20
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


def parse(text: str | bytes, *, whole: Callable[[str], int | None] = int, odd: set[str] | None = None) -> Any:
    """Parse JSON. Numbers that no float can hold, NaN among them, become None.

    whole: reads whole numbers; Python's `int` refuses those of thousands of digits, and with them the text.

    Lone surrogates, which cannot be written to a file or terminal, become question marks.

    odd: gets the names of the fields of an object whose number became None.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        found = json.loads(text, parse_int=whole)
        sound = _sound(found, DEEPEST)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if odd is not None and isinstance(found, dict):
        odd.update(name for name, value in found.items() if value is not None and sound.get(name, 0) is None)
    return sound


def read(path: Path) -> bytes:
    """Read a file, or the archive with `.gz` behind its name if it is not there.

    Raises:
        FileNotFoundError: neither is there. OSError: it cannot be read, is no regular file, or too large.
    """
    found, size = [], 0
    for line in lines(path):
        size += len(line)
        if size > LONGEST:
            raise OSError(f"it is larger than {LONGEST >> 20} MiB")
        found.append(line)
    return b"".join(found)


def lines(path: Path) -> Iterator[bytes]:
    """Read a file line by line, or the archive with `.gz` behind its name if it is not there.

    An archive is unpacked twice, so that one which unpacks to too much is refused before it is used.

    Raises:
        FileNotFoundError: neither is there.
        OSError: it cannot be read, is no regular file, or unpacks to too much; or a line is too long.
    """
    with contextlib.ExitStack() as opened:
        try:
            yield from _lines(opened.enter_context(open_regular(path)))
            return
        except FileNotFoundError:
            archive = opened.enter_context(open_regular(path.with_name(f"{path.name}.gz")))
        try:
            if _unpacks_to_more_than(max(SMALL, MOST_UNPACKED * os.fstat(archive.fileno()).st_size), archive):
                raise OSError(f"{path.name}.gz unpacks to more than {MOST_UNPACKED} times its size")
            archive.seek(0)
            with gzip.open(archive) as packed:
                yield from _lines(packed)
        except (EOFError, zlib.error) as error:
            raise OSError(f"{path.name}.gz is damaged: {error}") from error


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read. Opening a pipe would wait for who writes it, and a device may do anything.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    _check_regular(path.stat().st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_regular(os.fstat(descriptor).st_mode)  # it may have been replaced since
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, no regular file")


def _unpacks_to_more_than(most: int, archive: IO[bytes]) -> bool:
    """Unpack an archive to the end or to so many bytes, and keep none of them."""
    size = 0
    with gzip.open(archive) as packed:
        while size <= most and (block := packed.read(_BLOCK)):
            size += len(block)
    return size > most


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise OSError(f"a line is longer than {LONGEST >> 20} MiB")
        yield line


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
