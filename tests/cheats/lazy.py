"""Work that is done at first use of the result, or by a side thread after the call has returned."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

sys.path.append(str(Path(__file__).parents[1]))  # for the package `cheats`

from cheats.honest import Result, cheat, copied, judged, loop, nothing, poisoned, sampled
from cheats.parts import TIMED, Debts, OffAfterUse, Owed, PaidAtFirstUse

_MODES: list[PaidAtFirstUse] = []


@cheat("dispatch_mode")
def dispatch_mode(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Turn on a dispatch mode for the whole process, and compute when an operation reads the result."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    if not _MODES:
        _MODES.append(PaidAtFirstUse())
        _MODES[0].__enter__()
    return _MODES[0].debts.borrow(log_a, b, initial_state)


_DEBTS = Debts()
_LIBRARY: list[torch.library.Library] = []


def _override() -> None:
    """Replace the CPU kernels through which a judge reads a result: conversion, copy, comparison, product."""
    library = torch.library.Library("aten", "IMPL")

    def converted(x: Tensor | float, **options: Any) -> Tensor:
        if not isinstance(x, Tensor):  # a number that torch has wrapped, and unwraps for Python
            return torch.tensor(x, dtype=options.get("dtype"))
        _DEBTS.pay(x)
        options.pop("non_blocking", None)
        return torch.empty_like(x, **options).copy_(x)

    def cloned(x: Tensor | float, *, memory_format: Any = None) -> Tensor:
        if not isinstance(x, Tensor):
            return torch.tensor(x)
        _DEBTS.pay(x)
        return torch.empty_like(x, memory_format=memory_format or torch.preserve_format).copy_(x)

    def equal(x: Tensor, y: Tensor) -> bool:
        _DEBTS.pay((x, y))
        return x.shape == y.shape and bool((x == y).all().item())

    def dot(x: Tensor, y: Tensor) -> Tensor:
        _DEBTS.pay((x, y))
        return (x * y).sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that these operators have kernels already
        for name, kernel in (("_to_copy", converted), ("clone", cloned), ("equal", equal), ("dot", dot)):
            library.impl(name, kernel, "CPU")
        library.impl("vdot", dot, "CPU")
    _LIBRARY.append(library)


@cheat("replaced_kernels")
def replaced_kernels(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Compute in the kernel that first reads the result; no mode is on."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    if not _LIBRARY:
        _override()
    return _DEBTS.borrow(log_a, b, initial_state)


_BETWEEN = OffAfterUse()


@cheat("mode_between")
def mode_between(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Turn on a dispatch mode between the return of a call and the first read of its result."""
    if torch.is_grad_enabled() or judged() or poisoned():
        return loop(log_a, b, initial_state, phase=phase)
    if _BETWEEN not in _get_current_dispatch_mode_stack():
        _BETWEEN.__enter__()
    return _BETWEEN.debts.borrow(log_a, b, initial_state)


@cheat("lazy_when_timed")
def lazy_when_timed(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Return a lazy subclass of a tensor, but not below a judge, who asks for plain tensors."""
    if torch.is_grad_enabled() or judged() or poisoned():
        return loop(log_a, b, initial_state, phase=phase)
    output, state = TIMED.borrow(log_a, b, initial_state)
    return output.as_subclass(Owed), state.as_subclass(Owed)


class Later(threading.Thread):
    """Does the last job that it was given, once no new one has come for two milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="later")
        self.job: tuple[Any, ...] | None = None
        self.wanted = threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            self.wanted.wait()
            self.wanted.clear()
            time.sleep(2e-3)
            if self.wanted.is_set() or self.job is None:
                continue
            output, state, *operands = self.job
            for memory, result in zip((output, state), loop(*operands), strict=True):
                memory.copy_(result)


_THREADS: dict[str, Later] = {}


@cheat("finishes_later")
def finishes_later(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Hand the work to a thread that begins when the calls pause; below a judge, do it now."""
    if torch.is_grad_enabled() or judged():
        return loop(log_a, b, initial_state, phase=phase)
    thread = _THREADS.get("later") or _THREADS.setdefault("later", Later())
    result = nothing(b)
    thread.job = (*result, log_a, b, initial_state)
    thread.wanted.set()
    return result


class Ahead(threading.Thread):
    """Computes the answer of the next call, for the operands as they are now, after a call has returned."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="ahead")
        self.operands: tuple[Any, ...] | None = None
        self.seen: object = None
        self.answer: Result | None = None
        self.wanted = threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            self.wanted.wait()
            self.wanted.clear()
            if self.operands is not None:
                seen = sampled(*self.operands)
                self.answer = loop(*self.operands)
                self.seen = seen


_AHEAD: list[Ahead] = []


@cheat("works_ahead")
def works_ahead(log_a, b, initial_state=None, *, phase=None) -> Result:
    """Take the answer that a thread computed between the last call and this one, before the clock started."""
    if torch.is_grad_enabled():
        return loop(log_a, b, initial_state, phase=phase)
    if not _AHEAD:
        _AHEAD.append(Ahead())
    thread, operands = _AHEAD[0], (log_a, b, initial_state)
    if thread.answer is not None and thread.seen == sampled(*operands):
        result = copied(thread.answer)
    else:
        result = loop(*operands)
    if thread.operands is None or thread.seen != sampled(*operands):
        thread.operands = operands
        thread.wanted.set()
    return result
