"""How a pass is cut into tiles and spans, by the widths of what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmperf.authoring import Table


@dataclass(frozen=True, slots=True)
class Tiles:
    """steps: per tile, in registers, while the next tile loads. channels: per program.

    stages: tiles held in shared memory where the device can bring them there and one span of whole tiles
    is walked; 0: always the next one, in registers.
    """

    steps: int
    channels: int
    warps: int
    stages: int = 0

    def __post_init__(self) -> None:
        if any(size < 1 or size & (size - 1) for size in (self.steps, self.channels, self.warps)):
            raise ValueError("sizes of a tile are powers of two")
        if self.stages not in (0, 2, 3, 4, 5, 6):
            raise ValueError("stages are 0, or from 2 to 6")


_TILES = {
    ("forward", 4): Tiles(32, 32, 1),
    ("forward", 2): Tiles(32, 32, 1, stages=4),
    ("backward", 4): Tiles(16, 32, 1),
    ("backward", 2): Tiles(16, 32, 1, stages=4),
}


def candidates(pass_: str, itemsize: int) -> Iterator[Tiles]:
    cut = _TILES[pass_, itemsize]
    yield from (replace(cut, stages=stages) for stages in (0, 3, 4, 5) if stages != cut.stages)
    for steps in (cut.steps // 2, cut.steps, 2 * cut.steps):
        for factor, warps in ((1, 1), (2, 1), (2, 2)):
            yield replace(cut, steps=steps, channels=cut.channels * factor, warps=cut.warps * warps)


def fits(cut: Tiles, pass_: str, itemsize: int) -> bool:
    """A forward tile is a whole number of backward tiles, whose first states it leaves for them."""
    forward = cut if pass_ == "forward" else TILES.row(("forward", itemsize))
    backward = cut if pass_ == "backward" else TILES.row(("backward", itemsize))
    return forward.steps % backward.steps == 0


TILES = Table("ratio_scan/triton", Tiles, _TILES, candidates, fits)


def tiles(pass_: str, itemsize: int) -> Tiles:
    """Tile sizes of a pass, `forward` or `backward`, over data of some bytes per element."""
    return TILES[pass_, itemsize]
