"""The driver's side of the judge: starting its process, and asking which verdicts it gave."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssmperf.engine.processes.nursery import Nursery

SERVER = "ssmperf.engine.trial.server"  # the module that the process runs
REPLY_S = 60.0


class JudgeProcess:
    """One judge, for all workers of a lane.

    config: what `trial.server` reads. worker_socket: the descriptor that a worker inherits to ask it.

    Raises:
        NurseryEnded: it could not be started.
        OSError: there are no more descriptors, or the log cannot be written.
    """

    def __init__(self, nursery: Nursery, config: Mapping[str, Any], log: Path, timeout_s: float) -> None:
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

    def entered(self, number: str) -> list[str] | None:
        """List the statuses of the verdicts under a case's secret number; None if the judge does not say."""
        try:
            self._driver.send(json.dumps({"number": number}).encode())
            ready, _, _ = select.select([self._driver], [], [], REPLY_S)
            data = self._driver.recv(1 << 20) if ready else b""
        except OSError:
            return None
        return list(json.loads(data)["entered"]) if data else None

    def close(self) -> None:
        """End the process."""
        self.child.close()
        self._asking.close()
        self._driver.close()
