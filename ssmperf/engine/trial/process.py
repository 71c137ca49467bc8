"""The driver's side of the judge: starting its process, and asking which verdicts it gave."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmperf.engine.processes.nursery import Nursery
from ssmperf.engine.trial.question import CaseFacts
from ssmperf.errors import WorkerFailed

SERVER = "ssmperf.engine.trial.server"  # the module that the process runs
REPLY_S = 60.0


class JudgeProcess:
    """One judge, for all workers of a lane.

    config: what `trial.server` reads. worker_socket: the descriptor that a worker inherits to ask it.
    env_id, environment: what it says of its environment once it is ready; nothing if it has loaded plug-ins.

    Raises:
        NurseryEnded: it could not be started.
        OSError: there are no more descriptors, or the log cannot be written.
    """

    def __init__(self, nursery: Nursery, config: Mapping[str, Any], log: Path, timeout_s: float) -> None:
        self.env_id: str | None = None
        self.environment: Mapping[str, Any] | None = None
        self._asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._driver, driven = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with log.open("ab") as file:
                inherited = {"workers": asked.fileno(), "driver": driven.fileno()}
                self.child = nursery.start(SERVER, config, file.fileno(), inherited, timeout_s)
        except BaseException:
            self._asking.close()
            self._driver.close()
            raise
        finally:
            asked.close()
            driven.close()

    @property
    def worker_socket(self) -> int:
        return self._asking.fileno()

    @property
    def alive(self) -> bool:
        return not self.child.ended()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for its first message.

        Raises:
            WorkerFailed: it has ended, or took too long.
        """
        data = self._received(timeout_s)
        if not data:
            raise WorkerFailed("a judge could not start, or was not ready in time (its log says why)")
        described = json.loads(data)
        self.env_id, self.environment = described.get("env_id"), described.get("environment")

    def begin(self, number: str, asked: CaseFacts) -> None:
        """Tell it about which case a worker will ask under a secret number."""
        with contextlib.suppress(OSError):  # it has ended, which the worker will notice
            self._driver.send(json.dumps({"number": number, "asked": asked.to_json()}).encode())
            self._received(REPLY_S)

    def entered(self, number: str) -> list[str] | None:
        """List the statuses of the verdicts under a case's secret number; None if the judge does not say."""
        try:
            self._driver.send(json.dumps({"number": number}).encode())
            data = self._received(REPLY_S)
        except OSError:
            return None
        return list(json.loads(data)["entered"]) if data else None

    def _received(self, timeout_s: float) -> bytes:
        """Receive a message; none if it has ended, or does not answer in time."""
        ready, _, _ = select.select([self._driver], [], [], timeout_s)
        return self._driver.recv(1 << 20) if ready else b""

    def close(self) -> None:
        """End the process."""
        self.child.close()
        self._asking.close()
        self._driver.close()
