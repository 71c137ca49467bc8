"""The time axis of operands: find it, measure it, lay it out in memory, and cut it.

In the layout `time_last` the gradient at the output is laid out as the operands are. A backend that needs
another layout copies within its time, or refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor


def laid_out(operands: Mapping[str, Any], layout: str, T: int) -> dict[str, Any]:
    """Lay out operands by name. With `time_last`, the time axis becomes the innermost one in memory."""
    if layout == "channels_last":
        return dict(operands)
    return {name: time_last(v) if has_time(name, v, T) else v for name, v in operands.items()}


def time_last(values: Tensor) -> Tensor:
    """Copy (B, T, ...) so that neighbouring steps are next to one another in memory."""
    return values.movedim(1, -1).contiguous().movedim(-1, 1)


def steps(operands: Mapping[str, Any], start: int, stop: int, T: int) -> dict[str, Any]:
    """Restrict operands by name to the time steps from `start` to `stop`, of T in all."""
    return cut(operands, with_time(operands, T), start, stop)


def with_time(operands: Mapping[str, Any], T: int) -> frozenset[str]:
    """Find the names of the operands that have a time axis of length T."""
    return frozenset(name for name, value in operands.items() if has_time(name, value, T))


def cut(operands: Mapping[str, Any], timed: Collection[str], start: int, stop: int) -> dict[str, Any]:
    """Restrict the operands named in `timed` to the time steps from `start` to `stop`."""
    return {name: value[:, start:stop] if name in timed else value for name, value in operands.items()}


def has_time(name: str, value: Any, T: int) -> bool:
    """Tell whether an operand has a time axis (its second) of length T; an initial state never has one."""
    return name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3 and value.shape[1] == T


def length_of(operands: Mapping[str, Any]) -> int:
    """Find T, the second size of operands with three or more dimensions; it is 1 in those that broadcast."""
    return max(
        value.shape[1]
        for name, value in operands.items()
        if name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3
    )
