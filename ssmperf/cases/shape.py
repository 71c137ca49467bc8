"""Shape: operand dimensions by letter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ssmperf.errors import UsageError

# S: steps before the call, of which a state that grows has a row each
DIMENSIONS = ("B", "T", "C", "H", "K", "V", "D", "N", "S")

LARGEST = 2**63 - 1  # size of a dimension


class Shape(Mapping[str, int]):
    """Operand dimensions by letter, in the project's order (B, T, C, H, K, V, D, N, S).

    Raises:
        UsageError: a dimension letter is unknown, or a size is below 1.
    """

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> None:
        merged = {**(sizes or {}), **named}
        for letter, size in merged.items():
            if letter not in DIMENSIONS:
                raise UsageError(f"unknown dimension {letter!r} (valid: {', '.join(DIMENSIONS)})")
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
                raise UsageError(f"dimension {letter} must be a positive integer, got {size!r:.80}")
        self._sizes = {letter: merged[letter] for letter in DIMENSIONS if letter in merged}

    def __getitem__(self, letter: str) -> int:
        return self._sizes[letter]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __hash__(self) -> int:
        return hash(tuple(self._sizes.items()))

    def __str__(self) -> str:
        return " ".join(f"{letter}{size}" for letter, size in self._sizes.items())

    def __repr__(self) -> str:
        return f"Shape({', '.join(f'{letter}={size}' for letter, size in self._sizes.items())})"

    def with_(self, **sizes: int) -> Shape:
        """Return a shape with some sizes replaced. Raises UsageError for a letter that the shape lacks."""
        for letter in sizes:
            if letter not in self._sizes:
                raise UsageError(f"axis {letter!r} is not in this shape (it has {', '.join(self._sizes)})")
        return Shape({**self._sizes, **sizes})
