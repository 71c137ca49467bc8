"""Checks beside a plain call: a property or a form of the call, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ssmperf.engine.cases.record import Status
from ssmperf.engine.judge.verdict import Verdict
from ssmperf.errors import Unsupported

T = TypeVar("T")
R = TypeVar("R")


class DoesNotApply(Exception):
    """The recurrence, gate kind or backend is not meant to have a property; the message says why."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The worst error of a property with its limit (0 means bitwise equality), or why it does not apply.

    status: of a call that is wrong by itself.
    """

    name: str
    error: float | None = None
    limit: float | None = None
    reason: str | None = None
    status: Status | None = None

    @property
    def holds(self) -> bool:
        return self.error is None or (self.reason is None and self.error <= (self.limit or 0.0))

    @property
    def ended(self) -> Status:
        """The status of a finding that does not hold."""
        if self.status is not None:
            return self.status
        return Status.NAN if self.error is not None and math.isnan(self.error) else Status.WRONG

    @property
    def words(self) -> str:
        """Why it does not hold."""
        return self.reason or f"relative error {self.error:.2e} above {self.limit:.2e}"


def worst(name: str, found: Iterable[tuple[float, float]]) -> Checked:
    """Find the error that exceeds its limit the most; NaN exceeds everything."""

    def excess(pair: tuple[float, float]) -> float:
        error, limit = pair
        if math.isnan(error):
            return math.inf
        return error / limit if limit else math.inf if error else 0.0

    pairs = list(found)
    if not pairs:
        raise DoesNotApply("nothing to compare")
    error, limit = max(pairs, key=excess)
    return Checked(name, error, limit)


def each_part(parts: Iterable[T], measure: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Measure the parts of a property one by one; a part that the backend refuses is left out.

    Raises:
        Unsupported: it refuses all of them.
    """
    refusal, measured = None, False
    for part in parts:
        try:
            found = measure(part)
        except Unsupported as error:
            refusal = error
            continue
        measured = True
        yield part, found
    if refusal is not None and not measured:
        raise refusal


def with_checks(
    verdict: Verdict, kind: str, found: Sequence[Checked], end: str = ""
) -> tuple[Verdict, Checked | None]:
    """Add checks to a verdict; it becomes that of the first one that does not hold, which is given, too."""
    errors = {f"{kind} {each.name}": each.error for each in found if each.error is not None}
    limits = {f"{kind} {each.name}": each.limit for each in found if each.limit is not None}
    verdict = replace(
        verdict, errors={**verdict.errors, **errors}, tolerances={**verdict.tolerances, **limits}
    )
    failed = next((each for each in found if not each.holds), None)
    if failed is None:
        return verdict, None
    return replace(verdict, status=failed.ended, reason=f"{failed.name}: {failed.words}{end}"), failed
