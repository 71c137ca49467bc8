"""Runs cases in worker processes of this machine, one worker a device.

A crash, a hang or memory that ran out costs one case; a new worker goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ssmperf.case import Case
from ssmperf.errors import SsmperfError
from ssmperf.record import Record, Status

START_TIMEOUT_S = 300.0
MEMORY_FRACTION = 0.25  # of what is available when a CPU worker starts
TAIL_BYTES = 4096


class WorkerFailed(SsmperfError):
    """A worker could not be started."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the executor tells its caller, from the thread of the device concerned.

    on_environment(env_id, environment), on_start(case, device), on_record(record).
    """

    on_environment: Callable[[str, Mapping[str, Any]], None]
    on_start: Callable[[Case, str], None]
    on_record: Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Executes cases on devices of this machine.

    devices: torch device strings ("cpu", "cuda:0", ...); each gets a worker of its own.
    timeout_s: longest that one case may take. log_dir: where workers' stdout and stderr go.
    threads: of a CPU worker where OMP_NUM_THREADS does not say; None leaves torch's default.
    """

    devices: Sequence[str]
    log_dir: Path
    timeout_s: float
    min_time_s: float
    max_time_s: float
    plugins: Sequence[str] = ()
    threads: int | None = None

    def run(self, cases: Iterable[Case], events: Events) -> None:
        """Run all cases; returns when each has had its record.

        Raises:
            WorkerFailed: a worker cannot be started at all.
            KeyboardInterrupt: passed on after the workers were stopped.
        """
        groups: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        for _, members in groupby(cases, key=lambda case: case.operand_key):
            groups.put(list(members))
        stop = threading.Event()
        lanes = [_Lane(self, device, groups, events, stop) for device in self.devices]
        if len(lanes) == 1:
            lanes[0].run()
        else:
            _run_threads(lanes, stop)


def _run_threads(lanes: list[_Lane], stop: threading.Event) -> None:
    threads = [threading.Thread(target=lane.guarded_run, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except BaseException:
        stop.set()
        for lane in lanes:
            lane.close()
        raise
    for lane in lanes:
        if lane.error is not None:
            raise lane.error


class _Lane:
    """One device's worker and the loop that feeds it."""

    def __init__(
        self,
        executor: LocalExecutor,
        device: str,
        groups: queue.SimpleQueue[list[Case]],
        events: Events,
        stop: threading.Event,
    ) -> None:
        self.executor, self.device, self.groups = executor, device, groups
        self.events, self.stop = events, stop
        self.worker: _Worker | None = None
        self.ceilings: Mapping[str, Any] | None = None
        self.error: BaseException | None = None

    def guarded_run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.error = error
            self.stop.set()

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

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None

    def _run_case(self, case: Case) -> None:
        if self.worker is None:
            self.worker = self._start()
        self.events.on_start(case, self.device)
        record, healthy = self.worker.run(case, self.executor.timeout_s)
        if not healthy:
            self.close()
        self.events.on_record(record)

    def _start(self) -> _Worker:
        worker = _Worker(self.executor, self.device, self.ceilings)
        try:
            env_id, environment = worker.wait_until_ready()
        except BaseException:
            worker.kill()
            raise
        self.ceilings = environment["ceilings"]
        self.events.on_environment(env_id, environment)
        return worker


class _Worker:
    """One worker process and its two pipes. ceilings: what an earlier worker of this device measured."""

    def __init__(self, executor: LocalExecutor, device: str, ceilings: Mapping[str, Any] | None) -> None:
        executor.log_dir.mkdir(parents=True, exist_ok=True)
        self.log = executor.log_dir / f"worker-{device.replace(':', '')}.log"
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        config = {
            "device": device,
            "plugins": list(executor.plugins),
            "min_time_s": executor.min_time_s,
            "max_time_s": executor.max_time_s,
            "memory_limit_bytes": int(MEMORY_FRACTION * available_memory_bytes()),
            "ceilings": ceilings,
            "threads": None if "OMP_NUM_THREADS" in os.environ else executor.threads,
            "parent_pid": os.getpid(),
            "requests": requests_read,
            "answers": answers_write,
        }
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ssmperf.execute.worker", json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(requests_read, answers_write),
            )
        os.close(requests_read)
        os.close(answers_write)
        self._buffer = b""
        self.env_id: str | None = None

    def wait_until_ready(self) -> tuple[str, Mapping[str, Any]]:
        message = self._receive(START_TIMEOUT_S)
        if message is None:
            raise WorkerFailed(f"a worker could not start: {self._ending()} (its log: {self.log})")
        self.env_id = message["env_id"]
        return message["env_id"], message["environment"]

    def run(self, case: Case, timeout_s: float) -> tuple[Record, bool]:
        """The case's record, and whether this worker can go on."""
        try:
            os.write(self._requests, (json.dumps(case.to_json()) + "\n").encode())
            message = self._receive(timeout_s)
        except TimeoutError:
            return self._lost(case, Status.TIMEOUT, f"no answer within {timeout_s:g} s"), False
        except BrokenPipeError:
            message = None
        if message is None:
            return self._lost(case, Status.CRASH, self._ending()), False
        return Record.from_json(message["record"]), message["healthy"]

    def kill(self) -> None:
        """Kill the whole process group and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for descriptor in (self._requests, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _lost(self, case: Case, status: Status, reason: str) -> Record:
        return Record(case, status, reason, self.env_id)

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None if the worker died. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def _ending(self) -> str:
        """How the process ended, with the last line of its log."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - TAIL_BYTES))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
        fatal = next((line for line in lines if line.startswith("Fatal Python error")), None)
        last = fatal or (lines[-1] if lines else None)
        return f"the worker was {how}" + (f": {last[:200]}" if last else "")


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
