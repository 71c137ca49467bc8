"""How a pass is cut into tiles, and which of the kernels' variants an operand set takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

GROUP = 16  # tiles that look at one another's maps; a multiple of every `runs`


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile of steps·runs steps × 32·vector channels.

    steps: consecutive steps of a run. runs: warps of a block. vector: adjacent channels of a thread.
    slots: tiles of a block in shared memory. blocks: on a multiprocessor, which bounds the registers.
    """

    steps: int
    runs: int
    vector: int
    slots: int
    blocks: int

    @property
    def length(self) -> int:
        return self.steps * self.runs

    @property
    def channels(self) -> int:
        return 32 * self.vector

    @property
    def threads(self) -> int:
        return 32 * self.runs


# Rows: pass, schedule, and widths of gates and data in bytes. A slot has 24 to 32 KiB, so two blocks share a
# multiprocessor of 227 KiB, and each has two or three tiles under way. A strand's thread holds its steps in
# registers; a chain's does not, and longer runs save it work that each tile costs.
TABLE = {
    ("forward", "strand", 4, 4): Tiles(16, 4, 1, 4, 4),
    ("forward", "strand", 4, 2): Tiles(16, 4, 2, 3, 2),
    ("forward", "strand", 2, 4): Tiles(8, 8, 2, 4, 2),
    ("forward", "strand", 2, 2): Tiles(8, 8, 2, 2, 3),
    ("backward", "strand", 4, 4): Tiles(16, 4, 1, 3, 4),
    ("backward", "strand", 4, 2): Tiles(16, 4, 2, 3, 2),
    ("backward", "strand", 2, 4): Tiles(4, 8, 2, 4, 2),
    ("backward", "strand", 2, 2): Tiles(16, 8, 2, 2, 2),
    ("forward", "chain", 4, 4): Tiles(8, 8, 2, 2, 3),
    ("forward", "chain", 4, 2): Tiles(16, 4, 2, 2, 3),
    ("forward", "chain", 2, 4): Tiles(16, 4, 2, 4, 2),
    ("forward", "chain", 2, 2): Tiles(16, 4, 2, 2, 3),
    ("backward", "chain", 4, 4): Tiles(16, 4, 1, 3, 4),
    ("backward", "chain", 4, 2): Tiles(8, 8, 2, 3, 2),
    ("backward", "chain", 2, 4): Tiles(8, 4, 2, 4, 2),
    ("backward", "chain", 2, 2): Tiles(16, 8, 2, 2, 2),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for: one pass over some types, on one schedule."""

    pass_: str
    gate: str  # a type of GATE_TYPES
    data: str
    const: bool
    aligned: bool
    chained: bool
    tiles: Tiles

    @property
    def slot_bytes(self) -> int:
        """Shared memory of a tile: forward holds gates and b; backward gates, dh and h."""
        rows = 1 if self.const else self.tiles.length
        data = (1 if self.pass_ == "forward" else 2) * self.tiles.length * WIDTHS[self.data]
        return self.tiles.channels * (rows * WIDTHS[self.gate] + data)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: `Shared` of walk.cuh, then the slots."""
        cut = self.tiles
        maps = cut.runs * 32 * 8 * cut.vector
        fixed = maps + (maps if self.chained else 8 * 32 * cut.vector)
        fixed += 4 * cut.channels * (1 + (cut.runs if self.const else 1)) + 4 * cut.slots
        alignment = max(8 * cut.vector, 16)
        return -(-fixed // alignment) * alignment + cut.slots * self.slot_bytes

    @property
    def macros(self) -> list[tuple[str, str]]:
        cut = self.tiles
        return [
            ("STEPS", str(cut.steps)),
            ("RUNS", str(cut.runs)),
            ("VECTOR", str(cut.vector)),
            ("SLOTS", str(cut.slots)),
            ("BLOCKS", str(cut.blocks)),
            ("GROUP", str(GROUP)),
            ("GATE", self.gate),
            ("DATA", self.data),
            ("CONST_GATE", str(self.const).lower()),
            ("ALIGNED", str(self.aligned).lower()),
            ("CHAINED", str(self.chained).lower()),
        ]


WIDTHS = {"float": 4, "bfloat16": 2, "float16": 2}


def tiles(pass_: str, gate_bytes: int, data_bytes: int, *, chained: bool) -> Tiles:
    """Tile sizes of a pass over gates and data of some widths."""
    return TABLE[pass_, "chain" if chained else "strand", gate_bytes, data_bytes]


def variant(
    pass_: str, gate: str, data: str, *, const: bool, aligned: bool, chained: bool, shared_bytes: int
) -> Variant:
    """The variant for a device that gives a block `shared_bytes` of shared memory: fewer slots where few."""
    cut = tiles(pass_, WIDTHS[gate], WIDTHS[data], chained=chained)
    for slots in range(cut.slots, 1, -1):
        found = Variant(pass_, gate, data, const, aligned, chained, replace(cut, slots=slots))
        if found.shared_bytes <= shared_bytes:
            break
    return found
