"""Keep torch.autocast out of definitions and backends, which choose the precision of each step themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

DEVICES = ("cpu", "cuda")


def without_autocast(function: F) -> F:
    """Let a function compute under autocast what it computes without.

    Autocast would multiply matrices in a half type, so that float32 results lack the digits that their dtype
    promises, and hand float32 and half tensors to operators that take one dtype only. Fused backends whose
    host code calls no operator that autocast changes do without this, and save half a microsecond.

    A backward pass that is called under autocast is still subject to it, which torch's documentation advises
    against.
    """

    @functools.wraps(function)
    def unaffected(*operands: Any, **options: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return function(*operands, **options)
        with ExitStack() as stack:
            for kind in DEVICES:
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*operands, **options)

    return unaffected  # type: ignore[return-value]
