"""The native form of a foreign package's kernel: its operands, and the way back from its results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recurrence's operands in native form: another layout, gates not in logs, one dtype for all.

    operands: what the native call takes, in order; its tensors are differentiable functions of the
        recurrence's operands.
    finish: what the native call gives (a tensor or a tuple) -> (output, final_state), differentiable.
    """

    operands: tuple[Any, ...]
    finish: Callable[[Any], tuple[Any, Any]]


def compose(prepare: Callable[..., Prepared], native: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Wrap a native call in its preparation: one function with the signature of `prepare`."""

    @functools.wraps(prepare)
    def function(*operands: Any, **options: Any) -> tuple[Any, Any]:
        prepared = prepare(*operands, **options)
        return prepared.finish(native(*prepared.operands))

    return function
