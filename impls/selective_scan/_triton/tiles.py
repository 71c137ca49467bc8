"""How a pass is cut into tiles, by the number of states: a table, not a search at the first call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ssmperf.authoring import Table

# Segments of time have a summary pass, and the pass itself: `spans`.
PASSES = tuple(pass_ + part for pass_ in ("forward", "backward") for part in ("", "_spans", "_summary"))
# Steps between the states that forward saves for backward. At N = 16 these take one byte per element of x.
CHECKPOINT = 64


@dataclass(frozen=True, slots=True)
class Tiles:
    """A warp's tile of channels × groups of states, and its steps per round.

    steps: per round (R), a divisor of CHECKPOINT. channels: adjacent ones in a thread.
    states: per channel in a thread (M), 4 or 8. groups: of states side by side (G), a power of two.
    registers: at most, per thread; None leaves it to the compiler.
    stages: rounds held in shared memory, with the current one; 0 prefetches one into registers.
    """

    steps: int
    channels: int
    states: int
    groups: int
    warps: int = 1
    registers: int | None = None
    stages: int = 0

    def __post_init__(self) -> None:
        powers = (self.channels, self.groups, self.warps)
        if any(size < 1 or size & (size - 1) for size in powers) or self.states not in (4, 8):
            raise ValueError("channels, groups and warps are powers of two, states 4 or 8")
        if self.steps < 1 or CHECKPOINT % self.steps or not self.block:
            raise ValueError(f"steps divide {CHECKPOINT}, and a program has a channel")
        if self.stages not in (0, 2, 3, 4, 5):
            raise ValueError("stages are 0, or from 2 to 5")

    @property
    def block(self) -> int:
        """Channels of a program (BD)."""
        return self.channels * 32 * self.warps // self.groups


def curated(pass_: str, rows: int, widths: str, work: str) -> Tiles:
    """rows: states with those that fill up the groups. widths: wide where k or q is float32. work: the gate,
    or fused where anything else is formed in the kernel, or sequences are packed."""
    wide, spans = widths == "wide", pass_.endswith("spans")
    states = 4 if rows <= 16 else 8
    steps, channels, registers = 2 if wide or states == 8 else 4, 2, None
    if pass_.endswith("summary"):
        if work == "exp" and rows >= 16 and not (wide and states == 8):
            steps *= 2  # it keeps no products of gates
    elif pass_.startswith("backward"):
        if wide and states == 8:
            channels = 1
        if work == "exp" and states == 4 and not spans:
            registers = 208
        elif work == "exp" and rows == 16:
            registers = 168
    else:
        steps = 4 if states == 8 or (wide and spans) else 8
        if work != "fused" and states == 4 and not wide and not spans:
            # More than it takes: told so, the assembler spreads loads and exponentials better.
            registers = 255
    return Tiles(steps, channels, states, rows // states, registers=registers)


def candidates(pass_: str, rows: int, widths: str, work: str) -> Iterator[Tiles]:
    """List the configurations that differ from the curated one in one size, or in states and groups."""
    cut = curated(pass_, rows, widths, work)
    yield from (replace(cut, steps=steps) for steps in (cut.steps // 2, 2 * cut.steps) if 1 <= steps <= 16)
    yield from (replace(cut, channels=channels) for channels in (1, 2, 4) if channels * 32 >= cut.groups)
    yield from (replace(cut, warps=warps) for warps in (2, 4))
    yield from (replace(cut, registers=registers) for registers in (None, 80, 168, 208, 255))
    states = 12 - cut.states
    if states <= rows <= 32 * cut.channels * states:
        yield replace(cut, states=states, groups=rows // states)


def fits(cut: Tiles, pass_: str, rows: int, widths: str, work: str) -> bool:
    return cut.groups * cut.states == rows and not cut.stages


def streamed_fits(cut: Tiles, pass_: str, rows: int, widths: str, gate: str) -> bool:
    return cut.groups * cut.states == rows


TILES = Table(
    "selective_scan/triton",
    Tiles,
    {
        (pass_, rows, widths, work): curated(pass_, rows, widths, work)
        for pass_ in PASSES
        for rows in (4, 8, 16, 32, 64, 128, 256)
        for widths in ("wide", "narrow")
        for work in ("exp", "implicit", "fused")
    },
    candidates,
    fits,
)


def streamed(pass_: str, rows: int, widths: str, gate: str) -> Tiles:
    """Tiles of the passes whose operands can come through shared memory, which takes no registers."""
    wide, whole = widths == "wide", pass_ == "forward"
    states = 4 if rows <= 16 else 8
    long = rows <= 16 and pass_ != "forward_spans"
    steps = 16 if long or (rows == 32 and whole and gate == "exp" and not wide) else 8
    channels = 4 if rows <= 32 and not whole else 2
    registers = 128 if whole and states == 4 and not wide else None
    off = rows >= 128 or (whole and rows == 64 and gate == "implicit")
    return Tiles(steps, channels, states, rows // states, registers=registers, stages=0 if off else 3)


def streamed_candidates(pass_: str, rows: int, widths: str, gate: str) -> Iterator[Tiles]:
    cut = streamed(pass_, rows, widths, gate)
    yield from (replace(cut, stages=stages) for stages in (0, 2, 3, 4))
    cut = replace(cut, stages=3)
    yield from (replace(cut, steps=steps) for steps in (4, 8, 16))
    yield from (replace(cut, channels=channels) for channels in (1, 2, 4) if channels * 32 >= cut.groups)
    yield from (replace(cut, registers=registers) for registers in (None, 80, 96, 128, 168, 255))


STREAMED = Table(
    "selective_scan/triton/streamed",
    Tiles,
    {
        (pass_, rows, widths, gate): streamed(pass_, rows, widths, gate)
        for pass_ in ("forward", "forward_spans", "forward_summary", "backward_summary")
        for rows in (4, 8, 16, 32, 64, 128, 256)
        for widths in ("wide", "narrow")
        for gate in ("exp", "implicit")
    },
    streamed_candidates,
    streamed_fits,
)


def key(pass_: str, N: int, work: str, *, wide: bool) -> tuple[str, int, str, str]:
    """Make a key of the table: pass, states filled up to a power of two, whether k or q is float32, work."""
    return pass_, max(4, 1 << (N - 1).bit_length()), "wide" if wide else "narrow", work


def tiles(pass_: str, N: int, work: str, *, wide: bool) -> Tiles:
    """Tile sizes of one of PASSES, of which the summaries and spans run where time is cut."""
    return TILES[key(pass_, N, work, wide=wide)]


def streamed_tiles(pass_: str, N: int, gate: str, *, wide: bool) -> Tiles | None:
    """The same with operands by way of shared memory; None where the general table is to be used.

    That is where there is no kernel for it, or where the entry has `stages=0`.
    """
    place = key(pass_, N, gate, wide=wide)
    cut = STREAMED[place] if place in STREAMED.rows else None
    return cut if cut and cut.stages else None
