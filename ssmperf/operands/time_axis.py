"""The time axis of operands: which have one, how long it is, where it lies, and pieces of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor


def laid_out(operands: Mapping[str, Any], layout: str, T: int) -> dict[str, Any]:
    """Lay out operands by name: with `time_last` those with a time axis have it innermost in memory."""
    if layout == "channels_last":
        return dict(operands)
    return {name: time_last(v) if has_time(name, v, T) else v for name, v in operands.items()}


def time_last(values: Tensor) -> Tensor:
    """Copy (B, T, ...) so that neighbouring steps are next to one another in memory."""
    return values.movedim(1, -1).contiguous().movedim(-1, 1)


def steps(operands: Mapping[str, Any], start: int, stop: int, T: int) -> dict[str, Any]:
    """Restrict operands by name to some of the T time steps."""
    return cut(operands, with_time(operands, T), start, stop)


def with_time(operands: Mapping[str, Any], T: int) -> frozenset[str]:
    """Name the operands that have a time axis of length T."""
    return frozenset(name for name, value in operands.items() if has_time(name, value, T))


def cut(operands: Mapping[str, Any], timed: Collection[str], start: int, stop: int) -> dict[str, Any]:
    """Restrict those operands by name that have a time axis to some of its steps."""
    return {name: value[:, start:stop] if name in timed else value for name, value in operands.items()}


def has_time(name: str, value: Any, T: int) -> bool:
    """Whether an operand has a time axis (its second) of length T; a state has none, whatever its sizes."""
    return name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3 and value.shape[1] == T


def length_of(operands: Mapping[str, Any]) -> int:
    """Find T: operands of three dimensions or more have it second, or 1 where they broadcast."""
    return max(
        value.shape[1]
        for name, value in operands.items()
        if name != "initial_state" and isinstance(value, Tensor) and value.dim() >= 3
    )
