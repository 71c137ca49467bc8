"""The process of a nursery: it imports torch once, and workers and judges are forked from it.

It runs nothing in parallel and touches no GPU, since neither survives a fork. It is started as
`python -m ssmperf.engine.processes.nursery_process` with a JSON object in argv[1]: `socket`, an inherited
descriptor, and `imports`, the modules to import (MODULE:FUNCTION also calls a function without arguments).
It ends when the other end of the socket is closed. A signal at its parent's death would come when the thread
that has started it ends, and would end a nursery that was made in a thread for other threads.

Requests and replies are JSON objects, one a datagram:

    {"start": MODULE, "config": {...}, "names": [...]} with descriptors  ->  {"pid"}
    {"reap": PID}, of a process that has ended                           ->  {"code"}
    {"sweep": [PID, ...]}, the processes to keep                         ->  {"killed"}

A child calls `MODULE.main(config)`; the first descriptor is its stdout and stderr, and the others stand in
the configuration under their names. Orphans of a dead child become children of this process, in
whatever session they are; `sweep` kills all but those to keep.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LONGEST_MESSAGE = 1 << 20
MOST_DESCRIPTORS = 8
SWEEP_S = 5.0


def main() -> None:
    """Fork on request, until the driver ends."""
    config = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    requests = socket.socket(fileno=config["socket"])
    for name in config["imports"]:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(requests, LONGEST_MESSAGE, MOST_DESCRIPTORS)
        except ConnectionResetError:  # the driver has ended, and left a reply unread
            return
        if not data:
            return
        message = json.loads(data)
        if "start" in message:
            reply = {"pid": start(message, descriptors, requests)}
        elif "reap" in message:
            reply = {"code": os.waitstatus_to_exitcode(os.waitpid(message["reap"], 0)[1])}
        else:
            reply = {"killed": sweep(set(message["sweep"]))}
        requests.send(json.dumps(reply).encode())


def start(message: dict[str, Any], descriptors: list[int], requests: socket.socket) -> int:
    """Fork a child that runs a module; return its process id."""
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        requests.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery:
            os._exit(code)
        os.setsid()
        log, *others = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        config = {**message["config"], **dict(zip(message["names"], others, strict=True))}
        importlib.import_module(message["start"]).main(config)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def sweep(keep: set[int]) -> int:
    """Kill all processes below this one but those to keep; return how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline:
        found = descendants(os.getpid()) - descendants_of(keep) - keep
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                continue
        for pid in children(os.getpid()) - keep:
            os.waitpid(pid, 0)
        if not found:
            break
    return len(killed)


def children(pid: int) -> set[int]:
    """List the children of a process."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found |= set(map(int, task.read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def descendants(pid: int) -> set[int]:
    """List the children of a process, their children, and so on."""
    found: set[int] = set()
    fresh = children(pid)
    while fresh:
        found |= fresh
        fresh = {below for each in fresh for below in children(each)} - found
    return found


def descendants_of(pids: set[int]) -> set[int]:
    """List the descendants of several processes."""
    return {below for pid in pids for below in descendants(pid)}


if __name__ == "__main__":
    main()
