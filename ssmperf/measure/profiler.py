"""torch's profiler, which announces itself on stderr unless it is told not to."""

from __future__ import annotations

import os


def silence() -> None:
    """Keep the profiler from writing to stderr when it starts; a level that is set already is kept."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
