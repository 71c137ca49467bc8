"""What the kernel knows of processes and memory: the remains of a worker, and how much a new one may take."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ssmperf.errors import SsmperfError

MARK = "SSMPERF_WORKER"  # in the environment of a worker and of whatever it starts


def signal_name(number: int) -> str:
    """Such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def kill_marked(mark: str) -> None:
    """Kill what a dead worker left behind, in sessions of its own too: its environment has the mark."""
    entry = f"{MARK}={mark}".encode()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [_kill_if_marked(int(path.name), entry) for path in Path("/proc").glob("[0-9]*")]
        if not any(found):
            return
        time.sleep(0.01)  # until they are gone, with what they forked meanwhile


def _kill_if_marked(pid: int, entry: bytes) -> bool:
    try:
        descriptor = os.pidfd_open(pid)  # first: it cannot come to mean a newer process of that number
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
    """Memory that a new process may take: the machine's available, or less in a container."""
    limits = [_meminfo_available()]
    with contextlib.suppress(OSError, ValueError):
        bound = int(Path("/sys/fs/cgroup/memory.max").read_text())
        limits.append(bound - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    return max(min(limits), 0)


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SsmperfError("/proc/meminfo does not tell the available memory")
