"""Kernels of a round of classes are compiled once: each form ahead, and seldom in two lanes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from ssmperf import Case, Shape
from ssmperf.authors.fuzzing.in_workers import Workers
from ssmperf.authors.fuzzing.jobs import Jobs
from ssmperf.engine.execute.executor import Serving
from ssmperf.engine.execute.run import OpenRun
from ssmperf.engine.plan.selection import Selection


@dataclass
class Opened:
    """A run that keeps what it is asked to compile."""

    request: Any = field(default_factory=lambda: SimpleNamespace(selection=Selection()))
    done: frozenset[tuple[str, int]] = frozenset()
    events: None = None
    compiled: list[Case] = field(default_factory=list)

    @property
    def session(self) -> Opened:
        return self

    def add(self, planned: Sequence[Any]) -> None:
        """Plan nothing."""

    def compile(self, cases: Sequence[Case], events: None) -> None:
        self.compiled += cases


def case(T: int, K: int = 2, **more: Any) -> Case:
    shape = Shape(B=1, T=T, H=1, K=K, V=2)
    made = Case(suite="fuzz", model=None, recurrence="linear_attention", backend="sequential", shape=shape)
    return replace(made, **{"operand_source": "sigmoid/scalar", "pass_": "forward_backward", **more})


def begun(*classes: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Begin classes, and list the cases that are compiled and those that lanes take, in order."""
    opened, jobs = Opened(), Jobs()
    workers = Workers(cast(OpenRun, opened), jobs, cast(Serving, None))
    workers.begin(classes)
    assert not workers._refused
    return opened.compiled, [jobs.take()[0] for _ in range(sum(map(len, classes)))]


def test_lanes_take_a_case_of_each_class_in_turn() -> None:
    one, two = [case(T) for T in (1, 4, 5)], [case(T, K=7) for T in (1, 4)]
    _, taken = begun(one, [], two)
    assert taken == [one[0], two[0], one[1], two[1], one[2]]
    _, taken = begun(one, two)
    assert taken == [one[0], two[1], one[1], two[0], one[2]]


def test_each_form_of_a_class_is_compiled_ahead() -> None:
    alike = [case(7), case(9, call="dy:strided")]
    other = [case(1), case(8, packing="3,5"), case(8, call="stateless"), case(8, call="autocast")]
    compiled, _ = begun([alike[0], other[0], alike[1], *other[1:]])
    assert compiled == [alike[0], *other]
    compiled, _ = begun(alike, [case(7, K=3)])
    assert compiled == [alike[0], case(7, K=3)]


def test_what_was_expected_is_not_compiled_again() -> None:
    opened = Opened()
    workers = Workers(cast(OpenRun, opened), Jobs(), cast(Serving, None))
    workers.expect([[case(7)], [case(7, K=3)]])
    workers.begin([[case(7)], [case(7, K=3)], [case(7, K=4)]])
    assert opened.compiled == [case(7), case(7, K=3), case(7, K=4)]
