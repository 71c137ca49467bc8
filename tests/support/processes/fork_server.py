"""The server of forks.py: it has imported the modules that tests need, and forks on request.

It is started as `python -P fork_server.py CONFIG`, with a JSON object: `listeners`, the descriptors of its
sockets for nurseries and for commands, `addresses`, where these are, `imports`, the modules of a nursery, and
`alive`, a pipe that is closed when the process ends for which it forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.append(str(Path(__file__).parent))  # for this import alone
from forks import LONGEST_MESSAGE, NURSERY, STARTERS, Forking

sys.path.pop()

# Imports of the command line beside the modules of a nursery; MODULE:FUNCTION also calls a function.
OF_COMMANDS = (
    "pandas",
    "rich.table",
    "tabulate",
    "ssmperf.shell.cli.entry",
    "ssmperf.engine.execute.run",
    "ssmperf.engine.registry:reports",
    "ssmperf.shell.terminal.display",
    "ssmperf.versions.serve",
    "ssmperf.comparison.versions.side_process",
)


class Server:
    """Forks on request, at one address for nurseries and at one for commands.

    The commands' forks are those of a fork that has imported what they need, as nurseries do not have it.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.nurseries, self.commands = (socket.socket(fileno=each) for each in config["listeners"])
        self.running: dict[int, tuple[int, socket.socket | None]] = {}  # by pidfd: pid, and who waits for it

    def serve(self) -> None:
        load(self.config["imports"])
        self.loop()

    def loop(self) -> None:
        signal.signal(signal.SIGTERM, self.end)
        while True:
            listeners = [each for each in (self.nurseries, self.commands) if each.fileno() >= 0]
            ready, _, _ = select.select([self.config["alive"], *listeners, *self.running], [], [])
            for each in ready:
                if each == self.config["alive"]:
                    self.end()
                elif isinstance(each, int):
                    self.reap(each)
                elif each is self.commands and self.nurseries.fileno() >= 0:
                    self.split()
                else:
                    self.answer(each.accept()[0])

    def split(self) -> None:
        """Leave the commands to a fork."""
        pid = self.forked()
        if pid:
            self.running[os.pidfd_open(pid)] = (pid, None)
            self.commands.close()
            return
        self.nurseries.close()
        load(OF_COMMANDS)
        self.loop()

    def answer(self, client: socket.socket) -> None:
        """Fork for a client."""
        data, descriptors, _, _ = socket.recv_fds(client, LONGEST_MESSAGE, 16)
        if not data:
            client.close()
            return
        pid = self.forked()
        if pid:
            for each in descriptors:
                os.close(each)
            self.running[os.pidfd_open(pid)] = (pid, client)
            self.tell(client, {"pid": pid})
            return
        for each in (client, self.nurseries, self.commands):
            each.close()
        os.close(self.config["alive"])
        become(json.loads(data), descriptors, self.config)

    def forked(self) -> int:
        """Fork; return the pid, or 0 in the fork, which has nothing of the server's."""
        server = os.getpid()
        if pid := os.fork():
            return pid
        import ctypes

        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the server
        if os.getppid() != server:
            os._exit(1)
        for descriptor, (_, client) in self.running.items():
            os.close(descriptor)
            if client is not None:
                client.close()
        self.running = {}
        return 0

    def reap(self, descriptor: int) -> None:
        """Tell a client how its fork has ended."""
        pid, client = self.running.pop(descriptor)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if client is not None:
            self.tell(client, {"code": code})
            client.close()

    def tell(self, client: socket.socket, message: dict[str, int]) -> None:
        with contextlib.suppress(OSError):  # a client may have gone
            client.send(json.dumps(message).encode())

    def end(self, *_: object) -> None:
        """End with all forks, whose own forks end with them."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        for pid, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)  # SIGTERM is lost where Python is about to change its handler
                os.waitpid(pid, 0)
        os._exit(0)


def load(imports: Sequence[str]) -> None:
    """Import modules, and call functions of them that are named."""
    import gc
    import importlib

    for each in imports:
        module, _, function = each.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    gc.collect()
    gc.freeze()


def become(message: dict[str, Any], descriptors: Sequence[int], config: dict[str, Any]) -> None:
    """Do in a fork what a process that has just been started would do; does not return."""
    import atexit
    import threading
    import traceback

    code = 1
    try:
        settle(message, descriptors)
        arguments = message["arguments"]
        if message["module"] != NURSERY and not message.get("full"):
            addresses = config["addresses"]
            Forking(lambda: addresses, lambda: config["imports"], os.environ).install(*STARTERS)
        code = run(message["module"], arguments)
    except BaseException as error:
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            code = -signal.SIGINT
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def settle(message: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Take the descriptors, the environment and the folder that are asked for."""
    import fcntl

    if message.get("session"):
        os.setsid()
    apart = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 256) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(apart, message["descriptors"], strict=True):
        os.dup2(each, number, inheritable=True)
        os.close(each)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if not os.environ.get("PYTHONSAFEPATH"):
        program = Path(message["module"])
        sys.path.insert(0, str(program.parent if program.suffix == ".py" else Path.cwd()))


def run(module: str, arguments: Sequence[str]) -> int:
    """Run a module, or a file, as the program; return its exit code."""
    import runpy

    sys.argv = [module, *arguments]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    Server(json.loads(sys.argv[1])).serve()
