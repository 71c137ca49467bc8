"""Modules without the memory of their large tensors: what a constructor refuses is known before a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

FACTORIES = ("empty", "rand", "randn", "zeros", "ones", "full")
LARGEST = 1 << 18  # elements of a tensor that has memory


class Outline(TorchFunctionMode):
    """Create large tensors on the device "meta", and small ones in memory.

    The first arithmetic on that device imports torch's compiler, which takes seconds. Constructors compute
    with small tensors, such as a rate per head, and only fill large ones.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if getattr(function, "__name__", "") in FACTORIES and _elements(args, options) > LARGEST:
            options["device"] = options.get("device") or "meta"
        return function(*args, **options)


def _elements(args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Count the elements of a tensor, of which the sizes come first, as numbers or together."""
    first = args[0] if args else options.get("size", ())
    return math.prod(args if isinstance(first, int) else first)
