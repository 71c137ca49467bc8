"""The activity of a process while its main thread sleeps: threads, child processes, and their CPU time."""

from __future__ import annotations

import concurrent.futures.thread
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

IDLE_S = 0.01  # how long to watch a process sleep
PATIENCE_S = 0.5  # threads of OpenMP wait actively for a while after a parallel region
POOL_PATIENCE_S = 60.0  # a pool may be compiling kernels for the next call
MOST_IDLE_SHARE = 0.2  # of one core; an idle process uses less than a hundredth

# Parts of the commands of helper processes that torch's compiler and multiprocessing start and keep.
HELPERS = ("torch/_inductor/compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")

NURSERY = "ssmperf.engine.processes.nursery_process"  # in the commands of a nursery and its forks
SIDE = "ssmperf.versions.serve"  # in the command of a version that is compared with another one

_sleep, _now, _cpu_s, _clock_s = time.sleep, time.monotonic, time.process_time, time.clock_gettime


def idle_cpu_s(seconds: float) -> float:
    """Measure the CPU seconds that this process and its descendants want while the calling thread sleeps.

    That is the time that they use, and that in which their threads wait for a core on a busy machine.
    """
    families = (os.getpid(), *descendants(os.getpid()))
    before = {pid: _wanted_s(pid) for pid in families}
    _sleep(seconds)
    return sum(max(_wanted_s(pid) - used, 0.0) for pid, used in before.items())


def idle_share(
    seconds: float, patience_s: float = PATIENCE_S, pool_patience_s: float = POOL_PATIENCE_S
) -> float:
    """Measure the share of one core that is used while the calling thread sleeps.

    Where something runs, look again until it has stopped or the patience is over, and return the last share.

    patience_s: counts from the last time that a pool of threads (`concurrent.futures`) was seen at work.
    pool_patience_s: counts from the start, whatever pools do.
    """
    began = worked = _now()
    while True:
        start, pool_works = _now(), _pool_works()
        share = idle_cpu_s(seconds) / (_now() - start)
        if pool_works:
            worked = _now()
        if share <= MOST_IDLE_SHARE or _now() - worked >= patience_s or _now() - began >= pool_patience_s:
            return share


def _pool_works() -> bool:
    """Tell whether a thread of a pool is doing anything but waiting for work."""
    frames, waiting = sys._current_frames(), concurrent.futures.thread._worker.__code__
    found = [frames.get(thread.ident or 0) for thread in list(concurrent.futures.thread._threads_queues)]
    return any(frame is not None and frame.f_code is not waiting for frame in found)


def _wanted_s(pid: int) -> float:
    """Read the CPU seconds that all threads of a process have used or waited for; 0 if it has ended."""
    used_s = cpu_s(pid)
    return used_s + _waited_s(pid) if used_s is not None else 0.0


def cpu_s(pid: int) -> float | None:
    """Read the CPU seconds that all threads of a process have used; None if it has ended."""
    if pid == os.getpid():
        return _cpu_s()
    try:
        return _clock_s(~pid << 3 | 2)  # Linux's clock of another process
    except OSError:
        return None


def _waited_s(pid: int) -> float:
    """Read how long all threads but the calling one have waited for a core; 0 if Linux does not count it."""
    waited_ns = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        if task.parent.name != str(threading.get_native_id()):
            with contextlib.suppress(OSError):  # the thread has ended
                waited_ns += int(task.read_text().split()[1])
    return waited_ns / 1e9


def children(pid: int) -> dict[int, str]:
    """Find the processes whose parent is `pid`, with their commands; helpers of libraries are left out."""
    found = {child: _command(child) for child in _children(pid)}
    return {child: text for child, text in found.items() if not any(part in text for part in HELPERS)}


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


def number_of_threads() -> int:
    """Count all threads of this process, those of libraries included."""
    return sum(1 for _ in os.scandir("/proc/self/task"))


def python_threads() -> dict[int, str]:
    """List Python's threads without those of pools, of torch, and those that Python did not start."""
    pools = set(concurrent.futures.thread._threads_queues)
    found = {}
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        of_torch = (getattr(target, "__module__", None) or "").startswith("torch.")
        if not (thread in pools or of_torch or isinstance(thread, threading._DummyThread)):
            found[thread.ident or 0] = thread.name
    return found
