"""How a pass is cut into tiles, by the number of states: a table, not a search at the first call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmperf.configurations import Table

PASSES = ("forward", "forward_summary", "backward", "backward_summary")
# Steps between the states that forward saves for backward. Those of N = 16 then take a byte an element of x.
MARK = 64


@dataclass(frozen=True, slots=True)
class Tiles:
    """A warp's tile of channels × groups of states, and how many steps it takes a round.

    steps: a round (R), a divisor of MARK. channels: next to each other in a thread.
    states: of a channel in a thread (M), 4 or 8. groups: of states side by side (G), a power of two.
    registers: at most, of a thread; None leaves it to the compiler.
    """

    steps: int
    channels: int
    states: int
    groups: int
    warps: int = 1
    registers: int | None = None

    def __post_init__(self) -> None:
        powers = (self.channels, self.groups, self.warps)
        if any(size < 1 or size & (size - 1) for size in powers) or self.states not in (4, 8):
            raise ValueError("channels, groups and warps are powers of two, states 4 or 8")
        if self.steps < 1 or MARK % self.steps or not self.block:
            raise ValueError(f"steps divide {MARK}, and a program has a channel")

    @property
    def block(self) -> int:
        """Channels of a program (BD)."""
        return self.channels * 32 * self.warps // self.groups


def curated(pass_: str, rows: int, widths: str) -> Tiles:
    """rows: states with those that fill up the groups. widths: wide where k or q is float32."""
    states = 4 if rows <= 16 else 8
    wide = widths == "wide"
    if pass_.endswith("summary"):
        steps, channels = 2 if wide or states == 8 else 4, 2  # few enough registers for 32 warps side by side
    elif pass_ == "backward":
        steps, channels = 2 if wide or states == 8 else 4, 1 if wide and states == 8 else 2
    else:
        steps, channels = 4 if wide or states == 8 else 8, 2
    return Tiles(steps, channels, states, rows // states)


def candidates(pass_: str, rows: int, widths: str) -> Iterator[Tiles]:
    """What differs from the curated row in one size, or in states and groups."""
    cut = curated(pass_, rows, widths)
    yield from (replace(cut, steps=steps) for steps in (cut.steps // 2, 2 * cut.steps) if 1 <= steps <= 16)
    yield from (replace(cut, channels=channels) for channels in (1, 2, 4) if channels * 32 >= cut.groups)
    yield from (replace(cut, warps=warps) for warps in (2, 4))
    yield from (replace(cut, registers=registers) for registers in (96, 128, 168))
    states = 12 - cut.states
    if states <= rows <= 32 * cut.channels * states:
        yield replace(cut, states=states, groups=rows // states)


def fits(cut: Tiles, pass_: str, rows: int, widths: str) -> bool:
    return cut.groups * cut.states == rows


TILES = Table(
    "selective_scan/triton",
    Tiles,
    {
        (pass_, rows, widths): curated(pass_, rows, widths)
        for pass_ in PASSES
        for rows in (4, 8, 16, 32, 64, 128, 256)
        for widths in ("wide", "narrow")
    },
    candidates,
    fits,
)


def key(pass_: str, N: int, *, wide: bool) -> tuple[str, int, str]:
    """Of the table: the pass, the states filled up to a power of two, and whether k or q is float32."""
    return pass_, max(4, 1 << (N - 1).bit_length()), "wide" if wide else "narrow"


def tiles(pass_: str, N: int, *, wide: bool) -> Tiles:
    """Tile sizes of one of PASSES, of which the summaries run where time is cut into spans."""
    return TILES[key(pass_, N, wide=wide)]
