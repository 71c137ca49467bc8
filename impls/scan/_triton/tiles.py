"""How a pass is cut into tiles, by what it reads: measured on an H200 (docs/kernels.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile of steps·runs steps × channels.

    steps: consecutive steps that a thread holds (R). runs: of them, side by side in a tile.
    channels: of a program. vector: of them next to each other in a thread, 8 to 32 bytes of a stream.
    registers: at most, of a thread; None leaves it to the compiler.
    """

    steps: int
    runs: int
    channels: int
    vector: int
    warps: int
    stages: int
    registers: int | None = None


# Rows: widths of gates and data. A strand is walked by one program; a chain has a program for each tile.
STRAND = {
    ("forward", "float32"): Tiles(8, 4, 32, 4, 1, 3),
    ("forward", "mixed"): Tiles(4, 8, 32, 8, 1, 4),
    ("forward", "half"): Tiles(8, 8, 32, 8, 1, 3),
    ("forward", "complex"): Tiles(8, 8, 32, 2, 4, 3),
    ("backward", "float32"): Tiles(4, 8, 64, 8, 2, 3),
    ("backward", "mixed"): Tiles(8, 4, 32, 4, 1, 3),
    ("backward", "half"): Tiles(4, 16, 64, 8, 4, 3),
    ("backward", "complex"): Tiles(4, 8, 32, 2, 4, 2),
}
# 168 registers leave room for three programs of four warps on a multiprocessor, 128 for four.
CHAIN = {
    ("forward", "float32"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "mixed"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "half"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "complex"): Tiles(8, 8, 32, 2, 4, 1, 128),
    ("backward", "float32"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "mixed"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "half"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "complex"): Tiles(8, 8, 32, 2, 4, 1, 168),
}


def tiles(pass_: str, widths: str, *, chained: bool) -> Tiles:
    """Tile sizes of a pass, `forward` or `backward`, over data of some widths:

    `float32`, `half`, `mixed` (float32 gates, half data) or `complex`.
    """
    return (CHAIN if chained else STRAND)[pass_, widths]
