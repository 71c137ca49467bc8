"""Draw values from strategies of hypothesis, and shrink one of them.

Equal seeds give equal values. A value is shrunk by drawing it again and failing: hypothesis then looks for a
simpler one that fails as well. By itself, hypothesis also draws numbers that stand in the source of imported
modules, so that a change of code would change all values. So it draws by a provider of ours, for which it has
no public name yet.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
BACKEND = "ssmperf"  # the provider's name in hypothesis


@dataclass(slots=True)
class _Draw:
    """The numbers of the values that hypothesis draws in one run.

    following: the number of the next value. number: that of the present one; 0 for the simplest, which
        hypothesis makes without a provider.
    """

    seed: int
    following: int = 1
    number: int = 0


_draw: ContextVar[_Draw] = ContextVar("draw")


class UniformProvider(PrimitiveProvider):
    """Draws truth values and integers uniformly, by the seed alone: no strategy here draws anything else."""

    lifetime = "test_function"

    def __init__(self, conjecturedata: Any) -> None:
        super().__init__(conjecturedata)
        self._draw = _draw.get()
        self._random = random.Random()

    @contextlib.contextmanager
    def per_test_case_context_manager(self) -> Iterator[None]:
        self._draw.number = max(1, self._draw.following)
        self._draw.following = self._draw.number + 1
        self._random.seed(f"{self._draw.seed} {self._draw.number}")
        yield

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


def drawn(strategy: SearchStrategy[T], seed: int, count: int) -> list[tuple[int, T]]:
    """Draw `count` values with their numbers, fewer if the strategy has no more. Number 0 is the simplest."""
    draw, found = _Draw(seed), list[tuple[int, T]]()
    _run(strategy, draw, count, lambda value: found.append((draw.number, value)), Phase.generate)
    return found


def shrunk(strategy: SearchStrategy[T], seed: int, number: int, value: T, fails: Callable[[T], bool]) -> T:
    """Find the simplest value that fails, from the one that has a number among those that `drawn` gives.

    fails: it must give the same answer for the same value.
    """
    simplest = value

    def body(candidate: T) -> None:
        nonlocal simplest
        if fails(candidate):
            simplest = candidate
            raise _Fails

    with contextlib.suppress(_Fails):
        _run(strategy, _Draw(seed, number), 2, body, Phase.generate, Phase.shrink)
    return simplest


def _run(
    strategy: SearchStrategy[T], draw: _Draw, count: int, body: Callable[[T], None], *phases: Phase
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

    token = _draw.set(draw)
    try:
        hypothesis.seed(draw.seed)(settings(hypothesis.given(value=strategy)(collect)))()
    finally:
        _draw.reset(token)
