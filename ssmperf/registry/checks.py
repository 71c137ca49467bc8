"""Checks beside the oracle: answers in closed form, and identities between models and recurrences.

Both are data for the correctness suite, which judges every backend by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# operands, output, final state (None if it is not known), all in float64
Answer = tuple[Mapping[str, Any], Any, Any]
# (recurrence, **operands) -> output, final state
Compute = Callable[..., tuple[Any, Any]]
# label, left side, right side
Comparison = tuple[str, Any, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Analytic:
    """Operands of a recurrence whose answer is known in closed form."""

    name: str
    of: str
    function: Callable[[], Answer]
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Identity:
    """Two computations that must give the same result. subjects: the models that the identity is about."""

    name: str
    of: str
    subjects: tuple[str, ...]
    function: Callable[[Compute], Iterable[Comparison]]
    source: str
