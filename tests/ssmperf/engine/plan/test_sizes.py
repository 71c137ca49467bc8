"""Axes of a selection."""

from __future__ import annotations

import pytest

from ssmperf import Shape, UsageError
from ssmperf.engine.plan.sizes import Sizes, parse_one, parse_sizes, spread


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("T=8", (8,)),
        ("T=8,2,8", (8, 2)),
        ("T=1024:65536:x2", (1024, 2048, 4096, 8192, 16384, 32768, 65536)),
        ("T=10:100:x3", (10, 30, 90)),
        ("B=1:4:+1", (1, 2, 3, 4)),
    ],
)
def test_forms(text: str, sizes: tuple[int, ...]) -> None:
    axis = parse_one(text)
    assert (axis.name, axis.sizes) == (text[0], sizes)


@pytest.mark.parametrize(
    "text",
    [
        "T",
        "T=",
        "=4",
        "Q=4",
        "T=0",
        "T=-4",
        "T=a",
        "T=1.5",
        "T=8:4:x2",
        "T=1:8:x1",
        "T=1:8:+0",
        "T=1:8",
        "T=0:8:x2",
        "T=1:100000:+1",
        "T=4,0",
    ],
)
def test_bad_axes_are_one_line_errors(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_one(text)
    assert "\n" not in str(error.value)


def test_a_dimension_given_twice_takes_the_sizes_of_both() -> None:
    assert parse_sizes(["T=8", "C=2", "T=16,8"]) == (Sizes("T", (8, 16)), Sizes("C", (2,)))


def test_spread_replaces_sizes_and_drops_duplicates() -> None:
    shapes = (Shape(B=1, T=4, C=2), Shape(B=1, T=8, C=2))
    spread_ = spread(shapes, (parse_one("T=16,32"), parse_one("H=3")))
    assert spread_ == (Shape(B=1, T=16, C=2), Shape(B=1, T=32, C=2))
