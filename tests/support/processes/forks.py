"""Forks what tests start often, the command line and nurseries, from a process that has imported torch.

A fresh process spends seconds on imports before it does what is tested. A server imports once, and each
further process is a fork of it, with its own arguments, environment, folder and descriptors. A process
that depends on a variable read by modules on import is started in full instead.

The server is `fork_server.py`. `python forks.py ADDRESS MODULE WORDS...` runs a command for a shell script.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LONGEST_MESSAGE, LONGEST_WAIT_S = 1 << 20, 120.0
NURSERY = "ssmperf.engine.processes.nursery_process"
COMMAND = "ssmperf.shell.cli"
SIDE = "ssmperf.versions.serve"
TRAINING = "ssmperf.papers.learn.process"
STARTERS = (
    "ssmperf.engine.processes.nursery",
    "ssmperf.comparison.versions.side_process",
)  # of nurseries and sides
# How the names of variables begin that are read while modules are imported.
EARLY = ("CUDA", "KMP", "LANG", "LC_", "LD_", "MKL", "OMP", "OPENBLAS", "PYTHON", "TORCH", "TRITON")
# Those among them that are read later, and PYTHONSAFEPATH, which the server heeds.
LATE = (
    "CUDA_CACHE_PATH",
    "PYTHONSAFEPATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
)


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variables in which a fork must not differ from the server."""
    return {name: environment[name] for name in environment if name.startswith(EARLY) and name not in LATE}


class Forked:
    """A fork of the server, with those methods of `subprocess.Popen` that are needed."""

    stdin: IO[str] | None = None
    stdout: IO[str] | None = None

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Give the exit code, negative for a signal, or None if it has not ended."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and give its exit code.

        Raises:
            TimeoutExpired: it has not ended within so many seconds.
        """
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                data = self._connection.recv(LONGEST_MESSAGE)
            except ConnectionError:
                data = b""
            except TimeoutError:
                from subprocess import TimeoutExpired

                raise TimeoutExpired(str(self.pid), timeout or 0) from None
            self.returncode = json.loads(data)["code"] if data else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    address: str,
    module: str,
    arguments: Sequence[str],
    descriptors: Mapping[int, int],
    environment: Mapping[str, str],
    folder: str | None = None,
    **options: bool,
) -> Forked:
    """Start what `python -m MODULE ARGUMENTS` would do as a fork of the server at an address.

    descriptors: inherited by the fork, by its number there. folder: where it runs; None: where this process
        does. options: `session`, whether it leads a session; `full`, whether it starts its nurseries in full.
    """
    message = {
        "module": module,
        "arguments": list(arguments),
        "descriptors": list(descriptors),
        "environment": dict(environment),
        "folder": folder or str(Path.cwd()),
        **options,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(LONGEST_WAIT_S)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_MESSAGE)
    connection.connect(address)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors.values()))
    connection.sendmsg([json.dumps(message).encode()], [rights])
    return Forked(connection, json.loads(connection.recv(LONGEST_MESSAGE))["pid"])


class Forking:
    """Stands in for the module `subprocess` where nurseries, sides of a comparison or trainings are started.

    find: gives the server's addresses for nurseries and for commands. imports: gives what nurseries have
        imported. variables: those of the server.
    """

    def __init__(
        self,
        find: Callable[[], tuple[str, str]],
        imports: Callable[[], Sequence[str]],
        variables: Mapping[str, str],
    ) -> None:
        import subprocess

        self.find, self.imports, self.variables = find, imports, variables
        self.PIPE, self.DEVNULL = subprocess.PIPE, subprocess.DEVNULL
        self.TimeoutExpired = subprocess.TimeoutExpired
        self.full = subprocess.Popen

    def install(self, *names: str) -> None:
        """Take the place of `subprocess` in these modules."""
        import importlib

        for name in names:
            vars(importlib.import_module(name))["subprocess"] = self

    def Popen(self, words: list[str], **options: Any) -> Any:
        environment = options.get("env") or os.environ
        given, words = words, [word for word in words if word != "-P"]  # the server is started with it
        if words[:2] != [sys.executable, "-m"] or early(environment) != early(self.variables):
            return self.full(given, **options)
        if words[2:] == [SIDE]:
            return self.side(options["stderr"], environment, options.get("pass_fds", ()))
        if words[2] == TRAINING:
            return self.started(self.find()[0], words, options["stdout"], environment)
        assert words[2] == NURSERY
        if not set(json.loads(words[3])["imports"]) <= set(self.imports()):
            return self.full(given, **options)
        passed = {each: each for each in options["pass_fds"]}
        return self.started(self.find()[0], words, options["stdout"], environment, passed, session=True)

    def started(
        self,
        address: str,
        words: Sequence[str],
        log: Any,
        environment: Mapping[str, str],
        passed: Mapping[int, int] | None = None,
        **options: bool,
    ) -> Forked:
        """Start a module without input, whose output goes to a file."""
        with Path(os.devnull).open("rb") as null:
            inherited = {0: null.fileno(), 1: log.fileno(), 2: log.fileno(), **(passed or {})}
            return fork(address, words[2], words[3:], inherited, environment, **options)

    def side(self, log: Any, environment: Mapping[str, str], passed: Sequence[int]) -> Forked:
        (theirs, ours), (answers, answering) = os.pipe(), os.pipe()
        inherited = {0: theirs, 1: answering, 2: log.fileno(), **{each: each for each in passed}}
        forked = fork(self.find()[1], SIDE, [], inherited, environment)
        os.close(theirs)
        os.close(answering)
        forked.stdin, forked.stdout = os.fdopen(ours, "w"), os.fdopen(answers)
        return forked


def call(address: str, module: str, words: Sequence[str]) -> int:
    """Run a module with the descriptors of this process; return its exit code, as a shell does."""
    forked = fork(address, module, words, {0: 0, 1: 1, 2: 2}, os.environ)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: forked.send_signal(number))
    code = forked.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(call(*sys.argv[1:3], sys.argv[3:]))
