"""Patterns: the shapes that a recurrence's operands may have, in letters.

A pattern is a text: alternatives between bars, the axes of each between spaces. An axis is a size (`3`), a
letter (`C`), a multiple of one (`3C`), or one more than it (`S+1`): `B T H | B T H K`, `3C I | 4C I`. With
`broadcast` in front, a shape must broadcast to the one that follows: `broadcast B T C`. Each letter has one
size in all operands of a call. The first operand that has it in all of its alternatives determines it, so
operands are listed in that order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BROADCAST = "broadcast "
_AXIS = re.compile(r"(?P<factor>\d*)(?P<letter>[A-Z]?)(?:\+(?P<more>\d+))?")


@dataclass(frozen=True, slots=True)
class AxisSize:
    """The size of an axis: a multiple of a letter plus a number, or a number if there is no letter."""

    text: str
    letter: str
    factor: int
    more: int

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """Give the size that it must have; None if the letter's is not known."""
        if not self.letter:
            return self.more
        return self.factor * sizes[self.letter] + self.more if self.letter in sizes else None

    def letters_size(self, size: int) -> int | None:
        """Give the letter's size if the axis has this one; None if no size of the letter gives it."""
        quotient, rest = divmod(size - self.more, self.factor)
        return quotient if rest == 0 and quotient >= 0 else None


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shapes that one operand may have. broadcast: whether it may be any that broadcasts to the first."""

    alternatives: tuple[tuple[AxisSize, ...], ...]
    broadcast: bool = False

    def match(self, shape: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Match a shape; return the sizes of letters that it determines, or None if it does not fit."""
        if self.broadcast:
            return {} if _broadcasts(shape, self.alternatives[0], sizes) else None
        for axes in self.alternatives:
            found = _matched(axes, shape, {**sizes}, self._own)
            if found is not None:
                return found
        return None

    def shown(self, sizes: Mapping[str, int]) -> str:
        """Describe the required shape, with the sizes that are known."""
        must = "must broadcast to " if self.broadcast else "must be "
        text = must + _either([_tuple(axis.text for axis in axes) for axes in self.alternatives])
        if len(self.alternatives) == 1:
            (axes,) = self.alternatives
            known = [axis.size(sizes) for axis in axes]
            if all(size is None for size in known):
                return text
            values = (axis.text if size is None else size for axis, size in zip(axes, known, strict=True))
            return f"{text} = {_tuple(values)}"
        letters = dict.fromkeys(axis.letter for axes in self.alternatives for axis in axes if axis.letter)
        where = ", ".join(f"{letter} = {sizes[letter]}" for letter in letters if letter in sizes)
        return f"{text}, where {where}" if where else text

    @property
    def _own(self) -> frozenset[str]:
        """The letters that all alternatives have, which this operand may therefore determine."""
        each = [{axis.letter for axis in axes if axis.letter} for axes in self.alternatives]
        return frozenset(set.intersection(*each))


@functools.cache
def parse(text: str) -> Pattern:
    """Read a pattern.

    Raises:
        ValueError: it is not understood.
    """
    broadcast = text.startswith(BROADCAST)
    alternatives = []
    for part in text.removeprefix(BROADCAST).split("|"):
        axes = tuple(map(_parse_axis, part.split()))
        if not axes:
            raise ValueError(f"the pattern {text!r} has an alternative without axes")
        alternatives.append(axes)
    if broadcast and len(alternatives) > 1:
        raise ValueError(f"the pattern {text!r} broadcasts to one shape only")
    return Pattern(tuple(alternatives), broadcast)


def misfit(patterns: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Say which operand's shape does not fit the patterns and what it must be, or return None.

    patterns, shapes: by operand; those without a pattern or without a shape are left out.
    """
    return fitted(patterns, shapes)[1]


def fitted(
    patterns: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, int], str | None]:
    """Find the sizes of the letters up to the first shape that does not fit, and say what it must be."""
    sizes: dict[str, int] = {}
    for name, text in patterns.items():
        if name not in shapes:
            continue
        pattern, shape = parse(text), tuple(shapes[name])
        found = pattern.match(shape, sizes)
        if found is None:
            swapped = _exchanged(pattern, shape, sizes)
            guess = f": {swapped} look exchanged" if swapped else ""
            return sizes, f"{name} is {_tuple(shape)}, {pattern.shown(sizes)}{guess}"
        sizes |= found
    return sizes, None


def _parse_axis(text: str) -> AxisSize:
    match = _AXIS.fullmatch(text)
    if match is None or not (match["factor"] or match["letter"]):
        raise ValueError(f"{text!r} is no size of an axis (such as B, 3, 3C or S+1)")
    more = int(match["more"] or 0)
    if not match["letter"]:
        return AxisSize(text, "", 1, int(match["factor"]) + more)
    return AxisSize(text, match["letter"], int(match["factor"] or 1), more)


def _matched(
    axes: Sequence[AxisSize], shape: Sequence[int], sizes: dict[str, int], own: Iterable[str]
) -> dict[str, int] | None:
    if len(axes) != len(shape):
        return None
    found: dict[str, int] = {}
    for axis, size in zip(axes, shape, strict=True):
        must = axis.size(sizes)
        if must is None and axis.letter in own:
            letters = axis.letters_size(size)
            if letters is None:
                return None
            found[axis.letter] = sizes[axis.letter] = letters
        elif must != size:
            return None
    return found


def _broadcasts(shape: Sequence[int], axes: Sequence[AxisSize], sizes: Mapping[str, int]) -> bool:
    if len(shape) > len(axes):
        return False
    musts = (axis.size(sizes) for axis in axes[len(axes) - len(shape) :])
    return all(size == 1 or must is None or size == must for size, must in zip(shape, musts, strict=True))


def _exchanged(pattern: Pattern, shape: Sequence[int], sizes: Mapping[str, int]) -> str | None:
    """Name two axes of a shape that look exchanged."""
    for axes in pattern.alternatives:
        musts = [axis.size(sizes) for axis in axes]
        different = [at for at, must in enumerate(musts) if len(shape) == len(axes) and shape[at] != must]
        if len(different) == 2 and None not in musts:
            first, second = different
            if shape[first] == musts[second] and shape[second] == musts[first]:
                return f"{axes[first].text} and {axes[second].text}"
    return None


def _tuple(axes: Iterable[Any]) -> str:
    texts = list(map(str, axes))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _either(texts: Sequence[str]) -> str:
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
