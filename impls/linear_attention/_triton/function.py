"""Launches the kernels, forward and backward, for real operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._triton.host import loop_bound
from ..._triton.plan import Plan, Slot, packed, planned
from . import blocks
from .chunks import la_carry, la_grad_qk, la_increment, la_output, la_scores
from .pairs import la_grad_key, la_scores_key
from .phase import phase_gradient
from .tiles import Tiles, tiles

NONE, SCALAR, KEY = blocks.NONE.value, blocks.SCALAR.value, blocks.KEY.value
SUB = blocks.SUB.value


@dataclass(frozen=True)
class Schedule:
    """Shapes, gate and block sizes of one call, with a launch for each step of a plan."""

    plan: Plan
    B: int
    T: int
    H: int
    K: int
    V: int
    gate: int
    const: bool
    tiles: Tiles

    @classmethod
    def of(cls, plan: Plan, q: Slot, v: Slot, log_a: Slot | None, cut: Tiles | None = None) -> Schedule:
        """cut: block sizes, where they are not those in force."""
        B, T, H, K = q.shape
        V = v.shape[-1]
        gate = NONE if log_a is None else KEY if log_a.shape[-1] == K and K > 1 else SCALAR
        chosen = tiles(K, V, wide=q.dtype == torch.float32)
        return cls(plan, B, T, H, K, V, gate, log_a is not None and log_a.dim() == 2, cut or chosen)

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.T, self.tiles.chunk)

    @property
    def programs(self) -> int:
        """Chunks of all heads."""
        return self.B * self.H * self.chunks

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.T, self.H, self.chunks

    def width(self, size: int, limit: int) -> int:
        return max(16, min(limit, triton.next_power_of_2(size)))

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

    def scores_key(self, q: Slot, k: Slot, log_a: Slot) -> Slot:
        """Σ_c q_ic k_jc decay_c, (B·H, chunks, C, C); above the diagonal nothing is written."""
        C, BK = self.tiles.chunk, self.width(self.K, 1 << 30)
        out = self.per_chunk(C, C, dtype=q.dtype)
        self.plan.launch(
            la_scores_key, (self.programs * (C // SUB),), q, k, log_a, out, *self.sizes,
            K=self.K, C=C, BK=BK, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=min(8, max(1, BK * q.element_size() ** 2 // 256)), num_stages=1,
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
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.BK, BV=self.BV,
            GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.options,
        )  # fmt: skip
        return out

    def carry(
        self, first: Slot | None, increments: Slot, totals: Slot, dtype: torch.dtype,
        forward: tuple[Slot, Slot] | None = None,
    ) -> tuple[Slot, Slot, Slot]:  # fmt: skip
        """States (given the forward's states and final state: adjoints) at chunk edges, last, boundary."""
        reverse = forward is not None
        states = self.plan.like(increments, dtype)
        last = self.plan.empty((self.B, self.H, self.K, self.V), torch.float32)
        edges = increments.shape[:3] if reverse and self.gate != NONE else (1,)
        boundary = self.plan.empty(edges, torch.float32)
        starts, final = forward if forward is not None else (states, last)
        BV = self.width(self.V, 1 << 30)
        BK = max(1, min(triton.next_power_of_2(self.K), self.tiles.carry // BV))
        self.plan.launch(
            la_carry, (self.B * self.H * triton.cdiv(self.K, BK),),
            increments if first is None else first, increments, totals, states, last, starts, final, boundary,
            loop_bound(self.chunks), K=self.K, V=self.V, BK=BK, BV=BV,
            GATE=self.gate, REVERSE=reverse, HAS_FIRST=first is not None, STAGES=4, num_warps=4,
        )  # fmt: skip
        return states, last, boundary

    def output(
        self, x: Slot, y: Slot, log_a: Slot | None, states: Slot, scores: Slot, *, reverse: bool
    ) -> Slot:
        """o from q, v, states and scores; reverse: dv from k, do, adjoints and scores."""
        out = self.plan.like(y)
        self.plan.launch(
            la_output, (self.programs * triton.cdiv(self.V, self.BV),),
            x, y, x if log_a is None else log_a, states, scores, out, *self.sizes,
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.width(self.K, self.tiles.inner), BV=self.BV,
            GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.options,
        )  # fmt: skip
        return out

    def grad_qk(
        self, q: Slot, k: Slot, v: Slot, do: Slot, log_a: Slot | None,
        states: Slot, adjoints: Slot, dscores: Slot, boundary: Slot, dtype: torch.dtype,
    ) -> tuple[Slot, Slot, Slot]:  # fmt: skip
        """dq, dk in a dtype, and d log_a (B, T, H, K), or its parts (B, T, H, tiles of K)."""
        key_tiles = triton.cdiv(self.K, self.BK)
        partial = torch.float32 if self.gate == KEY else dtype
        dq, dk = self.plan.like(q, partial), self.plan.like(k, partial)
        dlog_a = self.plan.empty((self.B, self.T, self.H, key_tiles), torch.float32)
        self.plan.launch(
            la_grad_qk, (self.programs * key_tiles,),
            q, k, v, do, q if log_a is None else log_a, states, adjoints, dscores, boundary,
            dq, dk, dlog_a, *self.sizes,
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.BK, BV=self.width(self.V, self.tiles.inner),
            GATE=self.gate, CONST=self.const, PRECISION=self.tiles.precision, **self.options,
        )  # fmt: skip
        if self.gate != KEY or log_a is None:
            return dq, dk, dlog_a
        dq_states, dk_states = dq, dk
        dq, dk = self.plan.like(q, dtype), self.plan.like(k, dtype)
        dlog_a = self.plan.like(dq_states)
        BK = self.width(self.K, self.tiles.pair_key)
        self.plan.launch(
            la_grad_key, (self.programs * triton.cdiv(self.K, BK),),
            q, k, log_a, dscores, boundary, dq_states, dk_states, dq, dk, dlog_a, *self.sizes,
            K=self.K, C=self.tiles.chunk, BK=BK, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=1, num_stages=1,
        )  # fmt: skip
        return dq, dk, dlog_a


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, first: Slot | None
) -> tuple[Any, ...]:
    """o, S_T, the chunks' log decays, the states before them, and the block sizes that both passes share."""
    schedule = Schedule.of(plan, q, v, log_a)
    totals = schedule.per_chunk(schedule.K if schedule.gate == KEY else 1)
    increments = schedule.increments(k, v, log_a, totals, reverse=False)
    states, last, _ = schedule.carry(first, increments, totals, q.dtype)
    o = schedule.output(q, v, log_a, states, schedule.attention(q, k, log_a), reverse=False)
    return o, last, totals, states, schedule.tiles


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, log_a: Slot | None, totals: Slot, states: Slot, last: Slot,
    do: Slot, dlast: Slot | None, *, cut: Tiles, turning: bool,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, d log_a or its parts, dS_0, and the adjoints of the states after chunks.

    cut: block sizes of forward, whose chunks these are. turning: dq and dk are wanted in float32.
    """
    schedule = Schedule.of(plan, q, v, log_a, cut)
    increments = schedule.increments(q, do, log_a, totals, reverse=True)
    adjoints, dfirst, boundary = schedule.carry(dlast, increments, totals, q.dtype, (states, last))
    dv = schedule.output(k, do, log_a, adjoints, schedule.attention(q, k, log_a), reverse=True)
    dscores = schedule.scores(do, v, log_a, SCALAR if schedule.gate == SCALAR else NONE)
    dtype = torch.float32 if turning else q.dtype
    dq, dk, dlog_a = schedule.grad_qk(q, k, v, do, log_a, states, adjoints, dscores, boundary, dtype)
    return dq, dk, dv, None if log_a is None else dlog_a, dfirst, adjoints if turning else None


class LinearAttention(torch.autograd.Function):
    """(o, S_T) of real contiguous operands of one dtype.

    log_a float32: None, (H, K|1) or (B, T, H, K|1). phase: already in q and k, given only to receive
    its gradient: (H, K/2|1) or (B, T, H, K/2|1). Keeps the operands and the states before each chunk (in the
    operands' dtype, T/chunk · K · V a head), recomputes the scores.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None,
        first: Tensor | None,
        phase: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        o, last, totals, states, cut = forward_pass(q, k, v, log_a, first)
        ctx.save_for_backward(q, k, v, log_a, totals, states, last)
        ctx.cut, ctx.has_first = cut, first is not None
        ctx.phase_shape = None if phase is None else phase.shape
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_a, totals, states, last = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else packed(do)
        dlast = None if dlast is None else packed(dlast)
        turning = ctx.needs_input_grad[5]
        dq, dk, dv, dlog_a, dfirst, adjoints = backward_pass(
            q, k, v, log_a, totals, states, last, do, dlast, cut=ctx.cut, turning=turning
        )
        dphase = None
        if turning:
            dphase = phase_gradient(q, k, dq, dk, states, last, adjoints, ctx.cut.chunk)
            dphase = dphase.sum_to_size(*([1] * (4 - len(ctx.phase_shape))), *ctx.phase_shape)
            dphase = dphase.view(ctx.phase_shape)
        return dq, dk, dv, whole(dlog_a, log_a), dfirst if ctx.has_first else None, dphase


def whole(parts: Tensor | None, log_a: Tensor | None) -> Tensor | None:
    """The gradient of the log gates from its parts: tiles of K, and all steps of constant gates."""
    if parts is None or log_a is None:
        return None
    if parts.shape[-1] != log_a.shape[-1]:
        parts = parts.sum(-1, keepdim=True)
    return parts.sum((0, 1)) if log_a.dim() == 2 else parts
