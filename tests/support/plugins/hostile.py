"""A plug-in of backends for `scan` that harm their worker: test_executor.py says how.

They leave their traces in the folder that HOSTILE_FOLDER names.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import ssmperf

Result = tuple[Tensor, Tensor]
FOLDER = Path(os.environ.get("HOSTILE_FOLDER", "."))
REFUSALS = FOLDER / "refusals"  # a byte for each time that this file must not be imported

if REFUSALS.exists() and (left := REFUSALS.read_bytes()):
    REFUSALS.write_bytes(left[1:])
    raise RuntimeError("no second import")


def right(log_a: Tensor, b: Tensor, initial_state: Tensor | None) -> Result:
    """The scan, one step after another."""
    gate = torch.exp(log_a).expand(b.shape)
    state = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    states = []
    for a_t, b_t in zip(gate.unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        states.append(state)
    return torch.stack(states, 1), state


def once(name: str) -> bool:
    """Whether this is the first call of that name, in whichever process."""
    try:
        (FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hostile(name: str):
    """Register under hostile_<name>, with the signature of scan without phase."""
    return ssmperf.backend(
        "scan", name=f"hostile_{name}", dtypes=("float32",), gates=("const", "data"), passes=("forward",)
    )


@hostile("right")
def right_(log_a, b, initial_state=None, *, phase=None) -> Result:
    if torch.get_default_dtype() != torch.float32 or not torch.empty(1).device.type == "cpu":
        raise RuntimeError("the process is not as it was")
    return right(log_a, b, initial_state)


@hostile("forks")
def forks(log_a, b, initial_state=None, *, phase=None) -> Result:
    if once("forked"):
        os.fork()
    return right(log_a, b, initial_state)


@hostile("dies_with_heir")
def dies_with_heir(log_a, b, initial_state=None, *, phase=None) -> Result:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    os.abort()  # beside an heir


@hostile("leaves_session")
def leaves_session(log_a, b, initial_state=None, *, phase=None) -> Result:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    (FOLDER / "stray_pid").write_text(str(child.pid))
    while True:
        time.sleep(0.01)


@hostile("sets_dtype")
def sets_dtype(log_a, b, initial_state=None, *, phase=None) -> Result:
    torch.set_default_dtype(torch.float64)
    return right(log_a, b, initial_state)


@hostile("sets_device")
def sets_device(log_a, b, initial_state=None, *, phase=None) -> Result:
    result = right(log_a, b, initial_state)
    torch.set_default_device("meta")
    return result


class Idle(TorchFunctionMode):
    """A mode that changes nothing, but could."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@hostile("leaves_mode")
def leaves_mode(log_a, b, initial_state=None, *, phase=None) -> Result:
    result = right(log_a, b, initial_state)
    if once("mode"):
        Idle().__enter__()
    return result


@hostile("leaves_thread")
def leaves_thread(log_a, b, initial_state=None, *, phase=None) -> Result:
    def spin() -> None:
        while True:
            pass

    if once("thread"):
        threading.Thread(target=spin, daemon=True).start()
    return right(log_a, b, initial_state)


@hostile("prints")
def prints(log_a, b, initial_state=None, *, phase=None) -> Result:
    print("x" * 3_000_000, flush=True)
    return right(log_a, b, initial_state)


@hostile("curses")
def curses(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ValueError("\ud800 bad \x00 \x1b[31m\nred")


@hostile("is_silent")
def is_silent(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise AssertionError


@hostile("gives_no_reason")
def gives_no_reason(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ssmperf.Unsupported("")


@hostile("refuses_values")
def refuses_values(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise ssmperf.UnsupportedValues("too much decay")


class Unspeakable(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise ValueError


@hostile("is_unspeakable")
def is_unspeakable(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise Unspeakable


@hostile("exits")
def exits(log_a, b, initial_state=None, *, phase=None) -> Result:
    os._exit(7)


@hostile("forbids_restart")
def forbids_restart(log_a, b, initial_state=None, *, phase=None) -> Result:
    REFUSALS.write_bytes(b"xx")
    os.abort()


@hostile("writes_nonsense")
def writes_nonsense(log_a, b, initial_state=None, *, phase=None) -> Result:
    for path in list(Path("/proc/self/fd").iterdir()):
        if path.is_fifo() and os.get_inheritable(int(path.name)):
            with contextlib.suppress(OSError):  # the pipe of the requests is read only
                os.write(int(path.name), b"nonsense\n")
    return right(log_a, b, initial_state)


@hostile("hangs")
def hangs(log_a, b, initial_state=None, *, phase=None) -> Result:
    while True:
        time.sleep(0.01)


@hostile("lacks_memory_once")
def lacks_memory_once(log_a, b, initial_state=None, *, phase=None) -> Result:
    if once("lacked"):
        raise MemoryError("out of memory beside others")
    return right(log_a, b, initial_state)


@hostile("lacks_memory")
def lacks_memory(log_a, b, initial_state=None, *, phase=None) -> Result:
    raise MemoryError("out of memory, beside others or not")


@hostile("is_off_once")
def is_off_once(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Wrong in the first process that calls it."""
    if once("off"):
        once(f"off_{os.getpid()}")
    y, state = right(log_a, b, initial_state)
    return (y + 1 if (FOLDER / f"off_{os.getpid()}").exists() else y), state
