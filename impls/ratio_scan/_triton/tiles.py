"""How a pass is cut into tiles and spans, by the widths of what it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """steps: of a tile, in registers, with the next tile's under way. channels: of a program."""

    steps: int
    channels: int
    warps: int


TILES = {
    ("forward", 4): Tiles(32, 32, 1),
    ("forward", 2): Tiles(32, 32, 1),
    ("backward", 4): Tiles(16, 32, 1),
    ("backward", 2): Tiles(16, 32, 1),
}


def tiles(pass_: str, itemsize: int) -> Tiles:
    """Tile sizes of a pass, `forward` or `backward`, over data of some bytes an element.

    A forward tile is a whole number of backward tiles, whose first states it leaves for them.
    """
    return TILES[pass_, itemsize]
