"""Running the cases of a plan in worker processes of this machine, one worker per device.

A crash, a hang or exhausted memory costs one case; a new worker goes on with the next.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ssmperf.cases.case import Case
from ssmperf.execute.lane import Events, Lane, needs_fresh_process
from ssmperf.execute.processes import available_memory_bytes
from ssmperf.execute.worker_process import Config, WorkerProcess
from ssmperf.registry.presets import Preset
from ssmperf.tune.files import CURATED, Tuning

MEMORY_FRACTION = 0.25  # of the memory available when a CPU worker starts


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Executes cases on devices of this machine.

    devices: torch device strings ("cpu", "cuda:0", ...); each gets a worker of its own.
    preset: how long a case is measured, and by how many threads on a CPU unless OMP_NUM_THREADS is set.
    timeout_s: longest that one case may take, not counting its reference.
    log_dir: folder for the workers' stdout and stderr; of each device the end is kept.
    tuning: how kernels' configurations are chosen.
    options: of the run, for the commands that repeat its cases.
    """

    devices: Sequence[str]
    log_dir: Path
    timeout_s: float
    preset: Preset
    plugins: Sequence[str] = ()
    tuning: Tuning = CURATED
    options: Sequence[str] = ()

    def run(self, cases: Iterable[Case], events: Events) -> None:
        """Run all cases; returns when each has had its record.

        Raises:
            WorkerFailed: a device's first worker cannot be started.
            KeyboardInterrupt: passed on after the workers were stopped.
        """
        groups: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        for _, members in groupby(sorted(cases, key=needs_fresh_process), key=_group):
            groups.put(list(members))
        stop = threading.Event()
        lanes = [
            Lane(partial(self._start, device), device, self.timeout_s, groups, events, stop)
            for device in self.devices
        ]
        if len(lanes) == 1:
            lanes[0].run()
        else:
            _run_threads(lanes, stop)

    def _start(self, device: str, ceilings: Mapping[str, Any] | None) -> WorkerProcess:
        """Start a worker process for a device; see `worker.Config` for what it is told."""
        config = Config(
            device=device,
            plugins=tuple(self.plugins),
            min_time_s=self.preset.min_time_s,
            max_time_s=self.preset.max_time_s,
            memory_limit_bytes=int(MEMORY_FRACTION * available_memory_bytes()),
            ceilings=ceilings,
            autotune=self.tuning.autotune,
            rows=self.tuning.rows,
            options=tuple(self.options),
            threads=None if "OMP_NUM_THREADS" in os.environ else self.preset.threads,
            parent_pid=os.getpid(),
        )
        return WorkerProcess(config, self.log_dir)


def _group(case: Case) -> tuple[object, ...]:
    """Cases of equal keys go to one worker: they share operands, or they share nothing."""
    return (case.id,) if needs_fresh_process(case) else case.operand_key


def _run_threads(lanes: list[Lane], stop: threading.Event) -> None:
    for lane in lanes:
        threading.Thread(target=lane.guarded_run, daemon=True).start()
    try:
        for lane in lanes:
            while not lane.finished.wait(0.2) and not stop.is_set():
                pass
    finally:  # after an interrupt or a failed lane, what the others are at is given up
        stop.set()
        for lane in lanes:
            while not lane.finished.wait(0.2):  # not join: interrupted once, it takes a thread for ended
                lane.kill()
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
