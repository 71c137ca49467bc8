"""The plan of a pass: sizes of a call, tile sizes, and how time is cut into segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .groups import COMPILED, Task, Tile, constants
from .packed import Packed
from .tiles import CHECKPOINT, TILES, Tiles, key, streamed_tiles, tiles

# Warps per multiprocessor. With fewer than ENOUGH, time is cut into segments, if WANTED ones take at least
# FEWEST_SEGMENTS: the gates of all but one are formed twice, which 32 warps hide better than 8.
ENOUGH = 7
WANTED = 32
WANTED_STREAMED = 20  # these hide less and fill the chip once
FEWEST_SEGMENTS = 3
FEWEST_CHECKPOINTS = 4  # per segment


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return count if COMPILED.value else tl.constexpr(count)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Which options are fused around the recurrence; bounds: of packed sequences."""

    skip: bool = False
    z: bool = False
    bias: bool = False
    softplus: bool = False
    zoh: bool = False
    bounds: Sequence[int] | None = None

    @property
    def nothing(self) -> bool:
        return self.bounds is None and not any((self.skip, self.z, self.bias, self.softplus, self.zoh))

    def work(self, gate: str) -> str:
        """The key of the table of tiles."""
        return gate if self.nothing else "fused"


def streamable(N: int, fused: Fusion, *data: Tensor) -> bool:
    """Whether operands (B, T, ...) can come by way of shared memory.

    They can with whole stretches between checkpoints, whole groups, rows that begin at 16 bytes, and no options.
    """
    return (
        fused.nothing
        and data[0].shape[1] % CHECKPOINT == 0
        and N >= 4
        and N & (N - 1) == 0
        and all(x.data_ptr() % 16 == 0 for x in data)
    )


def streamed_cut(pass_: str, *, N: int, D: int, gate: str, wide: bool, streams: bool) -> Tiles | None:
    """Tile sizes of a pass whose operands come by way of shared memory; None where they do not."""
    cut = streamed_tiles(pass_, N, gate, wide=wide) if streams else None
    return cut if cut and D % cut.block == 0 else None


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a call, tile sizes of a pass, and the length of the segments of time that it walks.

    wide: whether k or q is float32. streams: whether operands can come by way of shared memory; they do where
    the tiles say so.
    """

    B: int
    T: int
    D: int
    N: int
    gate: str
    fused: Fusion
    wide: bool
    streams: bool
    cut: Tiles
    length: int
    packed: Packed | None

    @classmethod
    def of(
        cls, pass_: str, x: Tensor, k: Tensor, q: Tensor, gate: str, fused: Fusion | None = None,
        device: torch.device | None = None, *, streams: bool = False,
    ) -> Plan:  # fmt: skip
        """device: where the kernels run, if not where the operands are."""
        B, T, D = x.shape
        N = k.shape[2]
        fused = fused or Fusion()
        work, wide = fused.work(gate), max(k.element_size(), q.element_size()) == 4
        chip, checkpoints = processors(device or x.device), triton.cdiv(T, CHECKPOINT)

        def warps_of(cut: Tiles) -> int:
            """Warps that walk one segment."""
            return B * triton.cdiv(D, cut.block) * cut.warps

        streamed = partial(streamed_cut, N=N, D=D, gate=gate, wide=wide, streams=streams)
        segments, cut = 1, None
        if (warps := warps_of(TILES.row(key(pass_, N, work, wide=wide)))) < ENOUGH * chip:
            cut = streamed(pass_ + "_spans")
            wanted = WANTED * chip // warps if cut is None else WANTED_STREAMED * chip // warps_of(cut)
            segments = most = min(wanted, checkpoints // FEWEST_CHECKPOINTS)
            if cut is None or not COMPILED.value:
                equal = (count for count in range(most, most // 2, -1) if checkpoints % count == 0)
                segments = next(equal, most)
            segments = segments if segments >= FEWEST_SEGMENTS else 1
        if segments == 1:
            cut = streamed(pass_) or tiles(pass_, N, work, wide=wide)
        elif cut is None:
            cut = tiles(pass_ + "_spans", N, work, wide=wide)
        length = triton.cdiv(checkpoints, segments) * CHECKPOINT
        packed = None
        if fused.bounds is not None:
            packed = Packed.of(fused.bounds, length, CHECKPOINT, cut.steps, x.device)
        return cls(B, T, D, N, gate, fused, wide, streams, cut, length, packed)

    def of_summary(self, pass_: str) -> Plan:
        """The plan of a pass's summaries: the same segments, in tiles of their own."""
        cut = streamed_cut(
            pass_, N=self.N, D=self.D, gate=self.gate, wide=self.wide, streams=self.streams
        ) or tiles(pass_, self.N, self.fused.work(self.gate), wide=self.wide)
        return replace(self, cut=cut)

    @property
    def channel_blocks(self) -> int:
        return triton.cdiv(self.D, self.cut.block)

    @property
    def segments(self) -> int:
        """Of a batch element, or of all packed sequences."""
        return triton.cdiv(self.T, self.length) if self.packed is None else self.packed.segments

    @property
    def checkpoints(self) -> int:
        """Of a batch element, or of all packed sequences."""
        return triton.cdiv(self.T, CHECKPOINT) if self.packed is None else self.packed.checkpoints

    @property
    def programs(self) -> int:
        return self.B * self.segments * self.channel_blocks

    @property
    def scratch_blocks(self) -> int:
        """Step blocks of the stretches between checkpoints that all programs have before them at a time."""
        if self.packed is not None:
            return self.packed.blocks * self.channel_blocks
        return self.programs * (CHECKPOINT // self.cut.steps)

    @property
    def table(self) -> Tensor | None:
        return None if self.packed is None else self.packed.table

    def inner(self, *, reverse: bool) -> tuple[int, Tensor | None]:
        """How many segments need a summary: those that others follow. Of packed sequences also which ones."""
        if self.packed is None:
            return self.B * (self.segments - 1), None
        rows = self.packed.preceded if reverse else self.packed.followed
        return len(rows), rows

    @property
    def rows(self) -> int:
        """States of a channel with those that fill up the groups."""
        return self.cut.groups * self.cut.states

    @property
    def constants(self) -> dict[str, Any]:
        """Constant parameters of a kernel, and how it is compiled."""
        cut, fused = self.cut, self.fused
        spread = fused.softplus or fused.bias
        whole = self.packed is None and (cut.stages > 0 or self.T % self.length == 0)
        task = Task(self.D, self.N, self.gate, fused.zoh, fused.softplus, spread, self.packed is not None)
        tile = Tile(
            cut.steps, cut.block, cut.groups, cut.states, cut.channels, CHECKPOINT // cut.steps,
            self.D % cut.block == 0, whole, cut.stages,
        )  # fmt: skip
        return {
            "TASK": constants(task), "TILE": constants(tile), "num_warps": cut.warps, "maxnreg": cut.registers,
        }  # fmt: skip
