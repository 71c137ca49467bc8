"""Settings of torch's profiler, which writes to stderr by default."""

from __future__ import annotations

import os


def silence() -> None:
    """Keep the profiler from writing to stderr when it starts. A log level that is already set is kept."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
