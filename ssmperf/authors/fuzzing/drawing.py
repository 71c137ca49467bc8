"""Draw values from strategies, and shrink one of them, by hypothesis's public interface.

Equal seeds give equal values. A value is shrunk by drawing the same values again and failing at its index:
hypothesis then looks for a simpler one that fails as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


class _Fails(Exception):
    """Tells hypothesis that a value fails."""


def drawn(strategy: SearchStrategy[T], seed: int, count: int) -> list[T]:
    """Draw `count` values, fewer if the strategy has no more, the simplest first."""
    found: list[T] = []
    _run(strategy, seed, count, found.append, Phase.generate)
    return found


def shrunk(strategy: SearchStrategy[T], seed: int, count: int, index: int, fails: Callable[[T], bool]) -> T:
    """Find the simplest value that fails, from the one at an index of those that `drawn` gives.

    fails: it must give the same answer for the same value.
    """
    simplest: list[T] = []
    number = -1

    def body(value: T) -> None:
        nonlocal number
        number += 1
        if number == index or (simplest and fails(value)):
            simplest.append(value)
            raise _Fails

    with contextlib.suppress(_Fails):
        _run(strategy, seed, count, body, Phase.generate, Phase.shrink)
    return simplest[-1]


def _run(
    strategy: SearchStrategy[T], seed: int, count: int, body: Callable[[T], None], *phases: Phase
) -> None:
    settings: Any = hypothesis.settings(
        max_examples=count,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )

    def collect(value: T) -> None:
        body(value)

    hypothesis.seed(seed)(settings(hypothesis.given(value=strategy)(collect)))()
