"""How a pass is cut into tiles, by what it reads: measured on an H200 (docs/kernels/scan.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmperf.authoring import Table


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile of steps·runs steps × channels.

    steps: consecutive steps that a thread holds (R). runs: side by side in a tile.
    channels: per program. vector: adjacent channels in a thread, 8 to 32 bytes of a stream.
    registers: at most, per thread; None leaves it to the compiler.
    """

    steps: int
    runs: int
    channels: int
    vector: int
    warps: int
    stages: int
    registers: int | None = None

    def __post_init__(self) -> None:
        powers = (self.runs, self.channels, self.vector, self.warps)
        if any(size < 1 or size & (size - 1) for size in powers) or min(self.steps, self.stages) < 1:
            raise ValueError("runs, channels, vector and warps are powers of two, steps and stages above 0")


# Rows: widths of gates and data. A strand is walked by one program; a chain has a program for each tile.
_STRANDS = {
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
_CHAINS = {
    ("forward", "float32"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "mixed"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "half"): Tiles(8, 16, 32, 4, 4, 1, 128),
    ("forward", "complex"): Tiles(8, 8, 32, 2, 4, 1, 128),
    ("backward", "float32"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "mixed"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "half"): Tiles(8, 16, 32, 4, 4, 1, 168),
    ("backward", "complex"): Tiles(8, 8, 32, 2, 4, 1, 168),
}

VECTORS = {"float32": (2, 8), "mixed": (4, 8), "half": (4, 16), "complex": (1, 4)}  # least and most
REGISTERS = (96, 128, 168, None)


def neighbours(cut: Tiles, widths: str) -> Iterator[Tiles]:
    """Tiles that differ in one size. vector, warps and channels determine runs: a thread has one."""
    least, most = VECTORS[widths]
    changed = [replace(cut, steps=steps) for steps in (cut.steps // 2, 2 * cut.steps)]
    changed += [replace(cut, vector=vector) for vector in (cut.vector // 2, 2 * cut.vector) if vector]
    changed += [replace(cut, warps=warps) for warps in (cut.warps // 2, 2 * cut.warps) if warps]
    changed += [replace(cut, channels=channels) for channels in (cut.channels // 2, 2 * cut.channels)]
    for each in changed:
        runs = 32 * each.warps * each.vector // each.channels
        if 2 <= each.steps <= 16 and least <= each.vector <= most and each.warps <= 8 and 2 <= runs <= 32:
            yield replace(each, runs=runs)


def strands(pass_: str, widths: str) -> Iterator[Tiles]:
    cut = _STRANDS[pass_, widths]
    yield from neighbours(cut, widths)
    yield from (replace(cut, stages=stages) for stages in (cut.stages - 1, cut.stages + 1))


def chains(pass_: str, widths: str) -> Iterator[Tiles]:
    cut = _CHAINS[pass_, widths]
    yield from neighbours(cut, widths)
    yield from (replace(cut, registers=registers) for registers in REGISTERS)


STRAND = Table("scan/triton/strand", Tiles, _STRANDS, strands)
CHAIN = Table("scan/triton/chain", Tiles, _CHAINS, chains)


def tiles(pass_: str, widths: str, *, chained: bool) -> Tiles:
    """Tile sizes of a pass, `forward` or `backward`, over data of some widths:

    `float32`, `half`, `mixed` (float32 gates, half data) or `complex`.
    """
    return (CHAIN if chained else STRAND)[pass_, widths]


@dataclass(frozen=True, slots=True)
class RowTiles:
    """With time innermost: a tile of steps·runs steps of one row, a channel of a batch element.

    steps: adjacent ones that a thread composes itself, 8 to 32 bytes of a stream. runs: per tile.
    """

    steps: int
    runs: int
    warps: int
    stages: int
    registers: int | None = None

    def __post_init__(self) -> None:
        powers = (self.steps, self.runs, self.warps)
        if any(size < 1 or size & (size - 1) for size in powers) or self.stages < 1:
            raise ValueError("steps, runs and warps are powers of two, stages above 0")


# One warp per row; where rows are too few to fill the device, more warps per row and longer tiles.
_ROWS = {
    ("forward", "float32"): RowTiles(4, 64, 1, 3),
    ("forward", "mixed"): RowTiles(8, 32, 1, 3),
    ("forward", "half"): RowTiles(8, 64, 1, 3),
    ("forward", "complex"): RowTiles(4, 32, 1, 3),
    ("backward", "float32"): RowTiles(4, 64, 1, 3),
    ("backward", "mixed"): RowTiles(4, 64, 1, 3),
    ("backward", "half"): RowTiles(8, 64, 1, 3),
    ("backward", "complex"): RowTiles(4, 32, 1, 3),
}
_FEW_ROWS = {
    ("forward", "float32"): RowTiles(4, 512, 4, 3),
    ("forward", "mixed"): RowTiles(8, 256, 4, 3),
    ("forward", "half"): RowTiles(8, 256, 4, 3),
    ("forward", "complex"): RowTiles(4, 128, 4, 3),
    ("backward", "float32"): RowTiles(4, 256, 4, 3),
    ("backward", "mixed"): RowTiles(4, 256, 4, 3),
    ("backward", "half"): RowTiles(8, 256, 4, 3),
    ("backward", "complex"): RowTiles(4, 128, 4, 3),
}


ADJACENT = {"float32": (4,), "mixed": (4, 8), "half": (8,), "complex": (2, 4)}  # 16 bytes of a stream


def beside(cut: RowTiles, widths: str) -> Iterator[RowTiles]:
    """Tiles of half and twice the length, with other steps per thread, or with other stages."""
    yield from (replace(cut, steps=steps) for steps in ADJACENT[widths])
    yield from (replace(cut, runs=runs) for runs in (cut.runs // 2, 2 * cut.runs) if runs >= 32 * cut.warps)
    yield from (replace(cut, stages=stages) for stages in (2, 4))


def rows(pass_: str, widths: str) -> Iterator[RowTiles]:
    yield from beside(_ROWS[pass_, widths], widths)
    yield replace(_ROWS[pass_, widths], runs=128, warps=4)


def few_rows(pass_: str, widths: str) -> Iterator[RowTiles]:
    cut = _FEW_ROWS[pass_, widths]
    yield from beside(cut, widths)
    yield from (replace(cut, runs=cut.runs * warps // cut.warps, warps=warps) for warps in (2, 8))


ROWS = Table("scan/triton/rows", RowTiles, _ROWS, rows)
FEW_ROWS = Table("scan/triton/few-rows", RowTiles, _FEW_ROWS, few_rows)


def row_tiles(pass_: str, widths: str, *, few: bool) -> RowTiles:
    """Like `tiles`, with time innermost."""
    return (FEW_ROWS if few else ROWS)[pass_, widths]
