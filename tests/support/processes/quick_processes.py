"""Lets tests start the command line and nurseries as forks of one server per test process (see forks.py)."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from support.processes import forks

LONGEST_S = 240
SERVER = Path(forks.__file__).with_name("fork_server.py")
ADDRESSES = ("nurseries", "commands")


class Server:
    """The server's process. It is started at the first request.

    variables: its environment; all of it has one thread, as what is forked must have.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables = {**variables, "OMP_NUM_THREADS": "1"}
        self._folder: Path | None = None
        self._alive: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @functools.cached_property
    def imports(self) -> tuple[str, ...]:
        from ssmperf.engine.processes.spares import IMPORTS

        return IMPORTS

    def addresses(self) -> tuple[str, str]:
        """Give the addresses for nurseries and for commands."""
        folder = self._ready()
        return str(folder / ADDRESSES[0]), str(folder / ADDRESSES[1])

    def close(self) -> None:
        if self._process is not None and self._folder is not None and self._alive is not None:
            self._process.terminate()
            self._process.wait()
            os.close(self._alive)
            shutil.rmtree(self._folder)
            self._process = self._folder = None

    def _ready(self) -> Path:
        if self._folder is not None:
            return self._folder
        folder = self._folder = Path(tempfile.mkdtemp(prefix="forks-"))  # short, as addresses must be
        sockets = [listening(folder / name) for name in ADDRESSES]
        numbers = [each.fileno() for each in sockets]
        heard, self._alive = os.pipe()  # which the system closes if this process is killed
        config = {
            "listeners": numbers,
            "imports": self.imports,
            "alive": heard,
            "addresses": [str(folder / name) for name in ADDRESSES],
        }
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                # the last word tells `machine.activity` that what is forked belongs to this process
                [sys.executable, "-P", SERVER, json.dumps(config), forks.NURSERY],
                cwd="/", env=self.variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=[*numbers, heard],
            )  # fmt: skip
        os.close(heard)
        for each in sockets:
            each.close()
        return folder


def listening(address: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(str(address))
    made.listen(64)
    return made


server = Server(os.environ)  # before any test changes a variable


@contextmanager
def forked_by(*modules: str) -> Iterator[None]:
    """Fork the nurseries, sides and trainings that these modules start in this process."""
    forking = forks.Forking(server.addresses, lambda: server.imports, server.variables)
    forking.install(*modules)
    yield
    for name in modules:
        vars(sys.modules[name])["subprocess"] = subprocess


def start(
    *words: str | Path,
    folder: Path | None = None,
    descriptors: Mapping[int, int],
    full_nurseries: bool = False,
    program: str = forks.COMMAND,
    by: Server | None = None,
    **variables: str,
) -> forks.Forked:
    """Start the command line in a fork of a server, usually the one for all tests.

    folder: where it runs. descriptors: those it inherits, by their number there. full_nurseries: whether it
        starts its nurseries in full, as its children. program: another module, or a file, to run instead.
    variables: added to the environment; a PYTHONPATH may only lead to other packages.
    """
    return forks.fork(
        (by or server).addresses()[1],
        program,
        list(map(str, words)),
        descriptors,
        {**os.environ, "OMP_NUM_THREADS": "1", **variables},
        None if folder is None else str(folder),
        full=full_nurseries,
    )


def command(
    *words: str | Path,
    folder: Path | None = None,
    program: str = forks.COMMAND,
    by: Server | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a fork of a server, as `subprocess.run` would; see `start`."""
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        Path(os.devnull).open("rb") as null,
    ):
        descriptors = {0: null.fileno(), 1: out.fileno(), 2: err.fileno()}
        forked = start(*words, folder=folder, descriptors=descriptors, program=program, by=by, **variables)
        try:
            code = forked.wait(LONGEST_S)
        finally:
            forked.kill()
        texts = [read(file) for file in (out, err)]
    return subprocess.CompletedProcess([program, *map(str, words)], code, *texts)


def read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def shell_command(module: str = forks.COMMAND) -> str:
    """Give the words with which a shell runs a module, such as the command line, in a fork."""
    return shlex.join([sys.executable, "-I", "-S", forks.__file__, server.addresses()[1], module])
