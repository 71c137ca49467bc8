"""Sizes of dimensions as a selection writes them: `T=1024:65536:x2`, `T=64:256:+64`, `B=1,2,4`, `H=16`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ssmperf.engine import registry
from ssmperf.engine.cases.shape import DIMENSIONS, LARGEST, Shape
from ssmperf.errors import UsageError

_RANGE = re.compile(r"(?P<first>\d{1,19}):(?P<last>\d{1,19}):(?P<step>[x+])(?P<by>\d{1,19})")
_FORMS = "NAME=8  NAME=1,2,4  NAME=1024:65536:x2  NAME=64:256:+64"
MOST_VALUES = 64
MOST_OWNERS = 6  # models whose dimensions a message lists


@dataclass(frozen=True, slots=True)
class Sizes:
    """A dimension and the sizes it takes, in order."""

    name: str
    sizes: tuple[int, ...]


def parse_one(text: str, owners: Sequence[str] = ()) -> Sizes:
    """Read one axis.

    owners: the selected models and recurrences, whose dimensions a message lists.

    Raises:
        UsageError: the dimension is unknown, a size is below 1, or a range does not grow or is too long.
    """
    name, equals, values = text.partition("=") if isinstance(text, str) else ("", "", "")
    if not equals or not values:
        raise UsageError(f"axis {text!r} is not understood (forms: {_FORMS})")
    if name not in DIMENSIONS:
        listed = dimensions_of(owners)
        text = f": {listed}" if listed else f" (valid: {', '.join(DIMENSIONS)})"
        raise UsageError(f"unknown axis {name!r}{text}")
    sizes = _range(text, values) if ":" in values else _list(text, values)
    if not all(1 <= size <= LARGEST for size in sizes):
        raise UsageError(f"axis {text!r:.80}: sizes must be at least 1 and below 2^63")
    return Sizes(name, tuple(dict.fromkeys(sizes)))


def parse_sizes(texts: Iterable[str], owners: Sequence[str] = ()) -> tuple[Sizes, ...]:
    """Read several axes; see `parse_one`. A dimension that is given twice takes the sizes of both.

    Raises:
        UsageError: as `parse_one`.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for axis in (parse_one(text, owners) for text in texts):
        sizes[axis.name] = sizes.get(axis.name, ()) + axis.sizes
    return tuple(Sizes(name, tuple(dict.fromkeys(values))) for name, values in sizes.items())


def dimensions_of(owners: Sequence[str]) -> str:
    """Say which dimensions models and recurrences have, as in "gla and retnet have B, T, H, K, V".

    Names that are not registered are left out, since they are refused for themselves.
    """
    by_dimensions: dict[tuple[str, ...], list[str]] = {}
    for owner in owners:
        try:
            name = registry.recurrence_of(owner)
            presets = {} if name == owner else registry.model(owner).presets
        except UsageError:
            continue
        presets = presets or registry.recurrence(name).presets
        letters = next((tuple(shape) for shapes in presets.values() for shape in shapes), ())
        if registry.recurrence(name).shares_heads:
            letters = tuple(
                each for letter in letters for each in ((letter, "G") if letter == "H" else letter)
            )
        by_dimensions.setdefault(letters, []).append(owner)
    return "; ".join(
        f"{_all_of(names)} {'has' if len(names) == 1 else 'have'} {', '.join(letters)}"
        for letters, names in by_dimensions.items()
    )


def _all_of(names: Sequence[str]) -> str:
    """List names with "and" before the last; of many, only the first."""
    if len(names) > MOST_OWNERS:
        return f"{', '.join(names[: MOST_OWNERS - 1])} and {len(names) - MOST_OWNERS + 1} others"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def spread(
    shapes: tuple[Shape, ...], axes: tuple[Sizes, ...], *, shares_heads: bool = False
) -> tuple[Shape, ...]:
    """Make one shape per combination of sizes; a shape that lacks a dimension ignores that axis.

    shares_heads: whether shapes with heads take an axis G, of key heads.
    """
    found = []
    for shape in shapes:
        letters = {*shape, *(("G",) if shares_heads and "H" in shape else ())}
        own = [axis for axis in axes if axis.name in letters]
        for sizes in itertools.product(*(axis.sizes for axis in own)):
            found.append(shape.with_(**{axis.name: size for axis, size in zip(own, sizes, strict=True)}))
    return tuple(dict.fromkeys(found))


def packed(shapes: tuple[Shape, ...], lengths: tuple[int, ...]) -> tuple[Shape, ...]:
    """Make the shapes of sequences of these lengths packed into one batch element, without repetition."""
    return tuple(dict.fromkeys(shape.with_(B=1, T=sum(lengths)) for shape in shapes))


def one_token(shapes: Iterable[Shape], *, grows: bool, axes: tuple[Sizes, ...] = ()) -> tuple[Shape, ...]:
    """Make the shapes of a decode step, T = 1, without repetition.

    grows: whether the state has a row for every step before it. Those are S, the shape's T unless an axis S
        says otherwise.
    """
    if not grows:
        return tuple(dict.fromkeys(shape.with_(T=1) for shape in shapes))
    after_all = tuple(Shape({**shape, "T": 1, "S": shape.get("S", shape["T"])}) for shape in shapes)
    return spread(after_all, tuple(axis for axis in axes if axis.name == "S"))


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
