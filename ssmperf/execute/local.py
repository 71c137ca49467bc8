"""Runs cases in worker processes of this machine, one worker a device.

A crash, a hang or memory that ran out costs one case; a new worker goes on with the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ssmperf import registry
from ssmperf.case import Case
from ssmperf.errors import SsmperfError, UnreadableRun
from ssmperf.execute.processes import MARK, available_memory_bytes, kill_marked, signal_name
from ssmperf.record import Record, Status
from ssmperf.tuning import CURATED, Tuning

START_TIMEOUT_S = 300.0
ORACLE_TIMEOUT_S = 1800.0  # for a reference, which is none of the backend's time
RESTART_ATTEMPTS = 3
MEMORY_FRACTION = 0.25  # of what is available when a CPU worker starts
TAIL_BYTES = 4096
LOG_LIMIT_BYTES, LOG_KEPT_BYTES = 1 << 20, 1 << 16
LOG_CHECK_S = 2.0


class WorkerFailed(SsmperfError):
    """A worker could not be started."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the executor tells its caller, from the thread of the device concerned.

    on_environment(env_id, environment), on_start(case, device), on_record(record), and on_doing(case, what)
    during a search.
    """

    on_environment: Callable[[str, Mapping[str, Any]], None]
    on_start: Callable[[Case, str], None]
    on_record: Callable[[Record], None]
    on_doing: Callable[[Case, str], None] = lambda case, what: None


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Executes cases on devices of this machine.

    devices: torch device strings ("cpu", "cuda:0", ...); each gets a worker of its own.
    timeout_s: longest that one case may take, not counting its reference.
    log_dir: where workers' stdout and stderr go, of each device's the end.
    threads: of a CPU worker where OMP_NUM_THREADS does not say; None leaves torch's default.
    tuning: how kernels' configurations are chosen.
    """

    devices: Sequence[str]
    log_dir: Path
    timeout_s: float
    min_time_s: float
    max_time_s: float
    plugins: Sequence[str] = ()
    threads: int | None = None
    tuning: Tuning = CURATED

    def run(self, cases: Iterable[Case], events: Events) -> None:
        """Run all cases; returns when each has had its record.

        Raises:
            WorkerFailed: a device's first worker cannot be started.
            KeyboardInterrupt: passed on after the workers were stopped.
        """
        groups: queue.SimpleQueue[list[Case]] = queue.SimpleQueue()
        for _, members in groupby(sorted(cases, key=_fresh_process), key=_together):
            groups.put(list(members))
        stop = threading.Event()
        lanes = [_Lane(self, device, groups, events, stop) for device in self.devices]
        if len(lanes) == 1:
            lanes[0].run()
        else:
            _run_threads(lanes, stop)


def _fresh_process(case: Case) -> bool:
    """Whether its suite wants a process of its own for each case; these come last."""
    return bool(registry.suite(case.suite).fresh_process)


def _together(case: Case) -> tuple[object, ...]:
    """Cases of equal keys go to one worker: they share operands, or they share nothing."""
    return (case.id,) if _fresh_process(case) else case.operand_key


def _run_threads(lanes: list[_Lane], stop: threading.Event) -> None:
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
        self.env_id: str | None = None
        self.ceilings: Mapping[str, Any] | None = None
        self.attempts = 1
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def guarded_run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            if not self.stop.is_set():  # otherwise it comes of being killed
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
        """End the worker's process from another thread; the lane finds out and cleans up."""
        worker = self.worker
        if worker is not None:
            worker.process.kill()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _run_case(self, case: Case) -> None:
        if self.worker is not None and self.worker.process.poll() is not None:
            self.close()  # it died after its last answer: that is not this case's fault
        if self.worker is not None and self.worker.used and _fresh_process(case):
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
        record, healthy = worker.run(case, self.executor.timeout_s, partial(self.events.on_doing, case))
        if self.stop.is_set():
            return
        if not healthy:
            self.close()
        self.events.on_record(record)

    def _start_patiently(self) -> _Worker:
        """Start a worker; one that once started is tried again, until a case was lost to it."""
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

    def _start(self) -> _Worker:
        try:
            self.worker = worker = _Worker(self.executor, self.device, self.ceilings)
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


class _Worker:
    """One worker process and its two pipes. ceilings: what an earlier worker of this device measured."""

    def __init__(self, executor: LocalExecutor, device: str, ceilings: Mapping[str, Any] | None) -> None:
        executor.log_dir.mkdir(parents=True, exist_ok=True)
        self.log = executor.log_dir / f"worker-{device.replace(':', '')}.log"
        self._mark = secrets.token_hex(8)
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        config = {
            "device": device,
            "plugins": list(executor.plugins),
            "min_time_s": executor.min_time_s,
            "max_time_s": executor.max_time_s,
            "memory_limit_bytes": int(MEMORY_FRACTION * available_memory_bytes()),
            "ceilings": ceilings,
            "autotune": executor.tuning.autotune,
            "rows": executor.tuning.rows,
            "options": executor.tuning.options,
            "threads": None if "OMP_NUM_THREADS" in os.environ else executor.threads,
            "parent_pid": os.getpid(),
            "requests": requests_read,
            "answers": answers_write,
        }
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "ssmperf.execute.worker", json.dumps(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, MARK: self._mark},
                    start_new_session=True,
                    pass_fds=(requests_read, answers_write),
                )
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(requests_read)
            os.close(answers_write)
        self._death = os.pidfd_open(self.process.pid)
        self._buffer = b""
        self.env_id: str | None = None
        self.used = False  # whether a case was run in this very process

    def wait_until_ready(self) -> tuple[str, Mapping[str, Any]]:
        try:
            message = self._receive(time.monotonic() + START_TIMEOUT_S)
        except TimeoutError:
            raise WorkerFailed(
                f"a worker was not ready within {START_TIMEOUT_S:g} s (log: {self.log})"
            ) from None
        except EOFError:
            raise WorkerFailed(f"a worker could not start: {self._ending()} (its log: {self.log})") from None
        self.env_id = message["env_id"]
        return message["env_id"], message["environment"]

    def run(
        self, case: Case, timeout_s: float, on_doing: Callable[[str], None] = lambda what: None
    ) -> tuple[Record, bool]:
        """The case's record, and whether this worker can go on. A step of a search has the whole time."""
        phase, limit_s, doing = "backend", timeout_s, ""
        try:
            os.write(self._requests, (json.dumps(case.to_json()) + "\n").encode())
            while "record" not in (message := self._receive(time.monotonic() + limit_s)):
                phase = message["phase"]
                limit_s = ORACLE_TIMEOUT_S if phase == "oracle" else timeout_s
                if what := message.get("doing"):
                    on_doing(what)
                    doing = f" ({what})"
            record, healthy = Record.from_json(message["record"]), bool(message["healthy"])
            self.used = not message["forked"]
        except TimeoutError:
            what = "the oracle gave no answer" if phase == "oracle" else "no answer"
            return self._lost(case, Status.TIMEOUT, f"{what} within {limit_s:g} s{doing}"), False
        except (EOFError, BrokenPipeError):
            return self._lost(case, Status.CRASH, self._ending()), False
        except (ValueError, TypeError, KeyError, UnreadableRun):
            return self._lost(case, Status.CRASH, "the worker's answer cannot be read"), False
        if record.case.id != case.id:
            return self._lost(case, Status.CRASH, "the worker answered for another case"), False
        return record, healthy

    def close(self) -> None:
        """Kill the process with all that it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        kill_marked(self._mark)
        for descriptor in (self._requests, self._answers, self._death):
            os.close(descriptor)

    def _lost(self, case: Case, status: Status, reason: str) -> Record:
        return Record(case, status, reason, self.env_id)

    def _receive(self, deadline: float) -> Any:
        """The next message. Raises TimeoutError, or EOFError if the worker died.

        A child of the worker may hold the pipe open, so the process itself is watched too.
        """
        poll = select.poll()
        for descriptor in (self._answers, self._death):
            poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0.0, min(left, LOG_CHECK_S)) * 1e3))
            self._trim_log()
            if self._answers in ready:  # also what a process that has died since wrote before
                chunk = os.read(self._answers, 1 << 16)
                if not chunk:
                    raise EOFError
                self._buffer += chunk
            elif self._death in ready:
                raise EOFError
            elif left <= 0:
                raise TimeoutError
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _trim_log(self) -> None:
        """Cut a log that grew beyond its limit to its end; the worker appends, so it goes on there."""
        if not self.log.exists() or self.log.stat().st_size <= LOG_LIMIT_BYTES:
            return
        with self.log.open("r+b") as file:
            file.seek(-LOG_KEPT_BYTES, os.SEEK_END)
            kept = file.read(LOG_KEPT_BYTES)
            file.seek(0)
            file.truncate()
            file.write(kept)
        self._log_start = 0

    def _ending(self) -> str:
        """How the process ended, with the last line of its log."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "the worker closed its pipe"
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - TAIL_BYTES))
            lines = [
                line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()
            ]
        fatal = next((line for line in lines if line.startswith("Fatal Python error")), None)
        last = fatal or (lines[-1] if lines else None)
        return f"the worker {how}" + (f": {last[:200]}" if last else "")
