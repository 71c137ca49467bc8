"""Plans of the kernels, and the autograd function around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..._autograd import once_differentiable
from ..._cuda.enqueue import enqueue
from ..._cuda.load import processors
from ..._cuda.step import CudaStep
from ..._triton.plan import Plan, Slot, aligned, packed, planned
from ..common import shared_sum
from .program import (
    CARRY,
    CHUNKS,
    GRADIENTS,
    WALK,
    WALK_BACK,
    WALK_BACK_ENDS,
    WALK_BACK_WIDE,
    WALK_BACK_WIDE_ENDS,
    WALK_ENDS,
    WALK_KEEP,
    WALK_WIDE,
    WALK_WIDE_ENDS,
    WALK_WIDE_KEEP,
    Kernel,
    compiling,
    loaded,
)

CHUNK = 64
SQUARE = 2_560  # numbers of a matrix of a chunk on and below its diagonal, in blocks of 16
STRIP = 64  # values of a block of a walk, of one or two strips
WIDEST = 128
CARRIED = 16  # values of a block that carries states from segment to segment
RESIDENT = 5  # blocks of a multiprocessor that find inverses
VECTORS = 5 * CHUNK  # numbers per chunk: gates, rates and their sums

# Measured on an H100 at K = V = 128, in µs.
WALKED = 1.5  # a chunk of a walk with an output
ENDED = 1.3  # without one
MOVE = 2.9  # from the beginning of a segment to that of the next; on an H200
LAUNCHES = 10.0  # of the kernels that segments need beside


def launch(kernel: Kernel, grid: int, arguments: list[int], device: int, stream: int) -> None:
    """Launch on a stream of a device, if there is a block; every argument has 64 bits."""
    if not grid:
        return
    handle = int(loaded(kernel, device).handle)
    enqueue(handle, grid, kernel.threads, kernel.shared_bytes, stream, arguments, device)


class Launch(CudaStep):
    """A kernel and its grid, with the slots and sizes that it takes."""

    def __init__(self, kernel: Kernel, grid: int, slots: Sequence[Slot | None], sizes: Sequence[int]) -> None:
        super().__init__(grid, slots, sizes)
        self.kernel = kernel
        if self.device.type == "cuda":
            compiling(kernel.program)  # beside those of the plan's other kernels

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        launch(self.kernel, self.grid, self.given(pointers), self.device.index or 0, stream)

    def kernel_needs(self) -> tuple[int, int, int]:
        handle = int(loaded(self.kernel, self.device.index or 0).handle)
        return handle, self.kernel.threads, self.kernel.shared_bytes


@dataclass(frozen=True)
class Walk:
    """A walk in two forms. each: time of a chunk of two strips in a block, in chunks of one, on an H200."""

    narrow: Kernel
    wide: Kernel
    each: float


OUTPUTS = Walk(WALK, WALK_WIDE, 1.48)
KEPT = Walk(WALK_KEEP, WALK_WIDE_KEEP, 1.48)
ENDS = Walk(WALK_ENDS, WALK_WIDE_ENDS, 1.48)
BACK = Walk(WALK_BACK, WALK_BACK_WIDE, 1.4)
BACK_ENDS = Walk(WALK_BACK_ENDS, WALK_BACK_WIDE_ENDS, 1.4)


def waves(blocks: int, wide: int, processors: int, each: float) -> tuple[float, bool]:
    """Waves of blocks of one strip, or of `wide` blocks of two if these take less, and whether they do."""
    narrow, wider = -(-blocks // processors), each * -(-wide // processors)
    return (wider, True) if wider < narrow else (narrow, False)


def segments_of(chunks: int, heads: int, values: int, keys: int, processors: int) -> int:
    """The least number of segments of each head that makes a call as quick as any does, to 3 %; 1 for none.

    values, keys: strips of each head.
    """

    def cost(segments: int) -> float:
        each, before = -(-chunks // segments), heads * (segments - 1)
        walks, _ = waves(heads * segments * values, heads * segments, processors, OUTPUTS.each)
        walk = WALKED * each * walks
        if segments == 1:
            return walk
        ends, _ = waves(before * (values + keys), 2 * before, processors, ENDS.each)
        return walk + ENDED * each * ends + MOVE * (segments - 1) + LAUNCHES

    most = min(chunks, max(1, 2 * processors // max(1, heads * values)))
    costs = [cost(segments) for segments in range(1, most + 1)]
    best = next(place for place, each in enumerate(costs, 1) if each <= 1.03 * min(costs))
    return -(-chunks // -(-chunks // best))  # those that are not empty if all but the last are as long


@dataclass(frozen=True)
class Schedule:
    """Sizes of a call. n: sequences, B unless they are packed. count: places of chunks of a head.

    share: heads that have the same rates, and so the same inverses.
    segments: into which a head is cut, by time; 1 for none.
    """

    B: int
    T: int
    H: int
    G: int
    K: int
    V: int
    share: int
    bounds: Slot | None
    processors: int
    segments: int = 1

    @classmethod
    def of(cls, k: Slot, v: Slot, beta: Slot, bounds: Slot | None) -> Schedule:
        """Cut into segments where heads are few. Bounds of packed sequences are known on the device alone."""
        B, T, H, V = v.shape
        sizes = B, T, H, k.shape[2], k.shape[3], V, H // (beta.shape[2] or 1)
        made = cls(*sizes, bounds, processors(v.device.index or 0))
        if bounds is not None:
            return made
        values, keys = made.strips(STRIP)
        segments = segments_of(made.count, made.heads, values, keys, made.processors)
        return replace(made, segments=segments)

    @property
    def n(self) -> int:
        return self.B if self.bounds is None else self.bounds.shape[0] - 1

    @property
    def count(self) -> int:
        """Sequences that begin anywhere need one place more each (see `_triton.packed`)."""
        return -(-self.T // CHUNK) if self.bounds is None else self.T // CHUNK + self.n

    @property
    def heads(self) -> int:
        return self.n * self.H

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.T, self.H, self.G, self.K

    def strips(self, width: int) -> tuple[int, int]:
        """Count the strips of so many values, and of as many columns of a map."""
        return -(-self.V // width), -(-self.K // width)

    def per_segment(self, plan: Plan, width: int) -> Slot:
        return plan.empty((self.heads, self.segments, self.K, width), torch.float32)

    def chunks(self, plan: Plan, k: Slot, beta: Slot, log_a: Slot | None) -> tuple[Slot, ...]:
        """Compute for each chunk the inverse in two parts, and gates and rates."""
        H = self.H // self.share
        count = self.B * H * self.count
        high, low = (plan.empty((count, SQUARE), k.dtype) for _ in range(2))
        vectors = plan.empty((count, VECTORS), torch.float32)
        slots = (k, beta, log_a, self.bounds, high, low, vectors)
        sizes = (self.T, H, self.G, self.K, self.count, self.n, count)
        plan.steps.append(Launch(CHUNKS, min(count, RESIDENT * self.processors), slots, sizes))
        return high, low, vectors

    def blocks(self, walk: Walk, segments: int, width: int) -> int:
        """Count the blocks of a walk through so many segments of each head, each with so many values."""
        values, keys = self.strips(width)
        maps = {ENDS: segments * keys, BACK_ENDS: keys}  # backwards that of the last segment is still unknown
        return self.heads * (segments * values + maps.get(walk, 0))

    def walk(self, plan: Plan, walk: Walk, slots: Sequence[Slot | None]) -> None:
        """Walk through all segments of each head, or to the ends of all but the last, or but the first."""
        segments, skipped = self.segments - (walk in (ENDS, BACK_ENDS)), int(walk is BACK_ENDS)
        each = -(-self.count // self.segments)
        blocks, wide = (self.blocks(walk, segments, width) for width in (STRIP, 2 * STRIP))
        _, is_wide = waves(blocks, wide, self.processors, walk.each)
        sizes = (*self.sizes, self.V, self.count, self.segments, each, self.share, segments, skipped)
        kernel, grid = (walk.wide, wide) if is_wide else (walk.narrow, blocks)
        plan.steps.append(Launch(kernel, grid, slots, sizes))

    def carry(self, plan: Plan, maps: Slot, ends: Slot, given: Slot | None, back: bool) -> Slot:
        """Find in which state each segment begins, or with which gradient it ends, from the given one."""
        edges = self.per_segment(plan, self.V)
        sizes = (self.segments, self.K, self.V, int(back))
        grid = self.heads * -(-self.V // CARRIED)
        plan.steps.append(Launch(CARRY, grid, (maps, ends, given, edges), sizes))
        return edges


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None, *, traced: bool = False,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """o, the final state, what `Schedule.chunks` gives, where each segment begins, and maps.

    traced: whether the backward pass is likely to follow, whose kernels are then compiled beside.
    """
    schedule = Schedule.of(k, v, beta, bounds)
    chunks, begin, maps = schedule.chunks(plan, k, beta, log_a), initial, None
    if schedule.segments > 1:
        maps, ends = (schedule.per_segment(plan, width) for width in (schedule.K, schedule.V))
        slots = (q, k, v, *chunks, None, None, None, None, ends, maps)
        schedule.walk(plan, ENDS, slots)
        begin = schedule.carry(plan, maps, ends, initial, back=False)
    o, final = plan.like(v), plan.empty((schedule.n, schedule.H, schedule.K, schedule.V), torch.float32)
    schedule.walk(plan, OUTPUTS, (q, k, v, *chunks, begin, bounds, o, None, final, None))
    if traced:
        plan.expect(backward_pass, q, k, v, beta, log_a, initial, bounds, *chunks, begin, maps, o, None)
    return o, final, *chunks, begin, maps


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None, high: Slot, low: Slot, vectors: Slot, begin: Slot | None, maps: Slot | None,
    do: Slot, dfinal: Slot | None,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk, dv, dβ and d log_a of every head of v, and dS_0."""
    schedule = Schedule.of(k, v, beta, bounds)
    (B, T, H), V = v.shape[:3], schedule.V
    chunks = high, low, vectors
    of_keys, count = B * schedule.G * schedule.count, B * H * schedule.count
    tiles = STRIP * -(-V // STRIP)
    states, dstates = (plan.empty((count, WIDEST * tiles), v.dtype) for _ in range(2))
    written, dx = (plan.empty((count, CHUNK * tiles), v.dtype) for _ in range(2))
    dend = dfinal
    if maps is not None:
        ends = schedule.per_segment(plan, V)
        schedule.walk(plan, BACK_ENDS, (q, k, *chunks, do, None, None, None, None, ends, maps))
        dend = schedule.carry(plan, maps, ends, dfinal, back=True)
    dinitial = None if initial is None else plan.like(initial)
    dq, dk, dv = plan.like(q), plan.like(k), plan.like(v)
    dbeta = plan.empty((B, T, H), beta.dtype)
    dlog_a = None if log_a is None else plan.empty((B, T, H), log_a.dtype)
    schedule.walk(plan, KEPT, (q, k, v, *chunks, begin, bounds, written, states, None, None))
    schedule.walk(plan, BACK, (q, k, *chunks, do, dend, bounds, dx, dstates, dinitial, None))
    slots = (q, k, v, vectors, bounds, do, dx, written, states, dstates, dq, dk, dv, dbeta, dlog_a)
    sizes = (*schedule.sizes, V, schedule.count, schedule.n, of_keys, schedule.share)
    plan.steps.append(Launch(GRADIENTS, min(of_keys, schedule.processors), slots, sizes))
    return dq, dk, dv, dbeta, dlog_a, dinitial


class DeltaRule(torch.autograd.Function):
    """(o, S_T) of contiguous q, k (B, T, G, K) and v (B, T, H, V), bfloat16, and β and log_a (B, T, H).

    bounds: of packed sequences, whose states are (n, H, K, V). β and log_a are float32. Keeps the operands
    and the chunks' inverses, which take a third of what q, k and v do, and recomputes all else.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor | None, initial: Tensor | None,
        bounds: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        o, final, *found = forward_pass(q, k, v, beta, log_a, initial, bounds, traced=True)
        ctx.save_for_backward(q, k, v, beta, log_a, initial, bounds, *found)
        ctx.set_materialize_grads(False)
        return o, final

    @staticmethod
    @once_differentiable("delta_rule/cuda")
    def backward(ctx: Any, do: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, *given = ctx.saved_tensors
        do = torch.zeros_like(given[0]) if do is None else aligned(packed(do))
        dfinal = None if dfinal is None else packed(dfinal)
        dq, dk, dv, dbeta, dlog_a, dinitial = backward_pass(q, k, *given, do, dfinal)
        rates = given[1].shape[2]
        dbeta, dlog_a = shared_sum(dbeta, rates), None if dlog_a is None else shared_sum(dlog_a, rates)
        return dq, dk, dv, dbeta, dlog_a, dinitial, None
