"""Ending what a dead worker left behind: processes in sessions of their own, found by a mark."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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
