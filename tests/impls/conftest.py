"""Fixtures shared by tests of backends: a quicker start of device functions in Triton's interpreter."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.without_gpu.interpreter import quicken


@pytest.fixture(scope="session", autouse=True)
def language_patched_once() -> Iterator[None]:
    """Let Triton's interpreter patch triton.language once per launch instead of at every device function.

    The interpreter goes through all names of the language at each call, though the launch has patched it
    already and restores it at its end. That took a quarter of the tests' time and changed nothing.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    if not all(hasattr(interpreter, name) for name in ("_LangPatchScope", "_patch_lang", "GridExecutor")):
        yield  # another version of Triton
        return
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[frozenset[int]] = set()  # modules that the launch under way has patched

    @functools.cache
    def modules(function: Callable[..., Any]) -> frozenset[int]:
        """Identify the modules of the language that the interpreter patches for a function."""
        language = (interpreter.tl, interpreter.tl.core)
        return frozenset(
            id(value) for value in function.__globals__.values() if any(value is each for each in language)
        )

    def patch_once(function: Callable[..., Any]) -> Any:
        if (own := modules(function)) in done:
            return interpreter._LangPatchScope()
        done.add(own)
        return patch(function)

    def launch_anew(self: Any, *arguments: Any, **options: Any) -> None:
        done.clear()
        try:
            launch(self, *arguments, **options)
        finally:
            done.clear()

    with pytest.MonkeyPatch.context() as replace:
        replace.setattr(interpreter, "_patch_lang", patch_once)
        replace.setattr(interpreter.GridExecutor, "__call__", launch_anew)
        quicken(replace, interpreter)
        yield
