"""Shape: operand dimensions by letter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ssmperf.errors import UsageError

# G: key heads, where they are fewer than heads. S: steps before the call, of which a state that grows has a
# row each
DIMENSIONS = ("B", "T", "C", "H", "G", "K", "V", "D", "N", "S")
RUN_TIME = ("B", "T", "H", "G", "S")  # those that are no part of what kernels are compiled for
# One prime per letter, so that the size of an axis tells its letter, even as a small multiple. G divides H.
PRIMES = {"B": 5, "T": 7, "C": 11, "H": 13, "K": 17, "V": 19, "D": 23, "N": 29, "S": 41}

LARGEST = 2**63 - 1  # size of a dimension


class Shape(Mapping[str, int]):
    """Operand dimensions by letter, in the project's order (B, T, C, H, G, K, V, D, N, S).

    G is left out where it equals H.

    Raises:
        UsageError: a dimension letter is unknown, a size is below 1, or G does not divide H.
    """

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Mapping[str, int] | None = None, /, **named: int) -> None:
        merged = {**(sizes or {}), **named}
        for letter, size in merged.items():
            if letter not in DIMENSIONS:
                raise UsageError(f"unknown dimension {letter!r} (valid: {', '.join(DIMENSIONS)})")
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
                raise UsageError(f"dimension {letter} must be a positive integer, got {size!r:.80}")
        if "G" in merged:
            heads, shared = merged.get("H"), merged["G"]
            if heads is None or heads % shared:
                got = f"H = {heads}" if heads else "no H"
                raise UsageError(f"G, the number of key heads, must divide H: got G = {shared} and {got}")
        self._sizes = {
            letter: merged[letter]
            for letter in DIMENSIONS
            if letter in merged and not (letter == "G" and merged["G"] == merged["H"])
        }

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
        """Return a shape with some sizes replaced; G may be new where there is an H.

        Raises:
            UsageError: the shape lacks a letter.
        """
        for letter in sizes:
            if letter not in self._sizes and not (letter == "G" and "H" in self._sizes):
                raise UsageError(f"axis {letter!r} is not in this shape (it has {', '.join(self._sizes)})")
        return Shape({**self._sizes, **sizes})


def size_problem(letter: str, legal: Sequence[int], shape: Mapping[str, int]) -> str | None:
    """Say why a shape's size of one dimension is refused, or return None; so also if it has no such one."""
    size = shape.get(letter)
    return None if size is None or size in legal else f"{letter} = {size} (it takes {in_words(legal)})"


def in_words(legal: Sequence[int]) -> str:
    """Write sizes as a span or its multiples, or one by one."""
    if not isinstance(legal, range) or len(legal) < 3:
        return ", ".join(map(str, legal))
    if legal.step == 1:
        return f"{legal[0]} to {legal[-1]}"
    if legal[0] == legal.step:
        return f"multiples of {legal.step} up to {legal[-1]}"
    return f"{legal[0]}, {legal[1]} and so on to {legal[-1]}"


def check_sizes(owner: str, sizes: Mapping[str, Sequence[int]]) -> None:
    """Raise UsageError unless sizes map letters of dimensions to sizes above 0, at least one each."""
    if not isinstance(sizes, Mapping):
        raise UsageError(f"{owner}: sizes must map letters to sizes, got {sizes!r}")
    for letter, legal in sizes.items():
        if letter not in DIMENSIONS:
            known = ", ".join(DIMENSIONS)
            raise UsageError(f"{owner}: unknown dimension {letter!r} in sizes (known: {known})")
        numbers = isinstance(legal, (range, tuple, list))
        if not numbers or not legal or not all(isinstance(size, int) and size > 0 for size in legal):
            raise UsageError(f"{owner}: sizes of {letter} must be numbers above 0, got {legal!r}")
