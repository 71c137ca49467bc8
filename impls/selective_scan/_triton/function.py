"""Launches, and the autograd function around the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from .backward import selective_scan_backward
from .forward import selective_scan_forward
from .spans import selective_scan_summary
from .tiles import MARK, Tiles, tiles

# Warps a multiprocessor. Where there are fewer than ENOUGH, and WANTED ones take at least FEWEST_SPANS
# spans, time is cut into these: the gates of all but one are formed twice, which 32 warps hide better than 8.
ENOUGH = 7
WANTED = 32
FEWEST_SPANS = 3
FEWEST_MARKS = 4  # a span

KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def loop_bound(count: int) -> Any:
    """A run-time loop bound as a kernel argument.

    Triton's interpreter cannot count to a tensor under NumPy ≥ 2.4; there the bound is a constant.
    """
    return tl.constexpr(count) if triton.knobs.runtime.interpret else count


@dataclass(frozen=True, slots=True)
class Keys:
    """k or q (B, T, N) as words of 8 bytes (B, T, count), padded with zeros to whole words."""

    words: Tensor
    kind: str
    per: int

    @classmethod
    def of(cls, k: Tensor) -> Keys:
        per = 8 // k.element_size()
        if k.shape[2] % per:
            k = torch.nn.functional.pad(k, (0, -k.shape[2] % per))
        k = k.contiguous()
        if k.data_ptr() % 8:
            k = k.clone()
        return cls(k.view(torch.int64), KINDS[k.dtype], per)

    @property
    def count(self) -> int:
        return self.words.shape[2]


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a call, tile sizes of a pass, and the length of the spans of time that it walks."""

    B: int
    T: int
    D: int
    N: int
    gate: str
    cut: Tiles
    span: int

    @classmethod
    def of(cls, pass_: str, x: Tensor, k: Tensor, q: Tensor, gate: str) -> Plan:
        B, T, D = x.shape
        N = k.shape[2]
        cut = tiles(pass_, N, wide=max(k.element_size(), q.element_size()) == 4)
        warps = B * triton.cdiv(D, cut.block) * cut.warps
        marks = triton.cdiv(T, MARK)
        chip = processors(x.device)
        most = min(WANTED * chip // warps, marks // FEWEST_MARKS) if warps < ENOUGH * chip else 1
        spans = next((count for count in range(most, most // 2, -1) if marks % count == 0), most)
        spans = spans if spans >= FEWEST_SPANS else 1
        return cls(B, T, D, N, gate, cut, triton.cdiv(marks, spans) * MARK)

    @property
    def blocks(self) -> int:
        return triton.cdiv(self.D, self.cut.block)

    @property
    def spans(self) -> int:
        return triton.cdiv(self.T, self.span)

    @property
    def marks(self) -> int:
        return triton.cdiv(self.T, MARK)

    @property
    def rows(self) -> int:
        """States of a channel with those that fill up the groups."""
        return self.cut.groups * self.cut.states

    @property
    def constants(self) -> dict[str, Any]:
        cut = self.cut
        return {
            "GATE": self.gate, "D": self.D, "WHOLE": self.T % self.span == 0, "EVEN": self.D % cut.block == 0,
            "FLUSH": not triton.knobs.runtime.interpret, "R": cut.steps, "BD": cut.block, "G": cut.groups,
            "M": cut.states, "VECTOR": cut.channels, "num_warps": cut.warps, "maxnreg": cut.registers,
        }  # fmt: skip

    def empty(self, like: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device)

    def summaries(
        self, v: Tensor, delta: Tensor, w: Keys, k: Keys, A: Tensor | None, *, reverse: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """What each span but the last (reversed: the first) does to the state; None with one span."""
        if self.spans == 1:
            return None, None
        sums = self.empty(v, self.B, self.spans, self.rows, self.D)
        product = (self.B, self.spans, self.D) if self.gate == "exp" else sums.shape
        decays = self.empty(v, *product)
        selective_scan_summary[(self.B * self.blocks * (self.spans - 1),)](
            v, delta, w.words, k.words, A, sums, decays,
            self.T, self.span, loop_bound(self.span // self.cut.steps), self.spans,
            REVERSE=reverse, N=self.N, WORDS_W=w.count, WORDS_K=k.count, KIND_W=w.kind, KIND_K=k.kind,
            PER_W=w.per, PER_K=k.per, **self.constants,
        )  # fmt: skip
        return sums, decays


class SelectiveScan(torch.autograd.Function):
    """(x, Δ, k, q, A or None, S_0 or None, gate) → (o, S_T); saves all operands, and some states."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None,
        gate: str,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, delta = x.contiguous(), delta.contiguous()
        rates = None if A is None else A.contiguous()
        plan = Plan.of("forward", x, k, q, gate)
        keys, queries = Keys.of(k), Keys.of(q)
        o = torch.empty_like(x)
        final = plan.empty(x, plan.B, plan.D, plan.N)
        saved = plan.empty(x, plan.B, plan.marks, plan.rows, plan.D) if any(ctx.needs_input_grad) else None
        with torch.cuda.device_of(x):
            sums, decays = plan.summaries(x, delta, keys, keys, rates, reverse=False)
            selective_scan_forward[(plan.B * plan.blocks * plan.spans,)](
                x, delta, keys.words, queries.words, rates, None if state is None else state.contiguous(),
                sums, decays, o, final, saved,
                plan.T, plan.span, loop_bound(plan.span // plan.cut.steps), plan.spans, plan.marks,
                N=plan.N, WORDS_K=keys.count, WORDS_Q=queries.count, KIND_K=keys.kind, KIND_Q=queries.kind,
                PER_K=keys.per, PER_Q=queries.per, ROUNDS=MARK // plan.cut.steps, **plan.constants,
            )  # fmt: skip
        ctx.save_for_backward(x, delta, k, q, A, saved)
        ctx.gate = gate
        return o, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        x, delta, k, q, A, saved = ctx.saved_tensors
        g, final_grad = g.contiguous(), final_grad.contiguous()
        rates = None if A is None else A.contiguous()
        plan = Plan.of("backward", x, k, q, ctx.gate)
        keys, queries = Keys.of(k), Keys.of(q)
        programs = plan.B * plan.blocks * plan.spans
        scratch = plan.empty(x, programs, MARK // plan.cut.steps, plan.rows, plan.cut.block)
        dx, ddelta = torch.empty_like(x), torch.empty_like(delta)
        parts = plan.empty(x, plan.B, plan.blocks, plan.T, plan.cut.groups, 2, plan.cut.states)
        dA = None if A is None else plan.empty(x, plan.B, plan.spans, plan.rows, plan.D)
        dstate = torch.empty_like(final_grad)
        with torch.cuda.device_of(x):
            sums, decays = plan.summaries(g, delta, queries, keys, rates, reverse=True)
            selective_scan_backward[(programs,)](
                x, delta, keys.words, queries.words, rates, g, saved, final_grad, sums, decays, scratch,
                dx, ddelta, parts, dA, dstate,
                plan.T, plan.span, plan.spans, plan.marks, loop_bound(plan.span // MARK),
                N=plan.N, WORDS_K=keys.count, WORDS_Q=queries.count, KIND_K=keys.kind, KIND_Q=queries.kind,
                PER_K=keys.per, PER_Q=queries.per, ROUNDS=MARK // plan.cut.steps, **plan.constants,
            )  # fmt: skip
        dk, dq = parts.sum(1).movedim(3, 0).flatten(3)[..., : plan.N]
        if dA is not None and A is not None:
            dA = dA.sum((0, 1))[: plan.N].t().to(A.dtype)
        needs_state = ctx.needs_input_grad[5]
        return dx, ddelta, dk.to(k.dtype), dq.to(q.dtype), dA, dstate if needs_state else None, None
