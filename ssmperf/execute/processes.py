"""Processes and memory as the operating system sees them: remains of a worker, and available memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ssmperf.errors import SsmperfError

MARK = "SSMPERF_WORKER"  # variable in the environment of a worker and of every process that it starts


def signal_name(number: int) -> str:
    """Name a signal, for example SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def kill_marked(mark: str) -> None:
    """Kill the processes that a dead worker left behind, in any session: those with the mark."""
    entry = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [_kill_if_marked(int(path.name), entry) for path in Path("/proc").glob("[0-9]*")]
        if not any(found):
            return
        time.sleep(0.01)  # look again: they may have forked meanwhile


def _kill_if_marked(pid: int, entry: bytes) -> bool:
    try:
        descriptor = os.pidfd_open(pid)  # before all else: the number may be given to a newer process
    except OSError:
        return False
    try:
        if entry not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


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
