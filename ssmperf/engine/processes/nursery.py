"""The driver's side of a nursery: it starts children, watches them, and ends them with all they started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssmperf.engine.processes import surroundings
from ssmperf.engine.processes.nursery_process import LONGEST_MESSAGE

NURSERY = "ssmperf.engine.processes.nursery_process"  # the module that the process runs
REPLY_S = 60.0


class NurseryEnded(Exception):
    """The nursery has ended, or does not answer."""


class Nursery:
    """A process from which children are forked.

    imports: modules that it imports before the first fork. log: file for its own output; None where that is
        not known yet, see `write_to`.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(self, imports: Sequence[str], log: Path | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.RLock()
        self._log: Path | None = None
        self._forked = False
        self.kept: set[int] = set()
        config = {"socket": theirs.fileno(), "imports": list(imports)}
        self._output = tempfile.TemporaryFile() if log is None else log.open("ab")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [*surroundings.interpreter(), "-m", NURSERY, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=surroundings.variables(),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except OSError:
            self._socket.close()
            self._output.close()
            raise
        finally:
            theirs.close()

    def write_to(self, log: Path) -> None:
        """Name the file in which its output is kept when it has ended."""
        self._log = log

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until it has imported its modules.

        Raises:
            NurseryEnded: it has ended, or does not answer in time.
        """
        self.sweep(timeout_s)

    def start(
        self,
        module: str,
        config: Mapping[str, Any],
        log: int,
        descriptors: Mapping[str, int],
        timeout_s: float = REPLY_S,
    ) -> Child:
        """Fork a child that calls `main` of a module.

        config: argument of the call, as plain data. log: descriptor for its output. descriptors: those that
            it inherits, by the names under which the configuration has them there.

        Raises:
            NurseryEnded: the nursery has ended, or does not answer in time.
        """
        message = {"start": module, "config": dict(config), "names": list(descriptors)}
        self._forked = True
        with self._lock:  # until it is among those that a sweep leaves
            reply = self._request(message, [log, *descriptors.values()], timeout_s)
            try:
                child = Child(self, int(reply["pid"]))
            except OSError as error:
                raise NurseryEnded(f"its child cannot be watched: {error}") from error
            self.kept.add(child.pid)
        return child

    def reap(self, pid: int) -> int:
        """Get the exit code of a child that has ended; negative for a signal."""
        return int(self._request({"reap": pid})["code"])

    def sweep(self, timeout_s: float = REPLY_S) -> None:
        """Kill whatever ended children have left behind."""
        with self._lock:
            self._request({"sweep": sorted(self.kept)}, timeout_s=timeout_s)

    def close(self) -> None:
        """End the process and all children."""
        self.kept.clear()
        if self._forked:  # else it may be importing still, and not answer yet
            with contextlib.suppress(NurseryEnded):
                self.sweep()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._socket.close()
        if self._log is not None and not self._output.closed:
            self._output.seek(0)
            with self._log.open("ab") as file:
                shutil.copyfileobj(self._output, file)
        self._output.close()

    def _request(
        self, message: Mapping[str, Any], descriptors: Sequence[int] = (), timeout_s: float = REPLY_S
    ) -> Any:
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
                ready, _, _ = select.select([self._socket], [], [], timeout_s)
                data = self._socket.recv(LONGEST_MESSAGE) if ready else None
            except OSError as error:
                raise NurseryEnded(f"{error}{self._last_words()}") from error
        if data is None:
            raise NurseryEnded(f"it was not ready within {timeout_s:g} s")
        if not data:
            raise NurseryEnded(f"it has ended{self._last_words()}")
        return json.loads(data)

    def _last_words(self) -> str:
        """The last line of its output; nothing if there is none."""
        try:
            text = Path(f"/proc/self/fd/{self._output.fileno()}").read_bytes()
        except (OSError, ValueError):
            return ""
        lines = text[-LONGEST_MESSAGE:].decode(errors="replace").split("\n")
        return next((f" (its last line: {each.strip()})" for each in reversed(lines) if each.strip()), "")


class Child:
    """A forked process, as far as the driver is concerned."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.nursery, self.pid = nursery, pid
        self.descriptor = os.pidfd_open(pid)  # readable when it has ended
        self.code: int | None = None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended, for at most so many seconds."""
        if self.code is not None:
            return True
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1e3))

    def exit_code(self, timeout_s: float = 5.0) -> int | None:
        """Wait for its end and get its exit code, negative for a signal; None if it has not ended."""
        if self.code is None and self.ended(timeout_s):
            try:
                self.code = self.nursery.reap(self.pid)
            except NurseryEnded:
                self.code = -signal.SIGKILL
        return self.code

    def kill(self) -> None:
        """Kill it."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and all that it has started."""
        self.kill()
        self.exit_code()
        self.nursery.kept.discard(self.pid)
        with contextlib.suppress(NurseryEnded):
            self.nursery.sweep()
        os.close(self.descriptor)
