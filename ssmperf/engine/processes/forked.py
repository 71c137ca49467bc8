"""Call a function in a forked child that is thrown away, with all that it has started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

from ssmperf.engine.processes.nursery_process import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, sweep

BY_SIGNAL = 128  # added to the number of a signal that ended the child, in its status


def forked_answer(work: Callable[[], bytes]) -> tuple[bytes, int]:
    """Call a function in a child; return its answer and the child's exit status.

    A keeper stands between: it inherits what the child leaves behind, and kills it. The child has one thread
    of torch's, since others do not survive a fork.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    driver = os.getpid()
    reading, writing = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        status = 1
        try:
            os.close(reading)
            os.setsid()
            _end_with(driver)
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
            status = _kept(work, writing)
        finally:
            os._exit(status)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        return answer, os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1])
    except BaseException:
        for kill in (os.killpg, os.kill):  # it may not yet have a group of its own
            with contextlib.suppress(ProcessLookupError):
                kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)
        raise


def _kept(work: Callable[[], bytes], writing: int) -> int:
    """Fork the child, wait for its end, and kill what it has left behind; return its status."""
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _work(work, writing, keeper)
    os.close(writing)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sweep(set())
    return code if code >= 0 else BY_SIGNAL - code


def _work(work: Callable[[], bytes], writing: int, keeper: int) -> None:
    """Answer and end; what is typed is not for this process."""
    status = 1
    try:
        _end_with(keeper)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        answer = work()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
