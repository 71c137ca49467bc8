"""Launches, and the autograd function around the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..._triton.ahead import launch, start, wait
from .backward import selective_scan_backward
from .forward import selective_scan_forward
from .packed import Packed
from .spans import selective_scan_summary
from .streamed import selective_scan_forward_streamed, selective_scan_summary_streamed
from .tiles import MARK, TILES, Tiles, key, streamed_tiles, tiles

# Warps a multiprocessor. Where there are fewer than ENOUGH, and WANTED ones take at least FEWEST_SPANS
# spans, time is cut into these: the gates of all but one are formed twice, which 32 warps hide better than 8.
ENOUGH = 7
WANTED = 32
WANTED_STREAMED = 20  # these hide less and fill the chip once
FEWEST_SPANS = 3
FEWEST_MARKS = 4  # a span

KINDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def on_gpu(x: Tensor) -> bool:
    return x.is_cuda


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
class Around:
    """What is fused around the recurrence: skip (D,), output gate (B, T, D), bias of delta (D,), and how."""

    skip: Tensor | None = None
    z: Tensor | None = None
    bias: Tensor | None = None
    softplus: bool = False
    held: bool = False
    bounds: Sequence[int] | None = None

    @property
    def constants(self) -> dict[str, Any]:
        return {"HELD": self.held, "SOFTPLUS": self.softplus}

    def work(self, gate: str) -> str:
        """As the table of tiles has it."""
        return gate if self.nothing else "fused"

    @property
    def nothing(self) -> bool:
        tensors = (self.skip, self.z, self.bias, self.bounds)
        return not (self.softplus or self.held) and all(each is None for each in tensors)


def streamable(N: int, around: Around, *data: Tensor) -> bool:
    """Whether operands (B, T, ...) can come by way of shared memory: whole marks and groups, rows that begin
    at 16 bytes, and nothing else to load."""
    return (
        around.nothing
        and data[0].shape[1] % MARK == 0
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
    """Sizes of a call, tile sizes of a pass, and the length of the spans of time that it walks.

    streams: whether operands can come by way of shared memory; they do where the tiles say so.
    """

    B: int
    T: int
    D: int
    N: int
    gate: str
    cut: Tiles
    span: int
    packed: Packed | None
    streams: bool = False

    @classmethod
    def of(
        cls, pass_: str, x: Tensor, k: Tensor, q: Tensor, gate: str, around: Around | None = None,
        device: torch.device | None = None, *, streams: bool = False,
    ) -> Plan:  # fmt: skip
        """device: where the kernels run, if not where the operands are."""
        B, T, D = x.shape
        N = k.shape[2]
        around = around or Around()
        work, wide = around.work(gate), max(k.element_size(), q.element_size()) == 4
        chip, marks = processors(device or x.device), triton.cdiv(T, MARK)

        def strands(cut: Tiles) -> int:
            """Warps that walk one span."""
            return B * triton.cdiv(D, cut.block) * cut.warps

        streamed = partial(streamed_cut, N=N, D=D, gate=gate, wide=wide, streams=streams)
        spans, cut = 1, None
        if (warps := strands(TILES.row(key(pass_, N, work, wide=wide)))) < ENOUGH * chip:
            cut = streamed(pass_ + "_spans")
            wanted = WANTED * chip // warps if cut is None else WANTED_STREAMED * chip // strands(cut)
            spans = most = min(wanted, marks // FEWEST_MARKS)
            if cut is None or triton.knobs.runtime.interpret:
                spans = next((count for count in range(most, most // 2, -1) if marks % count == 0), most)
            spans = spans if spans >= FEWEST_SPANS else 1
        if spans == 1:
            cut = streamed(pass_) or tiles(pass_, N, work, wide=wide)
        elif cut is None:
            cut = tiles(pass_ + "_spans", N, work, wide=wide)
        span = triton.cdiv(marks, spans) * MARK
        packed = None if around.bounds is None else Packed.of(around.bounds, span, MARK, cut.steps, x.device)
        return cls(B, T, D, N, gate, cut, span, packed, streams)

    @property
    def blocks(self) -> int:
        return triton.cdiv(self.D, self.cut.block)

    @property
    def spans(self) -> int:
        """Of a batch element, or of all packed sequences."""
        return triton.cdiv(self.T, self.span) if self.packed is None else self.packed.spans

    @property
    def marks(self) -> int:
        """Of a batch element, or of all packed sequences."""
        return triton.cdiv(self.T, MARK) if self.packed is None else self.packed.marks

    @property
    def rounds(self) -> int:
        """Of the marks that all programs have before them at a time."""
        if self.packed is not None:
            return self.packed.rounds * self.blocks
        return self.B * self.blocks * self.spans * (MARK // self.cut.steps)

    @property
    def table(self) -> Tensor | None:
        return None if self.packed is None else self.packed.table

    def inner(self, *, reverse: bool) -> tuple[int, Tensor | None]:
        """How many spans need a summary: those that others follow. Of packed sequences also which ones."""
        if self.packed is None:
            return self.B * (self.spans - 1), None
        rows = self.packed.preceded if reverse else self.packed.followed
        return len(rows), rows

    @property
    def rows(self) -> int:
        """States of a channel with those that fill up the groups."""
        return self.cut.groups * self.cut.states

    @property
    def constants(self) -> dict[str, Any]:
        cut = self.cut
        return {
            "GATE": self.gate, "D": self.D, "EVEN": self.D % cut.block == 0,
            "WHOLE": self.packed is None and self.T % self.span == 0,
            "FLUSH": not triton.knobs.runtime.interpret, "R": cut.steps, "BD": cut.block, "G": cut.groups,
            "M": cut.states, "VECTOR": cut.channels, "num_warps": cut.warps, "maxnreg": cut.registers,
        }  # fmt: skip

    @property
    def streamed(self) -> dict[str, Any]:
        """Constants of a kernel whose operands come by way of shared memory."""
        general = ("EVEN", "WHOLE")
        return {n: x for n, x in self.constants.items() if n not in general} | {"STAGES": self.cut.stages}

    def empty(self, like: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=like.device)

    def summaries(
        self, v: Tensor, delta: Tensor, w: Keys, k: Keys, A: Tensor | None, z: Tensor | None, around: Around,
        *, reverse: bool,
    ) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """What each span but the last (reversed: the first) does to the state; None with no such span."""
        programs, inner = self.inner(reverse=reverse)
        if programs == 0:
            return None, None
        pass_, wide = "backward_summary" if reverse else "forward_summary", 2 in (w.per, k.per)
        sums = self.empty(v, self.B, self.spans, self.rows, self.D)
        product = (self.B, self.spans, self.D) if self.gate == "exp" else sums.shape
        decays = self.empty(v, *product)
        cut = streamed_cut(pass_, N=self.N, D=self.D, gate=self.gate, wide=wide, streams=self.streams)
        if cut is not None:
            plan = replace(self, cut=cut)
            launch(
                selective_scan_summary_streamed, programs * plan.blocks,
                v, delta, w.words, k.words, A, sums, decays,
                self.T, self.span, loop_bound(self.span // cut.steps), self.spans,
                REVERSE=reverse, N=self.N, WORDS_W=w.count, WORDS_K=k.count, KIND_W=w.kind, KIND_K=k.kind,
                **plan.streamed,
            )  # fmt: skip
            return sums, decays
        plan = replace(self, cut=tiles(pass_, self.N, around.work(self.gate), wide=wide))
        launch(
            selective_scan_summary, programs * plan.blocks,
            v, delta, w.words, k.words, A, z, around.bias, self.table, inner, sums, decays,
            self.T, self.span, loop_bound(self.span // plan.cut.steps), self.spans,
            REVERSE=reverse, N=self.N, WORDS_W=w.count, WORDS_K=k.count, KIND_W=w.kind, KIND_K=k.kind,
            PER_W=w.per, PER_K=k.per, **around.constants, **plan.constants,
        )  # fmt: skip
        return sums, decays


class SelectiveScan(torch.autograd.Function):
    """x, Δ, k, q, A, S_0, skip, z, bias (from A on None if absent), gate, softplus, held, bounds → o, S_T.

    Saves all operands, and some states.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, k: Tensor, q: Tensor, A: Tensor | None, state: Tensor | None,
        skip: Tensor | None, z: Tensor | None, bias: Tensor | None,
        gate: str, softplus: bool, held: bool, bounds: Sequence[int] | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, delta = x.contiguous(), delta.contiguous()
        rates, skip, z, bias, state = (
            None if each is None else each.contiguous() for each in (A, skip, z, bias, state)
        )
        around = Around(skip, z, bias, softplus, held, bounds)
        keys, queries = Keys.of(k), Keys.of(q)
        streams = streamable(k.shape[2], around, x, delta, keys.words, queries.words)
        plan = Plan.of("forward", x, k, q, gate, around, streams=streams)
        o = torch.empty_like(x)
        final = _final(plan, x, state, bounds)
        batches = 1 if bounds is not None else plan.B
        saved = plan.empty(x, batches, plan.marks, plan.rows, plan.D) if any(ctx.needs_input_grad) else None
        kept = x, delta, k, q, A, skip, z, bias, saved
        ctx.save_for_backward(*kept)
        ctx.call = gate, softplus, held, bounds, x.device
        ctx.compiled = None
        if saved is not None and on_gpu(x):
            types = tuple(None if each is None else each.dtype for each in kept)
            call = *ctx.call[:3], x.device, bounds is None
            case = types, *call, plan.N, plan.streams, plan.spans > 1, *plan.constants.values()
            ctx.compiled = start(case, partial(backward_without_memory, kept, ctx.call, o, final))
        with torch.cuda.device_of(x):
            sums, decays = plan.summaries(x, delta, keys, keys, rates, None, around, reverse=False)
            programs = plan.B * plan.blocks * plan.spans
            if plan.cut.stages:
                launch(
                    selective_scan_forward_streamed, programs,
                    x, delta, keys.words, queries.words, rates, state, sums, decays, o, final, saved,
                    plan.T, plan.span, loop_bound(plan.span // plan.cut.steps), plan.spans, plan.marks,
                    N=plan.N, WORDS_K=keys.count, WORDS_Q=queries.count, KIND_K=keys.kind,
                    KIND_Q=queries.kind, ROUNDS=MARK // plan.cut.steps, **plan.streamed,
                )  # fmt: skip
                return o, final
            launch(
                selective_scan_forward, programs,
                x, delta, keys.words, queries.words, rates, state, skip, z, bias, plan.table,
                sums, decays, o, final, saved,
                plan.T, plan.span, loop_bound(plan.span // plan.cut.steps), plan.spans, plan.marks,
                N=plan.N, WORDS_K=keys.count, WORDS_Q=queries.count, KIND_K=keys.kind, KIND_Q=queries.kind,
                PER_K=keys.per, PER_Q=queries.per, ROUNDS=MARK // plan.cut.steps,
                **around.constants, **plan.constants,
            )  # fmt: skip
        return o, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, final_grad: Tensor) -> tuple[Tensor | None, ...]:
        x, delta, k, q, A, skip, z, bias, saved = ctx.saved_tensors
        wait(ctx.compiled)
        gate, softplus, held, bounds, device = ctx.call
        around = Around(skip, z, bias, softplus, held, bounds)
        g, final_grad = g.contiguous(), final_grad.contiguous()
        rates = None if A is None else A.contiguous()
        keys, queries = Keys.of(k), Keys.of(q)
        streams = streamable(k.shape[2], around, x, delta, keys.words, queries.words, g)
        plan = Plan.of("backward", x, k, q, gate, around, device, streams=streams)
        programs = plan.B * plan.blocks * plan.spans
        scratch = plan.empty(x, plan.rounds, plan.rows, plan.cut.block)
        dx, ddelta = torch.empty_like(x), torch.empty_like(delta)
        dz = None if z is None else torch.empty_like(z)
        parts = plan.empty(x, plan.B, plan.blocks, plan.T, plan.cut.groups, 2, plan.cut.states)
        dA = None if A is None else plan.empty(x, plan.B, plan.spans, plan.rows, plan.D)
        dskip, dbias = (
            None if each is None else plan.empty(x, plan.B, plan.spans, plan.D) for each in (skip, bias)
        )
        dstate = torch.empty_like(final_grad) if bounds is None else final_grad.clone()
        with torch.cuda.device_of(x):
            sums, decays = plan.summaries(g, delta, queries, keys, rates, z, around, reverse=True)
            launch(
                selective_scan_backward, programs,
                x, delta, keys.words, queries.words, rates, skip, z, bias, plan.table,
                g, saved, final_grad, sums, decays, scratch,
                dx, ddelta, parts, dA, dstate, dskip, dz, dbias,
                plan.T, plan.span, plan.spans, plan.marks, loop_bound(plan.span // MARK),
                N=plan.N, WORDS_K=keys.count, WORDS_Q=queries.count, KIND_K=keys.kind, KIND_Q=queries.kind,
                PER_K=keys.per, PER_Q=queries.per, ROUNDS=MARK // plan.cut.steps,
                **around.constants, **plan.constants,
            )  # fmt: skip
        dk, dq = parts.sum(1).movedim(3, 0).flatten(3)[..., : plan.N]
        if dA is not None and A is not None:
            dA = dA.sum((0, 1))[: plan.N].t().to(A.dtype)
        dskip, dbias = (
            None if part is None else part.sum((0, 1)).to(like.dtype)
            for part, like in ((dskip, skip), (dbias, bias))
        )
        dstate = dstate if ctx.needs_input_grad[5] else None
        return dx, ddelta, dk.to(k.dtype), dq.to(q.dtype), dA, dstate, dskip, dz, dbias, *(None,) * 4


def backward_without_memory(
    kept: Sequence[Tensor | None], call: tuple[Any, ...], o: Tensor, final: Tensor
) -> Callable[[], object]:
    """The backward pass of a call, on tensors without memory: its launches can only be compiled.

    kept, call: what forward leaves in its context. o, final: its results, to which the gradients are alike.
    """
    context = SimpleNamespace(
        saved_tensors=[None if each is None else each.detach().to("meta") for each in kept],
        call=call,
        compiled=None,
        needs_input_grad=(True,) * (len(kept) + len(call)),
    )
    gradients = o.detach().to("meta"), final.detach().to("meta")

    def compute() -> None:
        with torch.cuda.device(call[-1].index if call[-1].type == "cuda" else -1):
            SelectiveScan.backward(context, *gradients)

    return compute


def _final(plan: Plan, x: Tensor, state: Tensor | None, bounds: Sequence[int] | None) -> Tensor:
    """Room for the final states; a packed sequence without steps keeps its own, for no program sees it."""
    if bounds is None:
        return plan.empty(x, plan.B, plan.D, plan.N)
    if state is not None:
        return state.clone()
    return x.new_zeros(len(bounds) - 1, plan.D, plan.N, dtype=torch.float32)
