"""Backends that are honest themselves and leave a process or a machine in which others are slow."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, loop

SECONDS = 4  # after which what was left behind ends by itself
CALLS: Counter[str] = Counter()


def begins(name: str) -> bool:
    """Tell whether this is the third call of a cheat, which is neither the first nor one that is timed."""
    CALLS[name] += 1
    return CALLS[name] == 3


def spin() -> None:
    """Keep the interpreter busy."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pass


def fork_spinner() -> None:
    """Leave a busy child behind."""
    if os.fork() == 0:
        signal.alarm(SECONDS)
        while True:
            pass


@cheat("busy_thread")
def busy_thread(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave a thread that holds the interpreter."""
    if begins("thread"):
        threading.Thread(target=spin, daemon=True, name="spin").start()
    return loop(log_a, b, initial_state, phase=phase)


@cheat("busy_children")
def busy_children(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave four busy processes per core."""
    if begins("children"):
        for _ in range(4 * (os.cpu_count() or 1)):
            fork_spinner()
    return loop(log_a, b, initial_state, phase=phase)


@cheat("orphan")
def orphan(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave busy processes in sessions of their own, which are no children of the worker any more."""
    if begins("orphan"):
        for _ in range(4 * (os.cpu_count() or 1)):
            child = os.fork()
            if child == 0:
                os.setsid()
                fork_spinner()
                os._exit(0)
            os.waitpid(child, 0)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("niceness")
def niceness(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave the process with the lowest priority."""
    if begins("niceness"):
        os.nice(19)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("affinity")
def affinity(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave the process on one core."""
    if begins("affinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return loop(log_a, b, initial_state, phase=phase)


@cheat("denormals")
def denormals(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave denormal numbers flushed to zero."""
    if begins("denormals"):
        torch.set_flush_denormal(True)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("garbage")
def garbage(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave a garbage collector that runs after every third allocation."""
    if begins("garbage"):
        gc.set_threshold(2, 1, 1)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("environment")
def environment(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave variables that libraries read when they start."""
    if begins("environment"):
        os.environ.update(OMP_NUM_THREADS="1", TORCH_LOGS="+dynamo", TRITON_INTERPRET="1")
    return loop(log_a, b, initial_state, phase=phase)


@cheat("anomaly")
def anomaly(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave anomaly mode on, which keeps a stack per node of every graph."""
    if begins("anomaly"):
        torch.autograd.set_detect_anomaly(True)
    return loop(log_a, b, initial_state, phase=phase)


@cheat("module_hooks")
def module_hooks(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave a hook on every module and on every tensor that a graph saves."""
    if begins("hooks"):
        torch.nn.modules.module.register_module_forward_hook(lambda *args: time.sleep(1e-3))
        torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()).__enter__()
    return loop(log_a, b, initial_state, phase=phase)


@cheat("profile_function")
def profile_function(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Leave a function that Python calls at every call."""
    if begins("profile"):
        sys.setprofile(lambda *event: None)
    return loop(log_a, b, initial_state, phase=phase)
