"""CPU time that other processes use while calls are being timed, as Linux counts it in /proc.

The processes of a run are one family: the driver and all below it. CPU time of the cores beyond that
of the family was for others, or was taken by another virtual machine. Linux counts in ticks of 10 ms, so a
short window is compared with an earlier reading. Where /proc has no counts, nothing is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ssmperf.engine.machine.activity import cpu_s, family
from ssmperf.engine.machine.environment import CGROUP

LEAST_WINDOW_S = 0.2  # between two readings that are compared: 20 ticks per core
MOST_READINGS = 8
LEAST_SHARE = 0.2  # of the cores, used by others: less is the background of any machine
_WORKING = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal
_now = time.monotonic


@dataclass(frozen=True, slots=True)
class LoadReading:
    """The counts at one moment.

    all_s: CPU seconds that our cores have worked. own_s: CPU seconds of each of our own processes.
    throttled: periods in which the container's limit stopped it. cores: number of our cores.
    """

    at_s: float
    all_s: float
    own_s: Mapping[int, float]
    throttled: int
    cores: int


class HostLoad:
    """Compares readings of the CPU's counts.

    proc, cgroup: the folders of Linux's counts.
    own_s: reads the CPU seconds of our own processes by their ids.
    now: the clock of `busy_since`.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = CGROUP,
        own_s: Callable[[], Mapping[int, float]] | None = None,
        now: Callable[[], float] = _now,
    ) -> None:
        self.proc, self.cgroup, self.now = proc, cgroup, now
        self.own_s = own_s or _family_s
        self.readings: list[LoadReading] = []
        self.read()

    def read(self) -> None:
        """Take a reading, unless the last one is recent or Linux has no counts."""
        if self.readings and self.now() - self.readings[-1].at_s < LEAST_WINDOW_S / 4:
            return
        found = self._reading()
        if found is not None:
            self._keep(found)

    def busy_since(self, began_s: float) -> list[str]:
        """List other uses of the CPU from a moment until now; empty if it was ours alone.

        The comparison is with the last reading before that moment that is old enough.
        """
        last = self._reading()
        if last is None:
            return []
        old = [r for r in self.readings if last.at_s - r.at_s >= LEAST_WINDOW_S and r.cores == last.cores]
        before = [r for r in old if r.at_s <= began_s] or old[:1]
        self._keep(last)
        return _compared(before[-1], last) if before else []

    def _keep(self, reading: LoadReading) -> None:
        self.readings = [*self.readings[1 - MOST_READINGS :], reading]

    def _reading(self) -> LoadReading | None:
        at_s, own_s = self.now(), self.own_s()
        counted = _working_s(self.proc / "stat")
        if counted is None:
            return None
        return LoadReading(at_s, counted[0], own_s, _throttled(self.cgroup), counted[1])


def _family_s() -> dict[int, float]:
    found = {pid: cpu_s(pid) for pid in family()}
    return {pid: used_s for pid, used_s in found.items() if used_s is not None}


def _compared(first: LoadReading, last: LoadReading) -> list[str]:
    seconds = last.at_s - first.at_s
    # a process that has ended since the first reading is missing in the last one
    own_s = sum(used_s - first.own_s.get(pid, 0.0) for pid, used_s in last.own_s.items())
    others = (last.all_s - first.all_s - own_s) / seconds
    texts = []
    if others >= LEAST_SHARE * last.cores:
        texts.append(f"others used {min(others, last.cores):.1f} of {last.cores} cores")
    if last.throttled > first.throttled:
        texts.append("the CPU limit of the container held it back")
    return texts


def _working_s(stat: Path) -> tuple[float, int] | None:
    """Add up how long the cores that we may use have worked, in seconds; count these cores.

    In some containers the cores have other numbers than those of our affinity; then all cores count.
    """
    ticks: dict[str, int] = {}
    try:
        for line in stat.read_text().splitlines():
            name, *values = line.split()
            if name.startswith("cpu"):
                ticks[name] = sum(int(values[i]) for i in _WORKING if i < len(values))
    except (OSError, ValueError):
        return None
    cores = [name for name in ticks if name != "cpu"]
    allowed = [f"cpu{number}" for number in os.sched_getaffinity(0)]
    counted = allowed if set(allowed) <= set(cores) else cores
    if not counted or not any(ticks.values()):
        return None
    return sum(ticks[name] for name in counted) / os.sysconf("SC_CLK_TCK"), len(counted)


def _throttled(cgroup: Path) -> int:
    """Count the periods in which the limit of the container stopped its processes (cgroup v2, then v1)."""
    for path in (cgroup / "cpu.stat", cgroup / "cpu" / "cpu.stat"):
        try:
            counts = dict(line.split()[:2] for line in path.read_text().splitlines() if line.strip())
            return int(counts.get("nr_throttled", 0))
        except (OSError, ValueError):
            continue
    return 0
