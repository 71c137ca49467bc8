"""The cores that this process may use, and the core on which a thread works."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# as they are before any backend runs; None where the system leaves no choice of the core
_allowed, _allow = getattr(os, "sched_getaffinity", None), getattr(os, "sched_setaffinity", None)


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def one_core(number: int | None) -> Iterator[None]:
    """Keep the calling thread on one of the cores that it may use; the same one for the same number.

    Processes with the same choice of cores meet on one core in this way. None leaves the thread where it is.
    """
    if number is None or _allowed is None or _allow is None:
        yield
        return
    cores = _allowed(0)
    _allow(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        _allow(0, cores)
