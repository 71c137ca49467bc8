"""Launches the kernels, forward and backward, for real operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from . import blocks
from .chunks import la_carry, la_grad_qk, la_increment, la_output, la_scores
from .pairs import la_grad_key, la_scores_key
from .tiles import Tiles, tiles

NONE, SCALAR, KEY = blocks.NONE.value, blocks.SCALAR.value, blocks.KEY.value
SUB = blocks.SUB.value


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return tl.constexpr(count) if triton.knobs.runtime.interpret else count


@dataclass(frozen=True)
class Plan:
    """Shapes, gate and block sizes of one call, with a launcher for each step."""

    B: int
    T: int
    H: int
    K: int
    V: int
    gate: int
    const: bool
    tiles: Tiles

    @classmethod
    def of(cls, q: Tensor, v: Tensor, log_a: Tensor | None) -> Plan:
        B, T, H, K = q.shape
        V = v.shape[-1]
        gate = NONE if log_a is None else KEY if log_a.shape[-1] == K and K > 1 else SCALAR
        chosen = tiles(K, V, wide=q.dtype == torch.float32)
        return cls(B, T, H, K, V, gate, log_a is not None and log_a.dim() == 2, chosen)

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

    def launch(self) -> dict[str, Any]:
        return {"num_warps": self.tiles.warps, "num_stages": self.tiles.stages}

    def scores(self, x: Tensor, y: Tensor, log_a: Tensor | None, gate: int) -> Tensor:
        """(x_i · y_j) ⊙ decay, (B·H, chunks, C, C); gate NONE leaves the decay out."""
        C, width = self.tiles.chunk, x.shape[-1]
        out = x.new_empty(self.B * self.H, self.chunks, C, C)
        la_scores[(self.programs,)](
            x, y, x if log_a is None else log_a, out, *self.sizes,
            K=width, C=C, BK=self.width(width, self.tiles.inner),
            GATE=gate, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=4, num_stages=self.tiles.stages,
        )  # fmt: skip
        return out

    def scores_key(self, q: Tensor, k: Tensor, log_a: Tensor) -> Tensor:
        """Σ_c q_ic k_jc decay_c, (B·H, chunks, C, C); above the diagonal nothing is written."""
        C, BK = self.tiles.chunk, self.width(self.K, 1 << 30)
        out = q.new_empty(self.B * self.H, self.chunks, C, C)
        la_scores_key[(self.programs * (C // SUB),)](
            q, k, log_a, out, *self.sizes,
            K=self.K, C=C, BK=BK, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=min(8, max(1, BK * q.element_size() ** 2 // 256)), num_stages=1,
        )  # fmt: skip
        return out

    def attention(self, q: Tensor, k: Tensor, log_a: Tensor | None) -> Tensor:
        """Scores under this call's own gate."""
        if self.gate == KEY and log_a is not None:
            return self.scores_key(q, k, log_a)
        return self.scores(q, k, log_a, self.gate)

    def increments(
        self, x: Tensor, y: Tensor, log_a: Tensor | None, totals: Tensor, *, reverse: bool
    ) -> Tensor:
        """What each chunk adds to the state, or to its adjoint: (B·H, chunks, K, V) float32."""
        out = x.new_empty(self.B * self.H, self.chunks, self.K, self.V, dtype=torch.float32)
        grid = self.programs * triton.cdiv(self.K, self.BK) * triton.cdiv(self.V, self.BV)
        la_increment[(grid,)](
            x, y, x if log_a is None else log_a, out, totals, *self.sizes,
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.BK, BV=self.BV,
            GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.launch(),
        )  # fmt: skip
        return out

    def carry(
        self,
        first: Tensor | None,
        increments: Tensor,
        totals: Tensor,
        dtype: torch.dtype,
        forward: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """States (given the forward's states and final state: adjoints) at chunk edges, last, boundary."""
        reverse = forward is not None
        states = torch.empty_like(increments, dtype=dtype)
        last = increments.new_empty(self.B, self.H, self.K, self.V)
        boundary = increments.new_empty(increments.shape[:3] if reverse and self.gate != NONE else (1,))
        starts, final = forward if forward is not None else (states, last)
        BV = self.width(self.V, 1 << 30)
        BK = max(1, min(triton.next_power_of_2(self.K), self.tiles.carry // BV))
        la_carry[(self.B * self.H * triton.cdiv(self.K, BK),)](
            increments if first is None else first, increments, totals, states, last, starts, final, boundary,
            loop_bound(self.chunks), K=self.K, V=self.V, BK=BK, BV=BV,
            GATE=self.gate, REVERSE=reverse, HAS_FIRST=first is not None, STAGES=4, num_warps=4,
        )  # fmt: skip
        return states, last, boundary

    def output(
        self, x: Tensor, y: Tensor, log_a: Tensor | None, states: Tensor, scores: Tensor, *, reverse: bool
    ) -> Tensor:
        """o from q, v, states and scores; reverse: dv from k, do, adjoints and scores."""
        out = torch.empty_like(y)
        la_output[(self.programs * triton.cdiv(self.V, self.BV),)](
            x, y, x if log_a is None else log_a, states, scores, out, *self.sizes,
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.width(self.K, self.tiles.inner), BV=self.BV,
            GATE=self.gate, CONST=self.const, REVERSE=reverse, PRECISION=self.tiles.precision,
            **self.launch(),
        )  # fmt: skip
        return out

    def grad_qk(
        self, q: Tensor, k: Tensor, v: Tensor, do: Tensor, log_a: Tensor | None,
        states: Tensor, adjoints: Tensor, dscores: Tensor, boundary: Tensor, dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
        """dq, dk in a dtype, and d log_a (B, T, H, K|1)."""
        key_tiles = triton.cdiv(self.K, self.BK)
        partial = torch.float32 if self.gate == KEY else dtype
        dq, dk = torch.empty_like(q, dtype=partial), torch.empty_like(k, dtype=partial)
        dlog_a = q.new_empty(self.B, self.T, self.H, key_tiles, dtype=torch.float32)
        la_grad_qk[(self.programs * key_tiles,)](
            q, k, v, do, q if log_a is None else log_a, states, adjoints, dscores, boundary,
            dq, dk, dlog_a, *self.sizes,
            K=self.K, V=self.V, C=self.tiles.chunk, BK=self.BK, BV=self.width(self.V, self.tiles.inner),
            GATE=self.gate, CONST=self.const, PRECISION=self.tiles.precision, **self.launch(),
        )  # fmt: skip
        if self.gate != KEY or log_a is None:
            return dq, dk, dlog_a.sum(-1, keepdim=True) if self.gate == SCALAR else None
        dq_states, dk_states = dq, dk
        dq, dk = torch.empty_like(q, dtype=dtype), torch.empty_like(k, dtype=dtype)
        dlog_a = torch.empty_like(dq_states)
        BK = self.width(self.K, self.tiles.pair_key)
        la_grad_key[(self.programs * triton.cdiv(self.K, BK),)](
            q, k, log_a, dscores, boundary, dq_states, dk_states, dq, dk, dlog_a, *self.sizes,
            K=self.K, C=self.tiles.chunk, BK=BK, CONST=self.const, PRECISION=self.tiles.precision,
            num_warps=1, num_stages=1,
        )  # fmt: skip
        return dq, dk, dlog_a

    def grad_phase(
        self, q: Tensor, k: Tensor, dq: Tensor, dk: Tensor, states: Tensor, last: Tensor, adjoints: Tensor
    ) -> Tensor:
        """Gradient (B, T, H, K/2) of the phases rotated into q = [Re, -Im] and k = [Re, Im].

        Like a log gate's: the turns of q and k from a step to its chunk's end, plus that of the state there.
        """
        (q_re, q_im), (k_re, k_im) = q.float().chunk(2, -1), k.float().chunk(2, -1)
        (dq_re, dq_im), (dk_re, dk_im) = dq.chunk(2, -1), dk.chunk(2, -1)
        turns = dq_re * q_im - dq_im * q_re + dk_re * k_im - dk_im * k_re
        C, half = self.tiles.chunk, self.K // 2
        turns = functional.pad(turns, (0, 0, 0, 0, 0, self.chunks * C - self.T))
        turns = turns.view(self.B, self.chunks, C, self.H, half).flip(2).cumsum(2).flip(2)

        def turned(state: Tensor, adjoint: Tensor) -> Tensor:
            (re, im), (d_re, d_im) = state.float().chunk(2, -2), adjoint.float().chunk(2, -2)
            return (d_im * re - d_re * im).sum(-1)

        edges = turned(states[:, 1:], adjoints[:, :-1])
        final = turned(last.flatten(0, 1).unsqueeze(1), adjoints[:, -1:])
        ends = torch.cat([edges, final], 1).view(self.B, self.H, self.chunks, half)
        turns = turns + ends.permute(0, 2, 1, 3).unsqueeze(2)
        return turns.reshape(self.B, -1, self.H, half)[:, : self.T]


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
        plan = Plan.of(q, v, log_a)
        width = plan.K if plan.gate == KEY else 1
        totals = q.new_empty(plan.B * plan.H, plan.chunks, width, dtype=torch.float32)
        increments = plan.increments(k, v, log_a, totals, reverse=False)
        states, last, _ = plan.carry(first, increments, totals, q.dtype)
        o = plan.output(q, v, log_a, states, plan.attention(q, k, log_a), reverse=False)
        ctx.save_for_backward(q, k, v, log_a, totals, states, last)
        ctx.plan, ctx.has_first = plan, first is not None
        ctx.phase_shape = None if phase is None else phase.shape
        ctx.set_materialize_grads(False)
        return o, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor | None, dlast: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, log_a, totals, states, last = ctx.saved_tensors
        plan: Plan = ctx.plan
        Plan.of(q, v, log_a)  # for the notes: both passes have the tiles of forward, whose chunks they share
        do = torch.zeros_like(v) if do is None else do.contiguous()
        dlast = None if dlast is None else dlast.contiguous()
        increments = plan.increments(q, do, log_a, totals, reverse=True)
        adjoints, dfirst, boundary = plan.carry(dlast, increments, totals, q.dtype, (states, last))
        del increments
        dv = plan.output(k, do, log_a, adjoints, plan.attention(q, k, log_a), reverse=True)
        dscores = plan.scores(do, v, log_a, SCALAR if plan.gate == SCALAR else NONE)
        turning = ctx.needs_input_grad[5]
        dtype = torch.float32 if turning else q.dtype
        dq, dk, dlog_a = plan.grad_qk(q, k, v, do, log_a, states, adjoints, dscores, boundary, dtype)
        dphase = None
        if turning:
            dphase = plan.grad_phase(q, k, dq, dk, states, last, adjoints)
            dphase = dphase.sum_to_size(*([1] * (4 - len(ctx.phase_shape))), *ctx.phase_shape)
            dphase = dphase.view(ctx.phase_shape)
        if plan.const and dlog_a is not None:
            dlog_a = dlog_a.sum((0, 1))
        return dq, dk, dv, dlog_a, dfirst if ctx.has_first else None, dphase
