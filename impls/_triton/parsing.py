"""One thread at a time turns a kernel's source into a syntax tree.

Kernels are compiled in several threads, each of which parses them and what they call. In CPython 3.11 two
threads that build syntax trees at the same time may raise "AST constructor recursion depth mismatch", since
they share a counter. Parsing takes milliseconds, so that waiting for it costs nothing.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from triton.runtime.jit import JITCallable

_LOCK = threading.Lock()


def parse_in_turn() -> None:
    """Make all threads of this process wait for each other where Triton parses a function."""
    if getattr(JITCallable.parse, "in_turn", False):
        return
    parse = JITCallable.parse

    @functools.wraps(parse)
    def waiting(function: Any) -> Any:
        with _LOCK:
            return parse(function)

    waiting.in_turn = True  # type: ignore[attr-defined]
    JITCallable.parse = waiting
