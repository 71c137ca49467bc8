"""Registration of report formats: pure functions of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ssmperf import registry

F = TypeVar("F", bound=Callable[..., Any])


def report(name: str) -> Callable[[F], F]:
    """Register `f(runs, destination: Path | None) -> str | None` as a report format.

    It returns text for the terminal, or writes `destination` and returns None.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(function: F) -> F:
        registry.add("report", name, function, function)
        return function

    return register
