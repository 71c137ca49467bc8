"""Registration of report formats: pure functions of runs, or of the comparison of two runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ssmperf import registry

F = TypeVar("F", bound=Callable[..., Any])


def report(name: str, *, of: str | None = None) -> Callable[[F], F]:
    """Register `f(runs, destination: Path | None) -> str | None` as a report format.

    It returns text for the terminal, or writes `destination` and returns None. With of="comparison" it takes
    a `ssmperf.comparison.Comparison` in place of runs.

    Raises:
        DuplicateName: the name is taken.
    """

    def register(function: F) -> F:
        registry.add("report", name, function, function, of=of)
        return function

    return register
