"""Launches of the walk, forward and backward: see `anchors`, `walk` and `walk_grads`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
import triton
import triton.language as tl

from ..._triton.host import architecture, flush, interpreted, loop_bound, processors, shared_memory
from ..._triton.plan import Slot
from .anchors import la_anchor, la_spans
from .padded import faded, padded
from .schedule import KEY, LIMITS, NONE, SCALAR, SCALAR_LIMITS, Schedule
from .tiles import values_at_once
from .turned_grads import la_grads_turned
from .turns import Frames
from .walk import WALKS, la_walk
from .walk_grads import la_grads

SLACK = 3072  # bytes, for four warps
CUT = 8  # chunks, whose time a cut into segments takes beside the walks
TWICE = 2.2  # the time of both walks over segments, per step of a walk in strips of half the width
TAIL = 16  # columns; the least that a product takes
BOTH, PLAIN, EXACT_ALONE = (each.value for each in WALKS)  # the walks of a kernel

Spin = tuple[Frames, Slot]  # and its angles
Kept = tuple[Slot, Slot, Slot, Slot]  # `Prepared.late`, early, factors and wide


def part(operands: torch.dtype) -> tl.dtype:
    """The dtype of the parts into which sums over steps split their terms: bfloat16 beside half types."""
    # Triton's interpreter multiplies bfloat16 matrices as integers
    return tl.float32 if operands == torch.float32 or interpreted() else tl.bfloat16


@dataclass(frozen=True)
class Prepared:
    """Operands of a walk beside v or do. late, early: q and k, with their decay under key gates.

    columns: factors of value gates. faded: whether scalar gates have their decay in v and do. turned: q and k
    before any decay, of wide chunks, where they were turned with the decay.
    """

    late: Slot
    early: Slot
    spans: Slot | None = None
    resets: Slot | None = None
    edges: Slot | None = None
    factors: Slot | None = None
    wide: Slot | None = None
    scores: Slot | None = None
    columns: Slot | None = None
    faded: bool = False
    turned: tuple[Slot, Slot] | None = None


@dataclass(frozen=True)
class Walk(Schedule):
    """The launches of one call, with those of a walk beside those of chunks."""

    @property
    def fits(self) -> bool:
        """Whether heads are to be walked, and a program of it fits on the device.

        Under scalar gates with pipelined loads: without, Triton 3.6 has made kernels for Hopper that read
        outside of memory. Rows of an odd number of half-precision keys do not begin at whole words, so they
        cannot be pipelined.
        """
        if self.gate != SCALAR:
            return self.tiles.walk > 0 and self.strip[1] >= 1
        whole_words = self.dtype == torch.float32 or self.K % 2 == 0
        return self.tiles.walk > 0 and self.strip[1] >= 2 and whole_words

    @property
    def segments(self) -> tuple[int, int]:
        """How many segments a sequence has, and their chunks, at most: as many as fill the device."""
        wanted = 1 if self.halved else self.room // self.walkers(self.BW)
        length = triton.cdiv(self.longest, max(1, min(wanted, self.longest)))
        return triton.cdiv(self.longest, length), length

    @property
    def room(self) -> int:
        """Number of programs that are to walk in parallel."""
        return self.tiles.fill * processors(self.plan.device)

    def walkers(self, width: int) -> int:
        """Count the programs that walk in strips of some width through uncut heads, at least one."""
        return max(1, self.heads * self.strips(width))

    @cached_property
    def halved(self) -> bool:
        """Whether strips of half the width are faster than cutting heads into segments.

        Both double the programs, or more. Segments are walked twice, and the states between are carried.
        """
        width, _ = self.widest
        if width < 64 or 2 * self.walkers(width) > self.room or self.walkers(width // 2) > self.room:
            return False
        chunks = triton.cdiv(self.longest * self.B, self.sequences)  # of a sequence, if all are as long
        segments = min(self.room // self.walkers(width), chunks)
        return chunks * (1 - TWICE / segments) <= CUT

    @cached_property
    def fuller(self) -> Self:
        """These launches in the strips for walks that keep states, if heads fill the device with them."""
        width = self.width(self.V, self.tiles.keeping)
        if not self.tiles.keeping or self.gate == NONE or 2 * self.walkers(width) <= self.room:
            return self
        cut = replace(self.tiles, walk=width, walk_warps=8, walk_stages=2, keeping=0)
        found = replace(self, tiles=cut)
        return found if found.strip == (width, 2) else self

    @property
    def BW(self) -> int:
        """Width of the strip of values that a program walks with."""
        return self.strip[0]

    def tail(self, width: int) -> int:
        """Width of the tile for columns behind whole strips of a width; 0 if these are strips, too.

        Beside a narrow strip a tail costs more than it saves: its products wait for each other, too. With
        more than 128 channels there are no registers for it.
        """
        few = 0 < self.V % width <= TAIL and width < self.V
        return TAIL if few and width >= 4 * TAIL and self.K <= 128 else 0

    def strips(self, width: int) -> int:
        """Count the strips of some width that the values of a head take, a tail left out."""
        return triton.cdiv(self.V - self.tail(width), width)

    @property
    def limit(self) -> float:
        """How far queries and keys may be moved from the chunk's middle, in nats."""
        return LIMITS[self.dtype]

    @property
    def slack(self) -> int:
        """Bytes of shared memory for what is beside the operands of a walk."""
        return SLACK * max(1, self.tiles.walk_warps // 4) ** 2

    @property
    def strip(self) -> tuple[int, int]:
        """Width of the strip and stages of the loop that are to be used; (0, 0) if none fit."""
        width, _ = self.widest
        return self.fitting(width // 2) if self.halved else self.widest

    @cached_property
    def widest(self) -> tuple[int, int]:
        """Width of the widest strip that fits into shared memory, and stages; (0, 0) if none do."""
        # elsewhere than on Hopper and Blackwell, tensor cores take their operands from registers
        most = self.tiles.walk if 90 <= architecture() < 120 else max(16, self.tiles.walk // 2)
        return self.fitting(self.width(self.V, most))

    def fitting(self, width: int) -> tuple[int, int]:
        """Find the widest strip up to a width, and its stages, that fit; (0, 0) if none do."""
        most = self.tiles.walk_stages
        widths = [width >> narrower for narrower in range(width.bit_length() - 4)]
        # two stages as long as possible: a narrower strip costs less than waiting for each chunk
        choices = [(width, stages) for width in widths for stages in range(most, 1, -1)]
        for width, stages in (*choices, (16, 1)):
            if self.needed(width, stages) <= shared_memory(self.plan.device):
                return width, stages
        return 0, 0

    def needed(self, width: int, stages: int) -> int:
        """Bytes of shared memory for a program that walks with a strip of some width."""
        C, BK = self.tiles.chunk, self.width(self.K, 1 << 30)
        # a tail's state is in the place where the strip's results will be
        rows = C * (2 * BK + width + self.tail(width)) * stages
        # rows that are no whole vectors of 16 bytes are rearranged before they are stored
        stored = max(C, BK) if self.V * self.dtype.itemsize % 16 else C
        return (rows + (BK + stored) * width) * self.dtype.itemsize + self.slack

    @property
    def stages(self) -> int:
        """Stages of the loop where no chunk is wide: fewer where programs are to share a multiprocessor.

        Where there are more programs than multiprocessors, two that wait in turn are faster than one after
        the other, each of which waits less.
        """
        width, most = self.strip
        crowded = self.walkers(width) > processors(self.plan.device)
        shared = most > 2 and 2 * self.needed(width, 2) <= shared_memory(self.plan.device)
        return 2 if crowded and shared else most

    def prepare(
        self, q: Slot, k: Slot, log_a: Slot | None, spin: Spin | None = None, *, reverse: bool = False,
        kept: Kept | None = None,
    ) -> Prepared:  # fmt: skip
        """Bring the decay into q and k, or sum up scalar gates. spin: turn q and k by these, too.

        reverse: for a walk from the end. kept: what was made of q and k before.
        """
        lead = reverse and self.dtype == torch.float16  # the range of other types needs no such care
        C = self.tiles.chunk
        if log_a is None or self.gate == NONE:
            return Prepared(q, k)
        wide = self.per_chunk(dtype=torch.int32) if kept is None else kept[-1]
        if self.gate == SCALAR:
            spans, resets = self.per_chunk(C), self.per_chunk(C, dtype=torch.int32)
            edges = self.per_chunk(2)
            self.plan.launch(
                la_spans, (self.programs,), log_a, spans, resets, edges, wide, *self.sizes,
                K=self.K, C=C, CONST=self.const, LIMIT=SCALAR_LIMITS[q.dtype], num_warps=1,
            )  # fmt: skip
            return Prepared(q, k, spans=spans, resets=resets, edges=edges, wide=wide)
        if kept is None:
            late, early = (self.plan.empty((*x.shape[:-1], self.K), x.dtype) for x in (q, k))
            factors = self.per_chunk(3, self.K)
            self.anchor(q, k, log_a, late, early, factors, wide, spin=spin, lead=lead)
        else:
            late, early, factors, _ = kept
        turned = None if spin is None else spin[0].turn(q, k, spin[1], wide=wide)
        scores = self.scores_key(*(turned or (q, k)), log_a, (wide, late, early), lead=lead)
        return Prepared(late, early, factors=factors, wide=wide, scores=scores, turned=turned)

    def bring(self, ready: Prepared, y: Slot, *, reverse: bool) -> tuple[Prepared, Slot]:
        """Pad v, or (reverse) do, to the walk's width, and bring scalar decay in with it, unless packed."""
        if self.packing or y.shape[-1] == self.V or ready.spans is None or ready.wide is None:
            return ready, padded(self.plan, y, self.V)
        spans, wide, C = ready.spans, ready.wide, self.tiles.chunk
        taken = faded(self.plan, y, self.V, spans, wide, C, self.sizes[:3], reverse)
        return replace(ready, faded=True), taken

    def anchor(
        self, x: Slot | None, w: Slot | None, gate: Slot, late: Slot, early: Slot, factors: Slot, wide: Slot,
        *, copy: bool = False, spin: Spin | None = None, lead: bool = False,
    ) -> None:  # fmt: skip
        """Run `la_anchor` on queries x and keys w, or on one of them alone."""
        given = x or w
        assert given is not None
        K, KG, C = late.shape[-1], gate.shape[-1], self.tiles.chunk
        phase, angles = (gate, gate) if spin is None else (spin[0].phase, spin[1])
        BK = self.width(KG, 1 << 30)
        self.plan.launch(
            la_anchor, (self.programs,), x or given, w or given, gate, phase, angles, late, early, factors,
            wide, *self.sizes, K=K, KG=KG, C=C, BK=BK, PARTS=min(16, C // 2), CONST=gate.dim() == 2,
            LATE=x is not None, EARLY=w is not None, COPY=copy, LIMIT=self.limit, TURN=spin is not None,
            FROM=given.shape[-1], KP=phase.shape[-1], FIXED=phase.dim() == 2, LEAD=lead, NVIDIA=flush(),
            num_warps=min(32, BK // 16),
        )  # fmt: skip

    def walk(
        self, ready: Prepared, y: Slot, first: Slot | None, *, reverse: bool, keep: bool,
        exact: bool = False,
    ) -> tuple[Slot, Slot, Slot]:  # fmt: skip
        """o and S_T from v, or (reverse) dv and dS_0 from do; and (keep) the states that chunks read.

        exact: o or dv in float32.
        """
        if keep and ready.columns is None and self.fuller is not self:
            return self.fuller.walk(ready, y, first, reverse=reverse, keep=keep, exact=exact)
        count, length = self.segments if ready.columns is None else (1, self.longest)
        out = self.plan.like(y, torch.float32 if exact else None)
        if count == 1:
            last = self.per_sequence()
            states = self.per_chunk(self.K, self.V, dtype=y.dtype) if keep else last
            self._walk(ready, y, first, out, states, last, last, 1, length, reverse, keep)
            return out, last, states
        ends = self.plan.empty((self.heads, count, self.K, self.V), torch.float32)
        through = self.plan.empty((self.heads, count, self.K if self.gate == KEY else 1), torch.float32)
        self._walk(ready, y, None, None, ends, ends, through, count, length, reverse, False)
        starts, last, *_ = self.carry(first, ends, through, torch.float32, segments=True)
        states = self.per_chunk(self.K, self.V, dtype=y.dtype) if keep else last
        self._walk(ready, y, starts, out, states, ends, through, count, length, reverse, keep)
        return out, last, states

    def _walk(
        self, ready: Prepared, y: Slot, first: Slot | None, out: Slot | None, states: Slot, last: Slot,
        through: Slot, count: int, length: int, reverse: bool, keep: bool,
    ) -> None:  # fmt: skip
        x, w = (ready.early, ready.late) if reverse else (ready.late, ready.early)
        absent = [slot if slot is not None else x for slot in (
            ready.spans, ready.resets, ready.edges, ready.factors, ready.wide, ready.scores,
            ready.columns)]  # fmt: skip
        exact_stages = min(self.stages, max(2, self.strip[1] - 1))
        for kinds in self.kinds(out is not None):
            stages = exact_stages if kinds == EXACT_ALONE else self.stages
            self.plan.launch(
                la_walk, (self.heads * count * self.strips(self.BW),),
                x, w, y, *absent, x if first is None else first, y if out is None else out, states, last,
                through, *self.walk_sizes, count, loop_bound(length),
                K=self.K, V=self.V, C=self.tiles.chunk, BK=self.width(self.K, 1 << 30), BV=self.BW,
                TAIL=self.tail(self.BW), GATE=self.gate, REVERSE=reverse, HAS_FIRST=first is not None,
                EMIT=out is not None, KEEP=keep, VALUED=ready.columns is not None, FADED=ready.faded,
                SHARED=self.H // x.shape[2], PRECISION=self.tiles.precision, STAGES=stages,
                EXACT_STAGES=exact_stages, KINDS=kinds, num_warps=self.tiles.walk_warps, num_stages=stages,
            )  # fmt: skip

    def kinds(self, emit: bool) -> tuple[int, ...]:
        """Say which walks each kernel has. Both take registers, and constant gates are seldom that strong."""
        apart = self.const or self.tail(self.BW) > 0 if self.gate == SCALAR else self.gate == KEY and emit
        return (PLAIN, EXACT_ALONE) if apart else (BOTH,)

    def gradients(
        self, q: Slot, k: Slot, v: Slot, do: Slot, log_a: Slot | None, ready: Prepared,
        states: Slot, adjoints: Slot,
    ) -> tuple[Slot, Slot, Slot, Slot]:  # fmt: skip
        """dq, dk, d log_a (B, T, H, K) or its parts (B, T, H, tiles of K), and d phase (B, T, H, K)."""
        C, BK = self.tiles.chunk, self.width(self.K, self.tiles.grad_key)
        if self.turning and self.V > 16:
            BK = min(BK, 32)  # the terms of the phase's gradient take the registers of half a tile
        BV = values_at_once(self.V, BK, self.tiles.inner)
        key_tiles = triton.cdiv(self.K, BK)
        dq, dk = (self.plan.empty((self.B, self.T, self.H, self.K), self.gradients_dtype) for _ in range(2))
        by_channel = self.gate == KEY
        width = self.K if by_channel else key_tiles
        dlog_a = self.plan.empty((self.B, self.T, self.H, width), torch.float32)
        dscores = self.per_chunk(C, C, dtype=q.dtype) if by_channel else dq
        dphase = self.turned()
        boundary = self.block_starts() if by_channel else dq
        turns = self.block_starts() if by_channel and self.turning else boundary
        absent = (slot if slot is not None else q for slot in (
            log_a, ready.spans, ready.resets, ready.edges, ready.factors, ready.wide))  # fmt: skip
        self.plan.launch(
            la_grads, (self.programs * key_tiles,),
            ready.late, ready.early, k, v, do, *absent, states, adjoints, dscores, boundary, turns, dq, dk,
            dlog_a, dphase, *self.sizes, K=self.K, KG=self.gated, V=self.V, C=C, BK=BK,
            BV=BV, GATE=self.gate, CONST=self.const, TURN=self.turning, FADED=ready.faded,
            SHARED=self.H // ready.late.shape[2], PRECISION=self.tiles.precision, PART=part(q.dtype),
            num_warps=self.tiles.grad_warps, num_stages=max(1, self.tiles.grad_stages - (self.gate == NONE)),
        )  # fmt: skip
        if by_channel and log_a is not None:
            self.grad_key(
                q, k, log_a, ready.wide, dscores, (boundary, turns), (dq, dk), (dq, dk), (dlog_a, dphase)
            )
        return dq, dk, dlog_a, dphase

    def gradients_turned(
        self, q: Slot, k: Slot, v: Slot, do: Slot, log_a: Slot, ready: Prepared, states: Slot,
        adjoints: Slot, spin: Spin, channels: int,
    ) -> tuple[Slot, Slot, Slot, Slot]:  # fmt: skip
        """dq and dk of so many channels, turned back, d log_a and d phase (B, T, H, gated).

        Under complex key gates. q, k: turned, where chunks are wide.
        """
        assert ready.factors is not None and ready.wide is not None
        frames, angles = spin
        C, KG = self.tiles.chunk, self.gated
        BK = self.width(KG, max(16, self.tiles.grad_key // 2))
        BV = values_at_once(self.V, BK, self.tiles.inner)
        dq, dk = (self.plan.empty((self.B, self.T, self.H, channels), self.dtype) for _ in range(2))
        parts = self.plan.like(ready.late, torch.float32), self.plan.like(ready.early, torch.float32)
        dlog_a = self.plan.empty((self.B, self.T, self.H, KG), torch.float32)
        dphase, dscores = self.turned(KG), self.per_chunk(C, C, dtype=self.dtype)
        boundary = self.block_starts(KG)
        turns = self.block_starts(KG) if self.turning else boundary
        self.plan.launch(
            la_grads_turned, (self.programs * triton.cdiv(KG, BK),),
            ready.late, ready.early, k, v, do, log_a, frames.phase, angles, ready.factors, ready.wide, states,
            adjoints, dscores, boundary, turns, *parts, dq, dk, dlog_a, dphase, *self.sizes,
            K=self.K, KG=KG, KP=frames.phase.shape[-1], V=self.V, C=C, BK=BK, BV=BV, TO=channels,
            CONST=self.const, FIXED=frames.const, TURN=self.turning, PRECISION=self.tiles.precision,
            PART=part(self.dtype), NVIDIA=flush(), num_warps=self.tiles.grad_warps,
            num_stages=self.tiles.grad_stages,
        )  # fmt: skip
        self.grad_key(
            q, k, log_a, ready.wide, dscores, (boundary, turns), parts, parts, (dlog_a, dphase), both=True
        )
        frames.turn_back_wide(parts, angles, (dq, dk), ready.wide)
        return dq, dk, dlog_a, dphase

    def forward(
        self, q: Slot, k: Slot, v: Slot, log_a: Slot | None, first: Slot | None, *, keep: bool,
        spin: Spin | None = None,
    ) -> tuple[Slot, Slot, Slot | None, Slot, Kept | None]:  # fmt: skip
        """o, S_T, (keep) the states that chunks read, v as the walk has taken it, and what to keep beside.

        Turning is worth keeping, except in float16, where a walk from the end wants other factors.
        """
        ready, v = self.bring(self.prepare(q, k, log_a, spin), v, reverse=False)
        o, last, states = self.walk(ready, v, first, reverse=False, keep=keep)
        kept = None
        if keep and spin is not None and self.dtype != torch.float16 and ready.factors and ready.wide:
            kept = ready.late, ready.early, ready.factors, ready.wide
        return o, last, states if keep else None, v, kept

    def backward(
        self, q: Slot, k: Slot, v: Slot, log_a: Slot | None, states: Slot, do: Slot, dlast: Slot | None,
        spin: Spin | None = None, *, channels: int, kept: Kept | None = None,
    ) -> tuple[Slot, ...]:  # fmt: skip
        """dq, dk, dv, d log_a or its parts, d phase, dS_0. v, kept: as `forward` has given them.

        channels: of dq and dk where these are turned back, which they are with a spin.
        """
        ready = self.prepare(q, k, log_a, spin, reverse=True, kept=kept)
        ready, do = self.bring(ready, do, reverse=True)
        q, k = ready.turned or (q, k)
        dv, dfirst, adjoints = self.walk(ready, do, dlast, reverse=True, keep=True)
        if spin is None or log_a is None:
            dq, dk, dlog_a, dphase = self.gradients(q, k, v, do, log_a, ready, states, adjoints)
        else:
            dq, dk, dlog_a, dphase = self.gradients_turned(
                q, k, v, do, log_a, ready, states, adjoints, spin, channels
            )
        return dq, dk, dv, dlog_a, dphase, dfirst
