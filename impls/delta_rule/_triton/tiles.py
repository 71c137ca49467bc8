"""Block sizes of the kernels, by the widths of operands and keys. No GPU has timed them yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmperf.authoring import Table


@dataclass(frozen=True, slots=True)
class Tiles:
    """Block sizes of the kernels.

    walk: width of the strip of values with which a program walks through the chunks of a head. walk_warps,
    walk_stages: of that program.
    key, value: widths of the strip of keys that a program of the gradients owns, and of the values that it
    sums over at once. grad_warps: of that program.
    inverse_key: width of the keys that the products of the inverse sum over at once. inverse_warps: of that
    program.
    """

    walk: int = 64
    walk_warps: int = 4
    walk_stages: int = 2
    key: int = 64
    value: int = 64
    grad_warps: int = 8
    inverse_key: int = 64
    inverse_warps: int = 2

    def __post_init__(self) -> None:
        widths = (self.walk, self.key, self.value, self.inverse_key)
        powers = (*widths, self.walk_warps, self.grad_warps, self.inverse_warps)
        if any(size < 1 or size & (size - 1) for size in powers) or min(widths) < 16 or self.walk_stages < 1:
            raise ValueError("sizes are powers of two, widths at least 16, and stages above 0")


WIDTHS = (64, 128, 256)
CURATED = {
    **{("half", K): Tiles(walk=64 if K <= 128 else 32) for K in WIDTHS},
    **{
        ("float32", K): Tiles(walk=32, walk_warps=8, walk_stages=1, value=32, inverse_key=32, inverse_warps=2)
        for K in WIDTHS
    },
}
WALKS = ((16, 4, 2), (32, 4, 1), (32, 4, 2), (32, 4, 3), (64, 4, 1), (64, 4, 3), (64, 8, 2), (128, 8, 1))
GRADIENTS = ((64, 64, 4), (64, 32, 8), (128, 32, 8), (128, 64, 8))


def candidates(widths: str, K: int) -> Iterator[Tiles]:
    """List the configurations that differ from the curated one in one kernel."""
    cut = CURATED[widths, K]
    for width, warps, stages in WALKS:
        yield replace(cut, walk=width, walk_warps=warps, walk_stages=stages)
    for key, value, warps in GRADIENTS:
        yield replace(cut, key=key, value=value, grad_warps=warps)
    yield from (replace(cut, inverse_warps=warps) for warps in (1, 4))
    yield from (replace(cut, inverse_key=key) for key in (16, 128) if key <= K)


TILES = Table("delta_rule/triton", Tiles, CURATED, candidates)


def tiles(K: int, *, half: bool) -> Tiles:
    """Block sizes for a width of keys."""
    return TILES["half" if half else "float32", next((width for width in WIDTHS if width >= K), WIDTHS[-1])]


def width_of(size: int, most: int) -> int:
    """Width of a tile of a dimension: a power of two, at least what a product takes."""
    return max(16, min(most, 1 << (size - 1).bit_length()))
