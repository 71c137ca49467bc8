"""How a pass is cut: into tiles, and into segments of time where batch and channels are too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import triton

from ..._triton.host import interpreted, loop_bound, processors
from ..._triton.plan import Slot
from .groups import Fused, Task, Tile, constants
from .packed import Packed
from .tiles import CHECKPOINT, TILES, Tiles, key, streamed_tiles, tiles

# Warps per multiprocessor. With fewer than ENOUGH, time is cut into segments, if WANTED ones take at least
# FEWEST_SEGMENTS: the gates of all but one are formed twice, which 32 warps hide better than 8.
ENOUGH = 7
WANTED = 32
WANTED_STREAMED = 20  # these hide less and fill the chip once
FEWEST_SEGMENTS = 3
FEWEST_CHECKPOINTS = 4  # per segment

NOTHING_FUSED = Fused()


class Call(NamedTuple):
    """Options of a call beside its tensors. packed: whether time holds several sequences."""

    gate: str
    zoh: bool = False
    softplus: bool = False
    packed: bool = False

    def plain(self, fused: Fused) -> bool:
        """Whether nothing is fused around the recurrence."""
        return not (self.packed or self.zoh or self.softplus) and fused == NOTHING_FUSED

    def work(self, fused: Fused) -> str:
        """The gate, or "fused": a part of the table's keys."""
        return self.gate if self.plain(fused) else "fused"


def streamable(call: Call, N: int, fused: Fused, data: Sequence[Slot]) -> bool:
    """Whether operands (B, T, ...) can come by way of shared memory.

    They can if their memory is aligned, stretches between checkpoints and groups of states are whole, and
    there are no options.
    """
    whole = data[0].shape[1] % CHECKPOINT == 0 and N >= 4 and N & (N - 1) == 0
    return whole and call.plain(fused) and all(x.aligned for x in data)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes of a call, tile sizes of a pass, and the length of the segments of time that its programs walk.

    wide: whether k or q is float32. streams: whether operands can come by way of shared memory; they do where
    the tiles say so. packed: room for packed sequences, else None.
    """

    B: int
    T: int
    D: int
    N: int
    call: Call
    fused: Fused
    wide: bool
    streams: bool
    cut: Tiles
    length: int
    packed: Packed | None = None

    @classmethod
    def of(
        cls, pass_: str, call: Call, x: Slot, k: Slot, q: Slot, N: int, fused: Fused = NOTHING_FUSED,
        data: Sequence[Slot] = (), sequences: int = 0,
    ) -> Schedule:  # fmt: skip
        """data: what would come by way of shared memory; nothing if empty. sequences: packed ones."""
        B, T, D = x.shape
        work, wide = call.work(fused), max(k.element_size(), q.element_size()) == 4
        streams = bool(data) and streamable(call, N, fused, data)
        chip, checkpoints = processors(x.device), triton.cdiv(T, CHECKPOINT)

        def warps_of(cut: Tiles) -> int:
            """Warps that walk one segment, at least one."""
            return max(1, B * triton.cdiv(D, cut.block) * cut.warps)

        streamed = partial(streamed_cut, N=N, D=D, gate=call.gate, wide=wide, streams=streams)
        segments, cut = 1, None
        if (warps := warps_of(TILES.row(key(pass_, N, work, wide=wide)))) < ENOUGH * chip:
            cut = streamed(pass_ + "_spans")
            wanted = WANTED * chip // warps if cut is None else WANTED_STREAMED * chip // warps_of(cut)
            segments = most = min(wanted, checkpoints // FEWEST_CHECKPOINTS)
            if cut is None or interpreted():
                equal = (count for count in range(most, most // 2, -1) if checkpoints % count == 0)
                segments = next(equal, most)
            segments = segments if segments >= FEWEST_SEGMENTS else 1
        if segments == 1:
            cut = streamed(pass_) or tiles(pass_, N, work, wide=wide)
        elif cut is None:
            cut = tiles(pass_ + "_spans", N, work, wide=wide)
        length = triton.cdiv(checkpoints, segments) * CHECKPOINT
        packed = Packed(T, sequences, length, CHECKPOINT, cut.steps) if call.packed else None
        return cls(B, T, D, N, call, fused, wide, streams, cut, length, packed)

    def of_summary(self, pass_: str) -> Schedule:
        """The schedule of a pass's summaries: the same segments, in tiles of their own."""
        N, gate, wide = self.N, self.call.gate, self.wide
        cut = streamed_cut(pass_, N=N, D=self.D, gate=gate, wide=wide, streams=self.streams)
        return replace(self, cut=cut or tiles(pass_, N, self.call.work(self.fused), wide=wide))

    @property
    def channel_blocks(self) -> int:
        return triton.cdiv(self.D, self.cut.block)

    @property
    def segments(self) -> int:
        """Segments per batch element, or places for those of all packed sequences."""
        return self.packed.segments if self.packed else triton.cdiv(self.T, self.length)

    @property
    def checkpoints(self) -> int:
        """Checkpoints per batch element, or places for those of all packed sequences."""
        return self.packed.checkpoints if self.packed else triton.cdiv(self.T, CHECKPOINT)

    @property
    def programs(self) -> int:
        return self.B * self.segments * self.channel_blocks

    @property
    def scratch_blocks(self) -> int:
        """Step blocks that all programs note at a time: those of a stretch between checkpoints each."""
        if self.packed:
            return self.packed.blocks * self.channel_blocks
        return self.programs * (CHECKPOINT // self.cut.steps)

    @property
    def rows(self) -> int:
        """States per channel, with those that fill up the groups."""
        return self.cut.groups * self.cut.states

    @property
    def sizes(self) -> dict[str, int]:
        """Counts that all kernels take."""
        return {"T": self.T, "length": self.length, "segments": self.segments}

    @property
    def blocks(self) -> Any:
        """Step blocks of a segment, as a kernel's loop bound."""
        return loop_bound(self.length // self.cut.steps)

    @property
    def stretches(self) -> Any:
        """Stretches between checkpoints of a segment, as a kernel's loop bound."""
        return loop_bound(self.length // CHECKPOINT)

    @property
    def constants(self) -> dict[str, Any]:
        """Constant parameters of a kernel, and how it is compiled."""
        cut, call, fused = self.cut, self.call, self.fused
        spread = call.softplus or fused.bias is not None
        whole = self.packed is None and (cut.stages > 0 or self.T % self.length == 0)
        task = Task(self.D, self.N, call.gate, call.zoh, call.softplus, spread, self.packed is not None)
        tile = Tile(
            STEPS=cut.steps, CHANNELS=cut.block, GROUPS=cut.groups, STATES=cut.states, ADJACENT=cut.channels,
            BLOCKS=CHECKPOINT // cut.steps, EVEN=self.D % cut.block == 0, WHOLE=whole, STAGES=cut.stages,
        )  # fmt: skip
        kernel = {"num_warps": cut.warps, "maxnreg": cut.registers}
        return {"TASK": constants(task), "TILE": constants(tile), **kernel}


def streamed_cut(pass_: str, *, N: int, D: int, gate: str, wide: bool, streams: bool) -> Tiles | None:
    """Tile sizes of a pass whose operands come by way of shared memory; None where they do not."""
    cut = streamed_tiles(pass_, N, gate, wide=wide) if streams else None
    return cut if cut and D % cut.block == 0 else None
