"""Launches of the walk, forward and backward: see `anchors`, `walk` and `walk_grads`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from ..._triton.host import loop_bound, processors
from ..._triton.plan import Plan, Slot
from .anchors import la_anchor, la_spans
from .schedule import KEY, NONE, SCALAR, Schedule
from .tiles import Tiles
from .walk import la_walk
from .walk_grads import la_grads

# How far queries and keys may be moved from the middle of a chunk, in nats: their dtype has to hold the
# result, and its small values with full precision.
LIMITS = {torch.bfloat16: 60.0, torch.float16: 5.0, torch.float32: 40.0}


@dataclass(frozen=True)
class Prepared:
    """What a walk reads beside v or do. late, early: q and k, with their decay under key gates."""

    late: Slot
    early: Slot
    spans: Slot | None = None
    resets: Slot | None = None
    factors: Slot | None = None
    wide: Slot | None = None
    scores: Slot | None = None


@dataclass(frozen=True)
class Walk(Schedule):
    """The launches of one call whose heads are walked."""

    @property
    def segments(self) -> tuple[int, int]:
        """How many segments a head has, and their chunks: as many as fill the device."""
        programs = self.B * self.H * triton.cdiv(self.V, self.BW)
        wanted = self.tiles.fill * processors(self.plan.device) // programs
        length = triton.cdiv(self.chunks, max(1, min(wanted, self.chunks)))
        return triton.cdiv(self.chunks, length), length

    @property
    def BW(self) -> int:
        """Width of the strip of values that a program walks with."""
        return self.width(self.V, self.tiles.walk)

    def prepare(self, q: Slot, k: Slot, log_a: Slot | None) -> Prepared:
        """Bring the decay into q and k, or sum up scalar gates."""
        C = self.tiles.chunk
        if log_a is None or self.gate == NONE:
            return Prepared(q, k)
        if self.gate == SCALAR:
            spans, resets = self.per_chunk(C), self.per_chunk(C, dtype=torch.int32)
            self.plan.launch(
                la_spans, (self.programs,), log_a, spans, resets, *self.sizes,
                K=self.K, C=C, CONST=self.const, num_warps=1,
            )  # fmt: skip
            return Prepared(q, k, spans, resets)
        late, early = self.plan.like(q), self.plan.like(k)
        factors, wide = self.per_chunk(3, self.K), self.per_chunk(dtype=torch.int32)
        self.plan.launch(
            la_anchor, (self.programs,), q, k, log_a, late, early, factors, wide, *self.sizes,
            K=self.K, C=C, BK=self.width(self.K, 32), CONST=self.const, LIMIT=LIMITS[q.dtype],
            num_warps=4,
        )  # fmt: skip
        scores = self.scores_key(q, k, log_a, wide)
        return Prepared(late, early, factors=factors, wide=wide, scores=scores)

    def walk(
        self, ready: Prepared, y: Slot, first: Slot | None, *, reverse: bool, keep: bool
    ) -> tuple[Slot, Slot, Slot]:
        """o and S_T from v, or (reverse) dv and dS_0 from do; and (keep) the states that chunks read."""
        count, length = self.segments
        out = self.plan.like(y)
        if count == 1:
            last = self.plan.empty((self.B, self.H, self.K, self.V), torch.float32)
            states = self.per_chunk(self.K, self.V, dtype=y.dtype) if keep else last
            self._walk(ready, y, first, out, states, last, last, 1, length, reverse, keep)
            return out, last, states
        ends = self.plan.empty((self.B * self.H, count, self.K, self.V), torch.float32)
        through = self.plan.empty((self.B * self.H, count, self.K if self.gate == KEY else 1), torch.float32)
        self._walk(ready, y, None, None, ends, ends, through, count, length, reverse, False)
        starts, last, _ = self.carry(first, ends, through, torch.float32)
        states = self.per_chunk(self.K, self.V, dtype=y.dtype) if keep else last
        self._walk(ready, y, starts, out, states, ends, through, count, length, reverse, keep)
        return out, last, states

    def _walk(
        self, ready: Prepared, y: Slot, first: Slot | None, out: Slot | None, states: Slot, last: Slot,
        through: Slot, count: int, length: int, reverse: bool, keep: bool,
    ) -> None:  # fmt: skip
        x, w = (ready.early, ready.late) if reverse else (ready.late, ready.early)
        absent = (slot if slot is not None else x for slot in (
            ready.spans, ready.resets, ready.factors, ready.wide, ready.scores))  # fmt: skip
        self.plan.launch(
            la_walk, (self.B * self.H * count * triton.cdiv(self.V, self.BW),),
            x, w, y, *absent, x if first is None else first, y if out is None else out, states, last, through,
            *self.sizes, count, loop_bound(length),
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.width(self.K, 1 << 30), BV=self.BW,
            GATE=self.gate, REVERSE=reverse, HAS_FIRST=first is not None, EMIT=out is not None, KEEP=keep,
            PRECISION=self.tiles.precision, STAGES=self.tiles.walk_stages,
            num_warps=self.tiles.walk_warps, num_stages=self.tiles.walk_stages,
        )  # fmt: skip

    def gradients(
        self, q: Slot, k: Slot, v: Slot, do: Slot, log_a: Slot | None, ready: Prepared,
        states: Slot, adjoints: Slot,
    ) -> tuple[Slot, Slot, Slot]:  # fmt: skip
        """dq, dk, and d log_a (B, T, H, K) or its parts (B, T, H, tiles of K)."""
        C, BK = self.tiles.chunk, self.width(self.K, min(self.tiles.key, 64))
        key_tiles = triton.cdiv(self.K, BK)
        dq, dk = self.plan.like(q), self.plan.like(k)
        by_channel = self.gate == KEY
        width = self.K if by_channel else key_tiles
        dlog_a = self.plan.empty((self.B, self.T, self.H, width), torch.float32)
        dscores = self.per_chunk(C, C, dtype=q.dtype) if by_channel else dq
        boundary = self.per_chunk(self.K) if by_channel else dq
        absent = (slot if slot is not None else q for slot in (
            log_a, ready.spans, ready.resets, ready.factors, ready.wide))  # fmt: skip
        self.plan.launch(
            la_grads, (self.programs * key_tiles,),
            ready.late, ready.early, v, do, *absent, states, adjoints, dscores, boundary, dq, dk, dlog_a,
            *self.sizes, K=self.K, V=self.V, C=C, BK=BK, BV=self.width(self.V, self.tiles.inner),
            GATE=self.gate, CONST=self.const, PRECISION=self.tiles.precision, **self.options,
        )  # fmt: skip
        if by_channel and log_a is not None:
            self.grad_key(q, k, v, do, log_a, ready.wide, dscores, boundary, states, adjoints, dq, dk, dlog_a)
        return dq, dk, dlog_a


def forward_walk(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, first: Slot | None, *, keep: bool
) -> tuple[Slot, Slot, Slot | None]:
    """o, S_T, and (keep) the states that chunks read."""
    schedule = Walk.of(plan, q, v, log_a)
    ready = schedule.prepare(q, k, log_a)
    o, last, states = schedule.walk(ready, v, first, reverse=False, keep=keep)
    return o, last, states if keep else None


def backward_walk(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, states: Slot, do: Slot, dlast: Slot | None,
    *, cut: Tiles,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, d log_a or its parts, dS_0. cut: block sizes of forward, whose chunks these are."""
    schedule = Walk.of(plan, q, v, log_a, cut)
    ready = schedule.prepare(q, k, log_a)
    dv, dfirst, adjoints = schedule.walk(ready, do, dlast, reverse=True, keep=True)
    dq, dk, dlog_a = schedule.gradients(q, k, v, do, log_a, ready, states, adjoints)
    return dq, dk, dv, None if log_a is None else dlog_a, dfirst
