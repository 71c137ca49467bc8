"""The driver's side of a worker: starting the process, sending it cases, and noticing its death."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssmperf.cases.case import Case
from ssmperf.cases.record import Record, Status
from ssmperf.errors import UnreadableRun, WorkerFailed
from ssmperf.execute.leftovers import MARK, kill_marked, signal_name

WORKER = "ssmperf.execute.worker"  # the module that the process runs
START_TIMEOUT_S = 300.0
ORACLE_TIMEOUT_S = 1800.0  # for a reference, which does not count against the backend
TAIL_BYTES = 4096
LOG_LIMIT_BYTES, LOG_KEPT_BYTES = 1 << 20, 1 << 16
LOG_CHECK_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker, as plain data.

    memory_limit_bytes: address space that the worker may add, on a CPU.
    ceilings: those that an earlier worker of this device has measured, or None.
    rows: the rows of a file of configurations.
    options: the run's options, for the commands that repeat cases.
    threads: number of torch's threads on a CPU; None means torch's default.
    """

    device: str
    plugins: tuple[str, ...]
    min_time_s: float
    max_time_s: float
    memory_limit_bytes: int
    ceilings: Mapping[str, Any] | None
    autotune: bool
    rows: Mapping[str, Any]
    options: tuple[str, ...]
    threads: int | None
    parent_pid: int


class WorkerProcess:
    """One worker process, its two pipes and its log.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(self, config: WorkerConfig, log_dir: Path) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self.log = log_dir / f"worker-{config.device.replace(':', '')}.log"
        self._mark = secrets.token_hex(8)
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        started = {**asdict(config), "requests": requests_read, "answers": answers_write}
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self.process = subprocess.Popen(
                    [sys.executable, "-m", WORKER, json.dumps(started)],
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
        self.used = False  # whether a case has run in this process, not in a fork of it

    def wait_until_ready(self) -> tuple[str, Mapping[str, Any]]:
        """Wait for the worker's first message; return the id of its environment, and the environment.

        Raises:
            WorkerFailed: the worker died or took too long.
        """
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
        self, case: Case, timeout_s: float, on_progress: Callable[[str], None] = lambda text: None
    ) -> tuple[Record, bool]:
        """Run a case; return its record, and whether this worker can run another case.

        Each step of a search for configurations may take `timeout_s`.
        """
        phase, limit_s, progress = "backend", timeout_s, ""
        try:
            os.write(self._requests, (json.dumps(case.to_json()) + "\n").encode())
            while "record" not in (message := self._receive(time.monotonic() + limit_s)):
                phase = message["phase"]
                limit_s = ORACLE_TIMEOUT_S if phase == "oracle" else timeout_s
                if text := message.get("progress"):
                    on_progress(text)
                    progress = f" ({text})"
            record, healthy = Record.from_json(message["record"]), bool(message["healthy"])
            self.used = not message["forked"]
        except TimeoutError:
            problem = "the oracle gave no answer" if phase == "oracle" else "no answer"
            return self._lost(case, Status.TIMEOUT, f"{problem} within {limit_s:g} s{progress}"), False
        except (EOFError, BrokenPipeError):
            return self._lost(case, Status.CRASH, self._ending()), False
        except (ValueError, TypeError, KeyError, UnreadableRun):
            return self._lost(case, Status.CRASH, "the worker's answer cannot be read"), False
        if record.case.id != case.id:
            return self._lost(case, Status.CRASH, "the worker answered for another case"), False
        return record, healthy

    def close(self) -> None:
        """Kill the process and everything that it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        kill_marked(self._mark)
        for descriptor in (self._requests, self._answers, self._death):
            os.close(descriptor)

    def _lost(self, case: Case, status: Status, reason: str) -> Record:
        return Record(case, status, reason, self.env_id)

    def _receive(self, deadline: float) -> Any:
        """Receive the next message. Raises TimeoutError, or EOFError if the worker died.

        A child of the worker may hold the pipe open, so the process itself is watched too.
        """
        poll = select.poll()
        for descriptor in (self._answers, self._death):
            poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready = dict(poll.poll(max(0.0, min(left, LOG_CHECK_S)) * 1e3))
            self._trim_log()
            if self._answers in ready:  # first, since a process may have answered before it died
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
        """Cut a log that exceeds its limit to its last part; the worker appends, so it continues there."""
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
        """Say how the process ended, with the last line of its log."""
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
