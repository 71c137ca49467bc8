"""What must hold beside the oracle: answers in closed form, and identities between models and recurrences.

Both are data for the correctness suite, which puts every backend to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ssmperf import registry

F = TypeVar("F", bound=Callable[..., Any])

# operands, output, final state (None where the case says nothing of it), all in float64
Answer = tuple[Mapping[str, Any], Any, Any]
# (recurrence, **operands) -> output, final state
Compute = Callable[..., tuple[Any, Any]]
# what is compared, left side, right side
Comparison = tuple[str, Any, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Analytic:
    """A case of a recurrence whose answer is known in closed form."""

    name: str
    of: str
    function: Callable[[], Answer]
    source: str


@dataclass(frozen=True, eq=False, slots=True)
class Identity:
    """Two ways that must give the same; `subjects` names the models that it speaks of."""

    name: str
    of: str
    subjects: tuple[str, ...]
    function: Callable[[Compute], Iterable[Comparison]]
    source: str


def analytic(of: str, *, name: str, source: str) -> Callable[[F], F]:
    """Register `f() -> (operands, output, final state or None)` as a closed-form case of a recurrence.

    All in float64, on the CPU; every call gives the same values. It lies in `impls/<of>/analytic.py`.

    Raises:
        DuplicateName: the recurrence has a case of this name.
    """

    def register(function: F) -> F:
        registry.add("analytic", name, Analytic(name, of, function, source), function, of=of)
        return function

    return register


def identity(name: str, *, of: str, subjects: Iterable[str], source: str) -> Callable[[F], F]:
    """Register `f(compute) -> [(label, left, right), ...]`, an identity for the backends of a recurrence.

    compute: `(recurrence, **operands) -> (output, final state)` by the backend under test where `recurrence`
        is `of`, and by the definition otherwise. Values are float64, on the CPU, the same in every call.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(function: F) -> F:
        entry = Identity(name, of, tuple(subjects), function, source)
        registry.add("identity", name, entry, function)
        return function

    return register
