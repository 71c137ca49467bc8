"""Block sizes of the kernels, by the widths of operands and keys and the number of heads."""

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
    sums over at once. grad_warps, grad_stages: of that program.
    inverse_key: width of the keys that the products of the inverse sum over at once. inverse_warps: of that
    program.
    """

    walk: int = 64
    walk_warps: int = 4
    walk_stages: int = 3
    back_stages: int = 2
    key: int = 64
    value: int = 64
    grad_warps: int = 8
    grad_stages: int = 2
    inverse_key: int = 32
    inverse_warps: int = 1

    def __post_init__(self) -> None:
        widths = (self.walk, self.key, self.value, self.inverse_key)
        powers = (*widths, self.walk_warps, self.grad_warps, self.inverse_warps)
        if (
            any(size < 1 or size & (size - 1) for size in powers)
            or min(widths) < 16
            or min(self.walk_stages, self.back_stages, self.grad_stages) < 1
        ):
            raise ValueError("sizes are powers of two, widths at least 16, stages above 0")


WIDTHS = (64, 128, 256)
HEADS = {"few": 0, "many": 128}  # from so many heads of all sequences on, programs fill the device otherwise
HALF = {
    ("few", 64): Tiles(key=64),
    ("few", 128): Tiles(key=128),
    ("few", 256): Tiles(walk=32, walk_warps=8, walk_stages=2, key=128),
    ("many", 64): Tiles(key=64, walk=128, walk_warps=8, walk_stages=2),
    ("many", 128): Tiles(key=128, walk=128, walk_warps=8, walk_stages=2),
    ("many", 256): Tiles(walk=32, walk_warps=8, walk_stages=2, key=128),
}
WIDE = Tiles(walk=32, walk_warps=8, walk_stages=1, back_stages=1, key=64, value=32, grad_stages=1)
CURATED = {
    **{("half", *case): cut for case, cut in HALF.items()},
    **{("float32", heads, K): WIDE for heads in HEADS for K in WIDTHS},
}
WALKS = ((32, 4, 2), (64, 4, 2), (64, 4, 3), (128, 8, 2))
GRADIENTS = ((64, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 4, 1))


def candidates(widths: str, heads: str, K: int) -> Iterator[Tiles]:
    """List the configurations that differ from the curated one in one kernel."""
    cut = CURATED[widths, heads, K]
    for width, warps, stages in WALKS:
        yield replace(cut, walk=width, walk_warps=warps, walk_stages=stages)
    for key, value, warps, stages in GRADIENTS:
        yield replace(cut, key=key, value=value, grad_warps=warps, grad_stages=stages)
    yield from (replace(cut, inverse_key=key, inverse_warps=warps) for key, warps in ((16, 1), (64, 2)))


TILES = Table("delta_rule/triton", Tiles, CURATED, candidates)


def tiles(K: int, heads: int, *, half: bool) -> Tiles:
    """Block sizes for a width of keys and a number of heads of all sequences."""
    number = max((name for name, least in HEADS.items() if heads >= least), key=HEADS.__getitem__)
    width = next((width for width in WIDTHS if width >= K), WIDTHS[-1])
    return TILES["half" if half else "float32", number, width]


def width_of(size: int, most: int) -> int:
    """Width of a tile of a dimension: a power of two, at least what a product takes."""
    return max(16, min(most, 1 << (size - 1).bit_length()))
