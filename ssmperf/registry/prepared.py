"""The native form of a foreign package's call: its operands, and the way back from its results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recurrence's operands in native form, for example in another layout, or with gates not in logs.

    operands: the arguments of the native call, in order; tensors among them are differentiable functions of
        the recurrence's operands.
    finish: result of the native call (a tensor or a tuple) -> (output, final_state), differentiable.
    """

    operands: tuple[Any, ...]
    finish: Callable[[Any], tuple[Any, Any]]


def compose(prepare: Callable[..., Prepared], native: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Compose a native call with its preparation to one function with the signature of `prepare`."""

    @functools.wraps(prepare)
    def function(*operands: Any, **options: Any) -> tuple[Any, Any]:
        prepared = prepare(*operands, **options)
        return prepared.finish(native(*prepared.operands))

    return function
