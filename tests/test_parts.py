"""The tests are divided into the part that runs each time and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from support.parts import of_part


@dataclass(frozen=True)
class Item:
    """A test as pytest collects it, with the keywords of its mark `slow`, if it has one."""

    name: str
    slow: tuple[tuple[str, Any], ...] | None = None

    @property
    def nodeid(self) -> str:
        return f"tests/test_some.py::{self.name}"

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return None if self.slow is None else SimpleNamespace(name=name, kwargs=dict(self.slow))


SWEEP = [
    Item(f"test_sweep[{size}-{kind}-{flag}]")
    for size, kind, flag in product("1234", "abc", ["True", "False"])
]
MOSTLY_SLOW = [
    Item(f"test_some[{row}]", (("but", ("scan", "key-*")),)) for row in ("scan", "rnn", "key-1", "key-2")
]
ALONE, SLOW = Item("test_alone"), Item("test_slow", ())


def names(part: str, items: list[Any]) -> list[str]:
    return [item.name for item in of_part(part, items)[0]]


def test_every_test_is_in_one_part() -> None:
    items: list[Any] = [*SWEEP, *MOSTLY_SLOW, ALONE, SLOW]
    assert sorted(names("quick", items) + names("rest", items)) == sorted(item.name for item in items)
    assert names("rest", items) == [item.name for item in of_part("quick", items)[1]]


def test_a_few_rows_of_a_sweep_show_each_value() -> None:
    chosen = names("quick", SWEEP)
    assert len(chosen) <= len(SWEEP) / 2
    for value in ("1", "2", "3", "4", "a", "b", "c", "True", "False"):
        assert any(value in name[len("test_sweep") :] for name in chosen)


def test_slow_tests_are_of_the_rest_but_for_the_rows_that_are_named() -> None:
    assert names("quick", [ALONE, SLOW]) == ["test_alone"]
    assert names("rest", MOSTLY_SLOW) == ["test_some[rnn]"]


def test_a_row_that_is_not_there_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="has no row key-"):
        names("quick", MOSTLY_SLOW[:2])
