"""One key per kernel in Triton's cache on disk, in whatever order a process compiles its kernels.

Triton hashes a function with the constants of the functions that it calls, but of these only those that have
been hashed before. So the key of a kernel depends on what the process compiled earlier, and another process
may not find the kernel and compile it again. Here functions are hashed after all that they call.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITCallable

_LOCK = threading.RLock()  # a hash that another thread has begun looks like a finished one


def settle_key(kernel: Any) -> None:
    """Hash a kernel after the functions that it calls, unless it has been hashed, or is interpreted."""
    if isinstance(kernel, JITCallable):
        with _LOCK:
            _settle(kernel, set())


def _settle(function: JITCallable, begun: set[int]) -> None:
    if function.hash is not None or id(function) in begun:
        return
    begun.add(id(function))
    for callee in _callees(function):
        _settle(callee, begun)
    _ = function.cache_key


def _callees(function: JITCallable) -> Iterator[JITCallable]:
    """Find the functions of Triton that a function names, also as attributes of modules."""
    scope: dict[str, Any] = {**function.fn.__globals__, **inspect.getclosurevars(function.fn).nonlocals}
    names = function.fn.__code__.co_names + function.fn.__code__.co_freevars
    values = [scope.get(name) for name in names]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        values += [getattr(module, name, None) for name in names]
    for value in values:
        if isinstance(value, JITCallable):
            yield value
