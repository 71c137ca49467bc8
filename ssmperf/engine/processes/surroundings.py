"""What children of this process start with, whatever foreign code that it imports has changed."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_changed: dict[str, tuple[str | None, str | None]] = {}  # variables: as they were, and as they were left


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Note which variables a block changes; put back folder, cores and limits as far as the system allows.

    The variables stay: what the block imports may read them later, in this process.
    """
    variables, folder, cores = dict(os.environ), Path.cwd(), os.sched_getaffinity(0)
    limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
    try:
        yield
    finally:
        for name in variables.keys() | os.environ.keys():
            before, after = variables.get(name), os.environ.get(name)
            if before != after:
                _changed[name] = _changed.get(name, (before, None))[0], after
        os.chdir(folder)
        os.sched_setaffinity(0, cores)
        for limit, values in limits.items():
            if resource.getrlimit(limit) != values:
                with contextlib.suppress(OSError, ValueError):  # a hard limit stays lowered
                    resource.setrlimit(limit, values)


def variables() -> dict[str, str]:
    """Give the environment for a child: this process's own, without what watched blocks have changed."""
    found = dict(os.environ)
    for name, (before, after) in _changed.items():
        if found.get(name) != after:
            continue  # somebody else has set it since
        if before is None:
            found.pop(name, None)
        else:
            found[name] = before
    return found
