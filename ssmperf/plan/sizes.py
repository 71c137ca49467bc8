"""Sizes of dimensions as a selection writes them: `T=1024:65536:x2`, `T=64:256:+64`, `B=1,2,4`, `H=16`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ssmperf.cases.shape import DIMENSIONS, Shape
from ssmperf.errors import UsageError

_RANGE = re.compile(r"(?P<first>\d+):(?P<last>\d+):(?P<step>[x+])(?P<by>\d+)")
_FORMS = "NAME=8  NAME=1,2,4  NAME=1024:65536:x2  NAME=64:256:+64"
MOST_VALUES = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """A dimension and the sizes it takes, in order."""

    name: str
    sizes: tuple[int, ...]


def parse_one(text: str) -> Sizes:
    """Read one axis.

    Raises:
        UsageError: the dimension is unknown, a size is below 1, or a range does not grow or is too long.
    """
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise UsageError(f"axis {text!r} is not understood (forms: {_FORMS})")
    if name not in DIMENSIONS:
        raise UsageError(f"unknown axis {name!r} (valid: {', '.join(DIMENSIONS)})")
    sizes = _range(text, values) if ":" in values else _list(text, values)
    if any(size < 1 for size in sizes):
        raise UsageError(f"axis {text!r}: sizes must be at least 1")
    return Sizes(name, tuple(dict.fromkeys(sizes)))


def parse_sizes(texts: Iterable[str]) -> tuple[Sizes, ...]:
    """Read several axes. A dimension that is given twice takes the sizes of both. Raises UsageError."""
    sizes: dict[str, tuple[int, ...]] = {}
    for axis in map(parse_one, texts):
        sizes[axis.name] = sizes.get(axis.name, ()) + axis.sizes
    return tuple(Sizes(name, tuple(dict.fromkeys(values))) for name, values in sizes.items())


def spread(shapes: tuple[Shape, ...], axes: tuple[Sizes, ...]) -> tuple[Shape, ...]:
    """Make one shape per combination of sizes; a shape that lacks a dimension ignores that axis."""
    for axis in axes:
        shapes = tuple(
            shape.with_(**{axis.name: size}) if axis.name in shape else shape
            for shape in shapes
            for size in axis.sizes
        )
    return tuple(dict.fromkeys(shapes))


def _list(text: str, values: str) -> list[int]:
    try:
        return [int(value) for value in values.split(",")]
    except ValueError:
        raise UsageError(f"axis {text!r} is not understood (forms: {_FORMS})") from None


def _range(text: str, values: str) -> list[int]:
    match = _RANGE.fullmatch(values)
    if not match:
        raise UsageError(f"axis {text!r} is not understood (forms: {_FORMS})")
    size, last, by = int(match["first"]), int(match["last"]), int(match["by"])
    if size < 1 or last < size:
        raise UsageError(f"axis {text!r}: the range must start at 1 or above and not end before its start")
    if by < (2 if match["step"] == "x" else 1):
        raise UsageError(f"axis {text!r}: the step must grow the size (x2 or more, +1 or more)")
    sizes = []
    while size <= last:
        sizes.append(size)
        if len(sizes) > MOST_VALUES:
            raise UsageError(f"axis {text!r} has more than {MOST_VALUES} values: use a larger step")
        size = size * by if match["step"] == "x" else size + by
    return sizes
