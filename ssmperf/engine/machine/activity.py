"""The processes of a run, and the CPU time of a process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

NURSERY = "ssmperf.engine.processes.nursery_process"  # in the commands of a nursery and its forks
SIDE = "ssmperf.versions.serve"  # in the command of a version that is compared with another one

_cpu_s, _clock_s = time.process_time, time.clock_gettime


def cpu_s(pid: int) -> float | None:
    """Read the CPU seconds that all threads of a process have used; None if it has ended."""
    if pid == os.getpid():
        return _cpu_s()
    try:
        return _clock_s(~pid << 3 | 2)  # Linux's clock of another process
    except OSError:
        return None


def family() -> set[int]:
    """List the processes of this run: the driver, and all that descend from it.

    The driver is this process, or the one that has started the nursery from which this one was forked. Where
    two versions are compared, it is the one that has started both: they wait for each other.
    """
    root = os.getpid()
    while any(part in _command(root) for part in (NURSERY, SIDE)):
        root = _parent(root) or 1
    root = root if root > 1 else os.getpid()  # the driver has ended
    return {root, os.getpid(), *descendants(root)}


def descendants(pid: int) -> Iterator[int]:
    """Find the processes that descend from `pid`, those of libraries included."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        if Path("/proc/thread-self/children").exists():
            lists = [(task / "children").read_text() for task in tasks.iterdir()]
            return [int(child) for text in lists for child in text.split()]
    except OSError:  # the process, or a thread of it, has ended meanwhile
        return []
    # a kernel without CONFIG_PROC_CHILDREN: ask every process for its parent
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(int(path.name)) == pid]


def _parent(pid: int) -> int | None:
    """Read a process's parent; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def _command(pid: int) -> str:
    """Read a process's command, or as `ps` does its name in brackets while it has none; "" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return words.strip() or f"[{Path(f'/proc/{pid}/comm').read_text().strip()}]"
    except OSError:
        return ""
