"""How a pass is cut into tiles, by the number of states: a table, not a search at the first call."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def block(self) -> int:
        """Channels of a program (BD)."""
        return self.channels * 32 * self.warps // self.groups


def tiles(pass_: str, N: int, *, wide: bool) -> Tiles:
    """Tile sizes of a pass, `forward` or `backward`. wide: k or q is float32."""
    states = 4 if N <= 16 else 8
    groups = 1
    while groups * states < N:
        groups *= 2
    if pass_ == "backward":
        return Tiles(2 if wide or states == 8 else 4, 1 if wide and states == 8 else 2, states, groups)
    return Tiles(4 if wide or states == 8 else 8, 2, states, groups)
