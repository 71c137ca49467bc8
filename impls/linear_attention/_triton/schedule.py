"""The launches of one call, in order, for real operands: chunks beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
import triton

from ..._triton.host import loop_bound
from ..._triton.plan import Plan, Slot
from ..._triton.sequences import Packing
from . import blocks
from .chunk_grads import la_grad_qk
from .chunks import la_carry, la_increment, la_output, la_scores
from .pair_grads import la_grad_key
from .pairs import la_scores_key
from .tiles import Tiles, tiles, values_at_once, width_of

NONE, SCALAR, KEY = blocks.NONE.value, blocks.SCALAR.value, blocks.KEY.value
SUB = blocks.SUB.value

# How far queries and keys may be moved from the middle of a chunk or block, in nats, and v or do under scalar
# gates: their dtype has to hold the result, and its small values with full precision. float16 does so for
# little more than the values themselves. In float32 the sum must keep the result's precision.
LIMITS = {torch.bfloat16: 60.0, torch.float16: 2.0, torch.float32: 10.0}
SCALAR_LIMITS = {**LIMITS, torch.float16: 0.0}


@dataclass(frozen=True)
class Schedule:
    """Shapes, gate and block sizes of one call, with a launch for each step of a plan.

    K: channels of q and k. gated: channels of key gates, half of K for complex channels. turning: whether the
    gradient of phases is wanted. unrounded: whether dq and dk are to be turned back, and float32 until then.
    packing: of packed sequences, else None.
    """

    plan: Plan
    B: int
    T: int
    H: int
    K: int
    V: int
    gate: int
    gated: int
    const: bool
    dtype: torch.dtype
    tiles: Tiles
    turning: bool
    unrounded: bool
    packing: Packing | None

    @classmethod
    def of(
        cls, plan: Plan, q: Slot, v: Slot, log_a: Slot | None, *,
        pairs: bool, turning: bool = False, cut: Tiles | None = None, width: int | None = None,
        channels: int | None = None, unrounded: bool = False, bounds: Slot | None = None,
    ) -> Self:  # fmt: skip
        """pairs: whether channels are complex. cut: block sizes, where they are not those in force.

        width: of values, where these are to be padded. channels: of q and k, where these are to be turned.
        bounds: of packed sequences.
        """
        B, T, H, K = *v.shape[:3], channels or q.shape[-1]
        V, gated = width or v.shape[-1], K // 2 if pairs else K
        gate = NONE if log_a is None else KEY if log_a.shape[-1] == gated and gated > 1 else SCALAR
        chosen = tiles(K, V, wide=q.dtype == torch.float32)  # records say what backward runs with, too
        const, cut = log_a is not None and log_a.dim() == 2, cut or chosen
        packing = Packing.of(plan, bounds, T, cut.chunk)
        return cls(plan, B, T, H, K, V, gate, gated, const, q.dtype, cut, turning, unrounded, packing)

    @property
    def gradients_dtype(self) -> torch.dtype:
        """The dtype of dq and dk as the kernels of gradients write them."""
        return torch.float32 if self.unrounded else self.dtype

    @property
    def chunks(self) -> int:
        """Chunks of a head, or places for those of its packed sequences."""
        return self.packing.count if self.packing else self.longest

    @property
    def longest(self) -> int:
        """The most chunks that a sequence can have."""
        return triton.cdiv(self.T, self.tiles.chunk)

    @property
    def sequences(self) -> int:
        return self.packing.sequences if self.packing else self.B

    @property
    def heads(self) -> int:
        """Heads of all sequences."""
        return self.sequences * self.H

    @property
    def programs(self) -> int:
        """Chunks of all heads."""
        return self.B * self.H * self.chunks

    @property
    def by_channel(self) -> bool:
        return self.gate == KEY

    @property
    def sizes(self) -> tuple[int, int, int, Slot | None]:
        """Arguments by which kernels over all chunks find their chunk."""
        return self.T, self.H, self.chunks, self.packing and self.packing.places

    @property
    def walk_sizes(self) -> tuple[int, int, int, Slot | None]:
        """Arguments by which kernels that walk the chunks of a sequence in order find the sequence."""
        return self.T, self.H, self.chunks, self.packing and self.packing.bounds

    width = staticmethod(width_of)

    @property
    def BK(self) -> int:
        return self.width(self.K, self.tiles.key)

    @property
    def BV(self) -> int:
        return self.width(self.V, self.tiles.value)

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.tiles.warps, "num_stages": self.tiles.stages}

    def per_chunk(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Slot:
        """Room for a tensor of some sizes per chunk of each head."""
        return self.plan.empty((self.B * self.H, self.chunks, *sizes), dtype)

    def per_sequence(self) -> Slot:
        """Room for a state of each head and sequence."""
        return self.plan.empty((self.sequences, self.H, self.K, self.V), torch.float32)

    def scores(self, x: Slot, y: Slot, log_a: Slot | None, gate: int) -> Slot:
        """(x_i · y_j) ⊙ decay, (B·H, chunks, C, C); gate NONE leaves the decay out."""
        C, width = self.tiles.chunk, x.shape[-1]
        out = self.per_chunk(C, C, dtype=x.dtype)
        self.plan.launch(
            la_scores, (self.programs,), x, y, x if log_a is None else log_a, out, *self.sizes,
            K=width, C=C, BK=self.width(width, self.tiles.inner),
            GATE=gate, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=4, num_stages=self.tiles.stages,
        )  # fmt: skip
        return out

    def scores_key(
        self, q: Slot, k: Slot, log_a: Slot, walked: tuple[Slot, Slot, Slot] | None = None, *,
        lead: bool = False,
    ) -> Slot:  # fmt: skip
        """Σ_c q_ic k_jc decay_c, (B·H, chunks, C, C). Above the diagonal nothing is written.

        walked: flags of the wide chunks, which alone are written, and their prepared queries and keys. lead:
        these queries decay from after the chunk's first step.
        """
        C, BK = self.tiles.chunk, self.width(self.K, 1 << 30)
        out = self.per_chunk(C, C, dtype=q.dtype)
        self.plan.launch(
            la_scores_key, (self.programs * (C // SUB if walked is None else 1),),
            q, k, log_a, *(walked or (q, q, q)), out, *self.sizes, K=self.K, KG=self.gated, C=C, BK=BK,
            CONST=self.const, PRECISION=self.tiles.precision, WALK=walked is not None, LEAD=lead,
            LIMIT=LIMITS[q.dtype], num_warps=min(8, max(1, BK * q.element_size() ** 2 // 256)), num_stages=1,
        )  # fmt: skip
        return out

    def attention(self, q: Slot, k: Slot, log_a: Slot | None) -> Slot:
        """Scores under this call's own gate."""
        if self.gate == KEY and log_a is not None:
            return self.scores_key(q, k, log_a)
        return self.scores(q, k, log_a, self.gate)

    def increments(self, x: Slot, y: Slot, log_a: Slot | None, totals: Slot, *, reverse: bool) -> Slot:
        """Compute what each chunk adds to the state, or to its adjoint: (B·H, chunks, K, V) float32."""
        out = self.per_chunk(self.K, self.V)
        grid = self.programs * triton.cdiv(self.K, self.BK) * triton.cdiv(self.V, self.BV)
        self.plan.launch(
            la_increment, (grid,), x, y, x if log_a is None else log_a, out, totals, *self.sizes,
            K=self.K, KG=self.gated, V=self.V, C=self.tiles.chunk, BK=self.BK, BV=self.BV,
            GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.options,
        )  # fmt: skip
        return out

    def carry(
        self, first: Slot | None, increments: Slot, totals: Slot, dtype: torch.dtype,
        starts: Slot | None = None, *, segments: bool = False,
    ) -> tuple[Slot, Slot, Slot, Slot]:  # fmt: skip
        """States (given the forward's states `starts`: adjoints) at chunk edges, last, boundary, turns.

        increments: (B·H, chunks, K, V) float32, or those of as many segments of each sequence.
        """
        reverse = starts is not None
        states = self.plan.like(increments, dtype)
        last, count = self.per_sequence(), increments.shape[1]
        T, H, _, bounds = self.walk_sizes
        edges = increments.shape[:3] if reverse and self.gate != NONE else (1,)
        boundary = self.plan.empty(edges, torch.float32)
        turn = reverse and self.turning
        turns = self.plan.empty(increments.shape[:3], torch.float32) if turn else boundary
        BV = self.width(self.V, 1 << 30)
        BK = max(1, min(triton.next_power_of_2(self.K), self.tiles.carry // BV))
        self.plan.launch(
            la_carry, (self.heads * triton.cdiv(self.K, BK),),
            increments if first is None else first, increments, totals, states, last,
            states if starts is None else starts, boundary, turns,
            T, H, loop_bound(count), None if segments else bounds, K=self.K, V=self.V, C=self.tiles.chunk,
            BK=BK, BV=BV,
            GATE=self.gate, REVERSE=reverse, TURN=turn, HAS_FIRST=first is not None, STAGES=4, num_warps=4,
        )  # fmt: skip
        return states, last, boundary, turns

    def output(
        self, x: Slot, y: Slot, log_a: Slot | None, states: Slot, scores: Slot, *, reverse: bool
    ) -> Slot:
        """o from q, v, states and scores; reverse: dv from k, do, adjoints and scores."""
        out = self.plan.like(y)
        self.plan.launch(
            la_output, (self.programs * triton.cdiv(self.V, self.BV),),
            x, y, x if log_a is None else log_a, states, scores, out, *self.sizes,
            K=self.K, KG=self.gated, V=self.V, C=self.tiles.chunk, BK=self.width(self.K, self.tiles.inner),
            BV=self.BV, GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.options,
        )  # fmt: skip
        return out

    def grad_qk(
        self, q: Slot, k: Slot, v: Slot, do: Slot, log_a: Slot | None,
        states: Slot, adjoints: Slot, dscores: Slot, boundary: Slot, turns: Slot,
    ) -> tuple[Slot, Slot, Slot, Slot]:  # fmt: skip
        """dq, dk, d log_a (B, T, H, K) or its parts (B, T, H, tiles of K), and d phase (B, T, H, K)."""
        key_tiles = triton.cdiv(self.K, self.BK)
        by_channel = self.gate == KEY and log_a is not None
        partial = torch.float32 if by_channel else self.gradients_dtype
        dq, dk = self.plan.like(q, partial), self.plan.like(k, partial)
        dlog_a = self.plan.empty((self.B, self.T, self.H, self.K if by_channel else key_tiles), torch.float32)
        dphase = self.turned()
        starts = self.block_starts() if by_channel else boundary
        turn_starts = self.block_starts() if by_channel and self.turning else starts
        self.plan.launch(
            la_grad_qk, (self.programs * key_tiles,),
            q, k, v, do, q if log_a is None else log_a, states, adjoints, dscores, boundary, turns,
            starts, turn_starts, dq, dk, dlog_a, dphase, *self.sizes,
            K=self.K, KG=self.gated, V=self.V, C=self.tiles.chunk, BK=self.BK,
            BV=values_at_once(self.V, self.BK, self.tiles.inner), GATE=self.gate, CONST=self.const,
            TURN=self.turning,
            PRECISION=self.tiles.precision, **self.options,
        )  # fmt: skip
        if not by_channel or log_a is None:
            return dq, dk, dlog_a, dphase
        through = dq, dk
        dq, dk = self.plan.like(q, self.gradients_dtype), self.plan.like(k, self.gradients_dtype)
        self.grad_key(q, k, log_a, None, dscores, (starts, turn_starts), through, (dq, dk), (dlog_a, dphase))
        return dq, dk, dlog_a, dphase

    def turned(self, width: int | None = None) -> Slot:
        """Room for the gradient of the phases, (B, T, H, K|width) float32, where that is wanted."""
        shape = (self.B, self.T, self.H, width or self.K) if self.turning else (1,)
        return self.plan.empty(shape, torch.float32)

    def block_starts(self, width: int | None = None) -> Slot:
        """Room for what the gate's gradient begins with in each block, of K channels or `width`."""
        return self.per_chunk(self.tiles.chunk // SUB, width or self.K)

    def grad_key(
        self, q: Slot, k: Slot, log_a: Slot, wide: Slot | None, dscores: Slot, starts: tuple[Slot, Slot],
        through: tuple[Slot, Slot], dqk: tuple[Slot, Slot], gates: tuple[Slot, Slot], *, both: bool = False,
    ) -> None:  # fmt: skip
        """Complete dq, dk, d log_a and d phase under key gates; see the kernel, also for `both`."""
        BK = self.width(self.K, self.tiles.pair_key if wide is None else 1 << 30)
        if both:
            BK = 2 * self.width(self.gated, 1 << 30)
        self.plan.launch(
            la_grad_key, (self.programs * triton.cdiv(self.K, BK),),
            q, k, log_a, q if wide is None else wide, dscores, *starts, *through, *dqk, *gates, *self.sizes,
            K=self.K, KG=self.gated, C=self.tiles.chunk, BK=BK, CONST=self.const, TURN=self.turning,
            BOTH=both, PRECISION=self.tiles.precision, WALK=wide is not None, LIMIT=LIMITS[q.dtype],
            num_warps=min(32, max(1, BK * q.element_size() // 64)), num_stages=1,
        )  # fmt: skip
