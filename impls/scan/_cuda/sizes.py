"""How a pass is cut into tiles, and which of the kernels' variants an operand set takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ssmperf.authoring import Table

from ..._cuda.program import Program

SOURCES = Path(__file__).parent
BANKS_BYTES = 128
WIDTHS = {"float": 4, "bfloat16": 2, "float16": 2, "complex64": 8}


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile of steps·runs steps × vector·lanes channels.

    steps: consecutive steps of a run. warps: of a block. vector: adjacent channels of a thread.
    lanes: of a warp, that share a run, a power of two; the others of its 32 hold its other runs.
    slots: tiles of a block in shared memory.
    blocks: on a multiprocessor, which bounds the registers.
    group: tiles of a chain that look at one another's maps.
    """

    steps: int
    warps: int
    vector: int
    lanes: int
    slots: int
    blocks: int
    group: int = 16

    def __post_init__(self) -> None:
        small = min(self.steps, self.warps, self.vector, self.lanes, self.slots, self.blocks, self.group) < 1
        if small or 32 % self.lanes or self.vector not in (1, 2, 4, 8) or self.threads % self.channels:
            raise ValueError("lanes divide 32, vector is 1, 2, 4 or 8, and threads share the channels evenly")

    @property
    def runs(self) -> int:
        return self.warps * 32 // self.lanes

    @property
    def length(self) -> int:
        return self.steps * self.runs

    @property
    def channels(self) -> int:
        return self.lanes * self.vector

    @property
    def threads(self) -> int:
        return 32 * self.warps


# Rows: pass, schedule, and bytes of a gate and of a number of the data (8: complex64). From sweeps on an H200
# at (8, 2048, 1536), (8, 16384, 1536) and (1, 131072, 1536); of half gates over wider data, by likeness. Rows
# of 128 or 256 bytes use memory best, and a chain does best with few, long tiles in one slot.
_TABLE = {
    ("forward", "strand", 4, 8): Tiles(16, 8, 1, 32, 3, 1),
    ("forward", "strand", 4, 4): Tiles(8, 2, 2, 32, 4, 4),
    ("forward", "strand", 4, 2): Tiles(8, 2, 4, 16, 3, 5),
    ("forward", "strand", 2, 8): Tiles(16, 8, 1, 32, 3, 1),
    ("forward", "strand", 2, 4): Tiles(8, 2, 4, 16, 3, 5),
    ("forward", "strand", 2, 2): Tiles(8, 4, 4, 16, 2, 4),
    ("backward", "strand", 4, 8): Tiles(4, 16, 1, 32, 2, 1),
    ("backward", "strand", 4, 4): Tiles(8, 16, 1, 32, 2, 1),
    ("backward", "strand", 4, 2): Tiles(8, 8, 2, 32, 2, 2),
    ("backward", "strand", 2, 8): Tiles(4, 16, 1, 32, 2, 1),
    ("backward", "strand", 2, 4): Tiles(8, 8, 2, 16, 2, 2),
    ("backward", "strand", 2, 2): Tiles(8, 16, 2, 16, 2, 1),
    ("forward", "chain", 4, 8): Tiles(20, 8, 1, 32, 1, 2, 8),
    ("forward", "chain", 4, 4): Tiles(32, 4, 2, 16, 1, 3, 8),
    ("forward", "chain", 4, 2): Tiles(16, 8, 4, 8, 1, 2, 8),
    ("forward", "chain", 2, 8): Tiles(20, 8, 1, 32, 1, 2, 8),
    ("forward", "chain", 2, 4): Tiles(16, 8, 4, 8, 1, 2, 8),
    ("forward", "chain", 2, 2): Tiles(40, 8, 2, 16, 1, 2, 16),
    ("backward", "chain", 4, 8): Tiles(16, 8, 1, 32, 1, 2, 8),
    ("backward", "chain", 4, 4): Tiles(16, 8, 2, 16, 1, 2, 16),
    ("backward", "chain", 4, 2): Tiles(24, 8, 2, 16, 1, 2, 32),
    ("backward", "chain", 2, 8): Tiles(16, 8, 1, 32, 1, 2, 8),
    ("backward", "chain", 2, 4): Tiles(16, 8, 2, 16, 1, 2, 16),
    ("backward", "chain", 2, 2): Tiles(32, 16, 2, 16, 1, 1, 8),
}


def candidates(pass_: str, schedule: str, gate_bytes: int, data_bytes: int) -> Iterator[Tiles]:
    """Tiles that differ from the curated ones in one size, or in how a row's channels lie in a warp."""
    cut = _TABLE[pass_, schedule, gate_bytes, data_bytes]
    changed = [{"steps": cut.steps // 2}, {"steps": 2 * cut.steps}, {"warps": cut.warps // 2}]
    changed += [{"warps": 2 * cut.warps}, {"lanes": cut.lanes // 2}, {"lanes": 2 * cut.lanes}]
    changed += [{"lanes": 2 * cut.lanes, "vector": cut.vector // 2}, {"slots": cut.slots + 1}]
    changed += [{"slots": cut.slots - 1}, {"blocks": cut.blocks - 1}, {"blocks": cut.blocks + 1}]
    changed += [{"group": cut.group // 2}] if schedule == "chain" else []
    for sizes in changed:
        with contextlib.suppress(ValueError):
            yield replace(cut, **sizes)


TABLE = Table("scan/cuda", Tiles, _TABLE, candidates)


@dataclass(frozen=True, slots=True)
class Variant:
    """The parameters of one compiled kernel: a pass over some types, on one schedule."""

    pass_: str
    gate: str  # a type of WIDTHS, of log_a and phase
    data: str
    const: bool
    const_phase: bool
    aligned: bool
    chained: bool
    tiles: Tiles

    @property
    def is_complex(self) -> bool:
        return self.data == "complex64"

    def rows_bytes(self, width: int, *, const: bool = False) -> int:
        """Shared memory of an operand's rows of a tile: `Rows` of tile.cuh."""
        row = self.tiles.channels * width
        run = self.tiles.steps * row + (row if row < BANKS_BYTES else 0)
        return row if const else self.tiles.runs * run

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a tile: forward holds gates and b; backward gates, dh and h."""
        gate, data = WIDTHS[self.gate], WIDTHS[self.data]
        total = self.rows_bytes(gate, const=self.const)
        total += self.rows_bytes(gate, const=self.const_phase) if self.is_complex else 0
        total += (1 if self.pass_ == "forward" else 2) * self.rows_bytes(data)
        return _rounded(total)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: `Shared` of walk.cuh, then the slots."""
        cut = self.tiles
        number = 8 if self.is_complex else 4
        shares = cut.threads // cut.channels if self.chained else 1
        maps = (cut.warps + shares) * cut.channels * 2 * number
        totals = cut.warps if self.const or self.const_phase else 1
        states = (1 + totals) * cut.channels * number
        return _rounded(maps + states + 2 * cut.slots * 4) + cut.slots * self.slot_bytes

    @property
    def program(self) -> Program:
        cut = self.tiles
        macros = [
            ("STEPS", str(cut.steps)),
            ("WARPS", str(cut.warps)),
            ("VECTOR", str(cut.vector)),
            ("LANES", str(cut.lanes)),
            ("SLOTS", str(cut.slots)),
            ("BLOCKS", str(cut.blocks)),
            ("GROUP", str(cut.group)),
            ("GATE", self.gate),
            ("DATA", self.data),
            ("COMPLEX", str(int(self.is_complex))),
            ("CONST_GATE", str(self.const).lower()),
            ("CONST_PHASE", str(self.const_phase).lower()),
            ("ALIGNED", str(self.aligned).lower()),
            ("CHAINED", str(self.chained).lower()),
        ]
        return Program(SOURCES, f"{self.pass_}.cu", tuple(macros))


def _rounded(size: int) -> int:
    return -(-size // BANKS_BYTES) * BANKS_BYTES


def tiles(pass_: str, gate_bytes: int, data_bytes: int, *, chained: bool) -> Tiles:
    """Tile sizes of a pass over gates and data of some widths."""
    return TABLE[pass_, "chain" if chained else "strand", gate_bytes, data_bytes]


@functools.cache
def variant(
    pass_: str, gate: str, data: str, cut: Tiles, *, const: tuple[bool, bool], aligned: bool, chained: bool,
    shared_bytes: int,
) -> Variant:  # fmt: skip
    """The variant for a device that gives a block `shared_bytes` of shared memory.

    Where that is little, it has fewer slots, and then fewer steps. const: whether log_a is the same at every
    step, and phase.
    """
    for smaller in shrinking(cut, 1 if chained else 2):
        found = Variant(pass_, gate, data, *const, aligned, chained, smaller)
        if found.shared_bytes <= shared_bytes:
            break
    return found


def shrinking(cut: Tiles, fewest_slots: int) -> Iterator[Tiles]:
    for slots in range(max(cut.slots, fewest_slots), fewest_slots - 1, -1):
        cut = replace(cut, slots=slots)
        yield cut
    while cut.steps > 1:
        cut = replace(cut, steps=cut.steps // 2)
        yield cut
