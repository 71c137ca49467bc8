"""Draw values from strategies, and shrink one of them, by hypothesis's public interface.

Equal seeds give equal values. A value is shrunk by drawing the same values again and failing at its index:
hypothesis then looks for a simpler one that fails as well. By itself, hypothesis also draws
numbers that stand in the source of imported modules, so that a change of code would change all values. So it
draws by a provider.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
BACKEND = "ssmperf"  # the provider's name in hypothesis
_seed: ContextVar[int] = ContextVar("seed")


class UniformProvider(PrimitiveProvider):
    """Draws truth values and numbers uniformly, by the seed alone."""

    lifetime = "test_function"

    def __init__(self, conjecturedata: Any) -> None:
        super().__init__(conjecturedata)
        self._random = random.Random(_seed.get())

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self._random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: Any = None,
        shrink_towards: int = 0,
    ) -> int:
        assert min_value is not None and max_value is not None
        return self._random.randint(min_value, max_value)

    def draw_float(self, **constraints: Any) -> float:
        raise NotImplementedError

    def draw_string(self, *given: Any, **constraints: Any) -> str:
        raise NotImplementedError

    def draw_bytes(self, *given: Any, **constraints: Any) -> bytes:
        raise NotImplementedError


AVAILABLE_PROVIDERS[BACKEND] = UniformProvider


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
        backend=BACKEND,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )

    def collect(value: T) -> None:
        body(value)

    token = _seed.set(seed)
    try:
        hypothesis.seed(seed)(settings(hypothesis.given(value=strategy)(collect)))()
    finally:
        _seed.reset(token)
