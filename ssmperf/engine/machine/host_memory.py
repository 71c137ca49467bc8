"""Memory of the host that a new process may take."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ssmperf.errors import SsmperfError


def available_memory_bytes() -> int:
    """Get the memory that a new process may take: the machine's available memory, or less in a container."""
    limits = [_meminfo_available()]
    with contextlib.suppress(OSError, ValueError):
        bound = int(Path("/sys/fs/cgroup/memory.max").read_text())
        limits.append(bound - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(min(limits), 0)


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SsmperfError("/proc/meminfo does not report the available memory")
