"""Capture of a call in a CUDA graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


def waits_for_device(call: Callable[[], Any], cuda: Any) -> str | None:
    """Run a call and say why its capture would fail, because it waits for the device; None if it does not.

    cuda: the module `torch.cuda`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        return f"cannot be captured: {str(error).partition(chr(10))[0]}"
    finally:
        cuda.set_sync_debug_mode("default")
    return None


def record(graph: Any, call: Callable[[], Result], cuda: Any) -> Result:
    """Capture a call into a graph on the current stream; return its result, which each replay overwrites."""
    with cuda.graph(graph, stream=cuda.current_stream()):
        return call()
