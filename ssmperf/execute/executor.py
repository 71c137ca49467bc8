"""Run the cases of a plan in worker processes on this machine, one worker per device.

A crash, a hang or exhausted memory costs one case only: a new worker continues with the next.
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
from ssmperf.execute.worker_process import WorkerConfig, WorkerProcess
from ssmperf.machine.host_memory import available_memory_bytes
from ssmperf.registry.presets import Preset
from ssmperf.tune.files import CURATED, Tuning

MEMORY_FRACTION = 0.25  # of the memory available when a CPU worker starts


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Executes cases on devices of this machine.

    devices: torch device strings ("cpu", "cuda:0", ...); each device gets its own worker.
    log_dir: folder for the workers' stdout and stderr; only the end of each log is kept.
    timeout_s: longest time that one case may take, not counting its reference.
    preset: how long a case is measured, and with how many threads on a CPU unless OMP_NUM_THREADS is set.
    tuning: how kernels' configurations are chosen.
    options: the run's options, for the commands that repeat its cases.
    """

    devices: Sequence[str]
    log_dir: Path
    timeout_s: float
    preset: Preset
    plugins: Sequence[str] = ()
    tuning: Tuning = CURATED
    options: Sequence[str] = ()

    def run(self, cases: Iterable[Case], events: Events) -> None:
        """Run all cases; return when every case has its record.

        Raises:
            WorkerFailed: the first worker of a device cannot be started.
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
        """Start a worker process for a device.

        ceilings: those that an earlier worker of this device has measured, if any.
        """
        config = WorkerConfig(
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
    """Give the key of the group to which a case belongs. One worker runs a whole group, to share operands."""
    return (case.id,) if needs_fresh_process(case) else case.operand_key


def _run_threads(lanes: list[Lane], stop: threading.Event) -> None:
    for lane in lanes:
        threading.Thread(target=lane.guarded_run, daemon=True).start()
    try:
        for lane in lanes:
            while not lane.finished.wait(0.2) and not stop.is_set():
                pass
    finally:  # after an interrupt or a failed lane, the other lanes give up their current case
        stop.set()
        for lane in lanes:
            while not lane.finished.wait(0.2):  # not join: after one interrupt it takes a thread for finished
                lane.kill()
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
