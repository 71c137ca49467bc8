"""A lane: one device, the worker process that runs its cases, and the loop that feeds it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ssmperf import registry
from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.errors import WorkerFailed
from ssmperf.execute.worker_process import WorkerProcess

RESTART_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks of an executor. Each is called in the thread of the device concerned.

    They are called as on_environment(env_id, environment), on_start(case, device), on_record(record) and,
    during a search for configurations, on_progress(case, text).
    """

    on_environment: Callable[[str, Mapping[str, Any]], None]
    on_start: Callable[[Case, str], None]
    on_record: Callable[[Record], None]
    on_progress: Callable[[Case, str], None] = lambda case, text: None


def needs_fresh_process(case: Case) -> bool:
    """Tell whether a case must run in a process that has run no other; such cases run last."""
    return bool(registry.suite(case.suite).fresh_process)


Starter = Callable[[Mapping[str, Any] | None], WorkerProcess]


class Lane:
    """Takes groups of cases from a queue until it is empty, and starts workers for them.

    start: makes a worker process, given the ceilings that an earlier one has measured, or None.
    """

    def __init__(
        self,
        start: Starter,
        device: str,
        timeout_s: float,
        groups: queue.SimpleQueue[list[Case]],
        events: Events,
        stop: threading.Event,
    ) -> None:
        self.start, self.device, self.groups = start, device, groups
        self.timeout_s = timeout_s
        self.events, self.stop = events, stop
        self.worker: WorkerProcess | None = None
        self.env_id: str | None = None
        self.ceilings: Mapping[str, Any] | None = None
        self.attempts = 1
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def guarded_run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            if not self.stop.is_set():  # otherwise the error comes from killing the worker
                self.error = error
            self.stop.set()
        finally:
            self.finished.set()

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    group = self.groups.get_nowait()
                except queue.Empty:
                    return
                for case in group:
                    if self.stop.is_set():
                        return
                    self._run_case(case)
        finally:
            self.close()

    def kill(self) -> None:
        """Kill the worker's process, from another thread; the lane then notices and cleans up."""
        worker = self.worker
        if worker is not None:
            worker.process.kill()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _run_case(self, case: Case) -> None:
        if self.worker is not None and self.worker.process.poll() is not None:
            self.close()  # it died after its last answer, which is not the fault of this case
        if self.worker is not None and self.worker.used and needs_fresh_process(case):
            self.close()
        try:
            worker = self.worker or self._start_patiently()
        except WorkerFailed as error:
            if self.env_id is None or self.stop.is_set():
                raise
            self.events.on_start(case, self.device)
            self.events.on_record(Record(case, Status.CRASH, str(error), self.env_id))
            return
        self.events.on_start(case, self.device)
        record, healthy = worker.run(case, self.timeout_s, partial(self.events.on_progress, case))
        if self.stop.is_set():
            return
        if not healthy:
            self.close()
        self.events.on_record(record)

    def _start_patiently(self) -> WorkerProcess:
        """Start a worker. If earlier ones have started, try several times before giving up."""
        attempts, self.attempts = self.attempts, 1
        for left in reversed(range(attempts)):
            try:
                worker = self._start()
            except WorkerFailed:
                if not left or self.stop.is_set():
                    raise
            else:
                break
        self.attempts = RESTART_ATTEMPTS
        return worker

    def _start(self) -> WorkerProcess:
        try:
            self.worker = worker = self.start(self.ceilings)
            self.env_id, environment = worker.wait_until_ready()
        except OSError as error:
            self.close()
            raise WorkerFailed(f"a worker could not be started: {error}") from error
        except BaseException:
            self.close()
            raise
        self.ceilings = environment["ceilings"]
        self.events.on_environment(self.env_id, environment)
        return worker
