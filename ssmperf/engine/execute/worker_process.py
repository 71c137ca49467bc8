"""The driver's side of a worker: starting the process, sending it cases, and noticing its death.

A request has a secret number, and every message about it carries that number. A message without it comes
from the backend, not from the suite: it is dropped, and the case is `wrong`.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ssmperf.engine.cases.case import Case
from ssmperf.engine.cases.failure import TRACEBACK, Failure, fatal_failure
from ssmperf.engine.cases.record import Record, Status
from ssmperf.engine.plan.command import command_that_repeats
from ssmperf.engine.processes.names import signal_name
from ssmperf.engine.processes.nursery import Nursery
from ssmperf.engine.processes.partner import Partner
from ssmperf.engine.trial.windows import REPLAYS, ROW, clock_of, least_call_s
from ssmperf.errors import UnreadableRun, WorkerFailed

WORKER = "ssmperf.engine.execute.worker"  # the module that the process runs
START_TIMEOUT_S = 300.0
ORACLE_TIMEOUT_S = 1800.0  # for a reference, which does not count against the backend
TAIL_BYTES = 1 << 16  # of the log, which a fatal error's stacks and list of modules must fit in
LOG_LIMIT_BYTES, LOG_KEPT_BYTES = 1 << 20, 1 << 16
LOG_CHECK_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker, as plain data.

    options: those of the run. scale: the run's preset with them applied. words: for the commands that repeat
        cases.
    memory_limit_bytes: address space that the worker may add, on a CPU.
    env_id, ceilings: those of the device, from its judge.
    rows: the rows of a file of configurations.
    threads: number of torch's threads on a CPU; None means torch's default.
    unfinished, specific, watch_every: see `LocalExecutor`.
    shared: whether other workers run on the device.
    """

    device: str
    plugins: tuple[str, ...]
    options: Mapping[str, Any]
    scale: Mapping[str, Any]
    memory_limit_bytes: int
    env_id: str
    ceilings: Mapping[str, Any]
    autotune: bool
    rows: Mapping[str, Any]
    words: tuple[str, ...]
    threads: int | None
    unfinished: str | None = None
    specific: bool = False
    shared: bool = False
    watch_every: int = 1


class WorkerProcess:
    """One worker process, its two pipes and its log.

    judge_socket: the descriptor by which it asks the judge.
    partner: takes turns with the worker; None if there is none.

    Raises:
        OSError, NurseryEnded: the process could not be started.
    """

    def __init__(
        self,
        config: WorkerConfig,
        nursery: Nursery,
        judge_socket: int,
        log: Path,
        partner: Partner | None = None,
    ) -> None:
        self.log, self._words, self._partner, self._device = log, config.words, partner, config.device
        requests_read, self._requests = os.pipe()
        self._answers, answers_write = os.pipe()
        inherited = {"requests": requests_read, "answers": answers_write, "judge": judge_socket}
        inherited |= {"partner": partner.descriptor} if partner is not None else {}
        try:
            with self.log.open("ab") as file:
                self._log_start = file.tell()
                descriptor = file.fileno()
                self.child = nursery.start(WORKER, asdict(config), descriptor, inherited, START_TIMEOUT_S)
        except BaseException:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(requests_read)
            os.close(answers_write)
        self._buffer = b""
        self.env_id = config.env_id
        self.timing_s = 0.0  # by this process's clock, how long the last case was being timed
        self.waited_s = 0.0  # by the same clock, how long it waited for its partner
        self.reference_s = 0.0  # and how long its values and their references were made
        self.least_s: dict[str, float] = {}  # of a call by the driver's clock, by kind of calls
        self.used = False  # whether a case has run in this process, not in a fork of it

    @property
    def takes_turns(self) -> bool:
        """Whether the case is one of a pair that takes turns, so that it cannot be measured again alone."""
        return self._partner is not None and self._partner.pair is not None

    def wait_until_ready(self) -> None:
        """Wait for the worker's first message.

        Raises:
            WorkerFailed: the worker died or took too long.
        """
        try:
            self._receive(time.monotonic() + START_TIMEOUT_S)
        except TimeoutError:
            raise WorkerFailed(
                f"a worker was not ready within {START_TIMEOUT_S:g} s (log: {self.log})"
            ) from None
        except EOFError:
            reason = self._ending().reason
            raise WorkerFailed(f"a worker could not start: {reason} (its log: {self.log})") from None

    def run(
        self,
        case: Case,
        number: str,
        timeout_s: float,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> tuple[Record, bool]:
        """Run a case; return its record, and whether this worker can run another case.

        Each step of a search for configurations, or of a training, may take `timeout_s`. Nothing limits how
        long the worker waits for its partner, whose own limits end that.

        number: the request's secret number.
        """
        phase, limit_s, progress = "backend", timeout_s, ""
        self.timing_s, self.waited_s, self.reference_s, began_s = 0.0, 0.0, 0.0, time.monotonic()
        self.least_s = {}
        ends_s = began_s + limit_s
        self._log_start = self.log.stat().st_size  # logs of earlier cases say nothing of this one
        forged = 0
        try:
            pair = self._partner.pair if self._partner else None
            request = {"case": case.to_json(), "number": number, "pair": pair}
            os.write(self._requests, (json.dumps(request) + "\n").encode())
            while "record" not in (message := self._receive(ends_s)) or (message.get("number") != number):
                if message.get("number") != number:
                    forged += 1
                    continue
                now_s, before, phase = time.monotonic(), phase, message["phase"]
                spent_s, began_s = now_s - began_s, now_s
                if before == "timing":
                    self.timing_s += spent_s
                if before == "oracle":
                    self.reference_s += spent_s
                if phase == "windows":
                    kind = REPLAYS if message.get("replays") is True else ROW
                    self._time_windows(kind, number, ends_s)
                    continue
                if phase == "waiting":
                    left_s, ends_s = ends_s - now_s, math.inf
                elif before == "waiting":
                    self.waited_s += spent_s
                    ends_s = now_s + left_s
                else:
                    limit_s = ORACLE_TIMEOUT_S if phase == "oracle" else timeout_s
                    ends_s = now_s + limit_s
                if text := message.get("progress"):
                    on_progress(text)
                    progress = f" ({text})"
            record, healthy = Record.from_json(message["record"]), bool(message["healthy"])
            record = replace(record, env_id=self.env_id)
            self.used = not message["forked"]
        except TimeoutError:
            problem = "the oracle gave no answer" if phase == "oracle" else "no answer"
            return self._lost(case, Status.TIMEOUT, f"{problem} within {limit_s:g} s{progress}"), False
        except (EOFError, BrokenPipeError):
            ending = self._ending()
            return self._lost(case, Status.CRASH, ending.reason, ending.traceback), False
        except (ValueError, TypeError, KeyError, AttributeError, UnreadableRun):
            return self._lost(case, Status.CRASH, "the worker's answer cannot be read"), False
        if record.case.id != case.id:
            return self._lost(case, Status.CRASH, "the worker answered for another case"), False
        if forged or self._more():
            return self._lost(case, Status.WRONG, "it wrote to the pipe of the suite's answers"), False
        return record, healthy

    def _time_windows(self, kind: str, number: str, ends_s: float) -> None:
        """Let the worker make calls, and time them by this process's clock; the least of all counts."""

        def make(calls: int, writes: int) -> None:
            os.write(self._requests, f"[{calls}, {writes}]\n".encode())
            while self._receive(ends_s).get("number") != number:
                pass

        least_s = least_call_s(make, clock_of(self.child.pid, self._device))
        os.write(self._requests, b"null\n")
        self.least_s[kind] = min(least_s, self.least_s.get(kind, least_s))

    def close(self) -> None:
        """Kill the process and everything that it started, and wait for it."""
        self.child.close()
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)

    def _more(self) -> bool:
        """Tell whether there is something in the pipe behind the answer."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(self._buffer) or bool(poll.poll(0) and os.read(self._answers, 1))

    def _lost(self, case: Case, status: Status, reason: str, traceback: str = "") -> Record:
        numbers = {"command": command_that_repeats(case, self._words)}
        numbers |= {TRACEBACK: traceback} if traceback else {}
        return Record(case, status, reason, self.env_id, numbers)

    def _receive(self, deadline: float) -> Any:
        """Receive the next message. Raises TimeoutError, or EOFError if the worker died.

        A child of the worker may hold the pipe open, so the process itself is watched too.
        """
        poll = select.poll()
        death = self.child.descriptor
        for descriptor in (self._answers, death):
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
            elif death in ready:
                raise EOFError
            elif left <= 0:
                raise TimeoutError
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _trim_log(self) -> None:
        """Cut a log that exceeds its limit to its last part; the worker appends, so it continues there."""
        size = self.log.stat().st_size if self.log.exists() else 0
        if size <= LOG_LIMIT_BYTES:
            return
        with self.log.open("r+b") as file:
            file.seek(-LOG_KEPT_BYTES, os.SEEK_END)
            kept = file.read(LOG_KEPT_BYTES)
            file.seek(0)
            file.truncate()
            file.write(kept)
        self._log_start = max(0, self._log_start - (size - LOG_KEPT_BYTES))

    def _ending(self) -> Failure:
        """Say how the process ended: where a fatal error has ended it, or else with the log's last line."""
        code = self.child.exit_code()
        if code is None:
            return Failure("the worker closed its pipe", "")
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        fatal = fatal_failure(f"the worker {how}", text)
        if fatal is not None:
            return fatal
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)
        return Failure(f"the worker {how}" + (f": {last[:300]}" if last else ""), "")
