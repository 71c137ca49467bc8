"""Standard output and error that no reader, encoding or full device can make fail in the middle of a verb."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ssmperf.errors import OutputFailed


class Outlet(io.RawIOBase):
    """Writes to a descriptor until that fails; what comes later is dropped.

    A closed pipe is no failure: its reader has seen enough, and the verdict is still wanted.

    required: whether any other failure is an error. It is raised once.
    """

    def __init__(self, descriptor: int, *, required: bool) -> None:
        self._descriptor, self._required, self._failed = descriptor, required, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write bytes, all that are left once the descriptor has failed.

        Raises:
            OutputFailed: the descriptor fails for another reason than a closed pipe, and is required.
        """
        size = memoryview(data).nbytes
        if self._failed:
            return size
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            self._failed = True
            if self._required and error.errno != errno.EPIPE:
                reason = error.strerror or error
                raise OutputFailed(f"cannot write to standard output: {reason}") from error
            return size


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Replace standard output and error within the block by streams that last.

    Characters that their encoding lacks, and bytes of file names that are no text, are written as question
    marks. Streams that are no files, such as those of a test, stay as they are.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(before[0], required=True), _lasting(before[1], required=False)
    try:
        yield
    finally:
        try:
            with contextlib.suppress(OutputFailed):
                sys.stdout.flush()
            sys.stderr.flush()
        finally:
            sys.stdout, sys.stderr = before


def _lasting(stream: TextIO | None, *, required: bool) -> TextIO:
    """Make a stream that lasts for one that may be closed, or None because its descriptor was."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return stream
    outlet = Outlet(descriptor, required=required)
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=getattr(stream, "write_through", False),
    )
