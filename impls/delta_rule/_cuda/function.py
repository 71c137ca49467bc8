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
    WALK_ENDS,
    WALK_KEEP,
    WALK_WIDE,
    WALK_WIDE_KEEP,
    Kernel,
    compiling,
    loaded,
)

CHUNK = 64
STRIP = 64  # values of a block of a walk
WIDEST = 128
CARRIED = 16  # values of a block that carries states from segment to segment
VECTORS = 5 * CHUNK  # numbers per chunk: gates, rates and their sums

# Measured on an H100 at K = V = 128, in µs.
WALKED = 1.5  # a chunk of a walk with an output
ENDED = 1.3  # without one
MOVE = 2.0  # from the beginning of a segment to that of the next
WIDE = 1.48  # a chunk of both strips in chunks of one, on an H200
WIDE_BACK = 1.4  # the same backwards
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


def segments_of(chunks: int, blocks: int, maps: int, processors: int) -> int:
    """The number of segments of each head with which a call takes least; 1 for none.

    blocks: of a walk without segments. maps: blocks that find maps, beside as many.
    """

    def cost(segments: int) -> float:
        each = -(-chunks // segments)
        walk = WALKED * each * -(-blocks * segments // processors)
        if segments == 1:
            return walk
        ends = ENDED * each * -(-(blocks + maps) * (segments - 1) // processors)
        return walk + ends + MOVE * (segments - 1) + LAUNCHES

    most = min(chunks, max(1, 2 * processors // max(1, blocks)))
    best = min(range(1, most + 1), key=cost)
    return -(-chunks // -(-chunks // best))  # with none that is empty


def is_wide(width: int, heads: int, processors: int, each: float) -> bool:
    """Tell whether a walk takes less with both strips of a head's values in one block.

    each: time of a chunk of both in chunks of one.
    """
    waves, wide = -(-2 * heads // processors), -(-heads // processors)
    return width > STRIP and each * wide < waves


@dataclass(frozen=True)
class Schedule:
    """Sizes of a call. n: sequences, B unless they are packed. count: places of chunks of a head.

    segments: into which a head is cut, by time; 1 for none. wide, wide_back: see `is_wide`.
    """

    B: int
    T: int
    H: int
    G: int
    K: int
    V: int
    bounds: Slot | None
    segments: int = 1
    wide: bool = False
    wide_back: bool = False

    @classmethod
    def of(cls, k: Slot, v: Slot, bounds: Slot | None, segments: int = 1) -> Schedule:
        B, T, H, V = v.shape
        made = cls(B, T, H, k.shape[2], k.shape[3], V, bounds, segments)
        sizes = V, made.heads, processors(v.device.index or 0)
        return replace(made, wide=is_wide(*sizes, WIDE), wide_back=is_wide(*sizes, WIDE_BACK))

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

    def cut(self, device: torch.device) -> Schedule:
        """Into segments, where heads are few. Bounds of packed sequences are known on the device alone."""
        if self.bounds is not None:
            return self
        blocks, maps = (self.heads * -(-width // STRIP) for width in (self.V, self.K))
        segments = segments_of(self.count, blocks, maps, processors(device.index or 0))
        return replace(self, segments=segments)

    def per_chunk(self, plan: Plan, size: int, dtype: torch.dtype) -> Slot:
        return plan.empty((self.B * self.H * self.count, size), dtype)

    def per_segment(self, plan: Plan, width: int) -> Slot:
        return plan.empty((self.heads, self.segments, self.K, width), torch.float32)

    def chunks(self, plan: Plan, k: Slot, beta: Slot, log_a: Slot | None) -> tuple[Slot, ...]:
        """Compute for each chunk the inverse in two parts, and gates and rates."""
        high, low = (self.per_chunk(plan, CHUNK * CHUNK, k.dtype) for _ in range(2))
        vectors = self.per_chunk(plan, VECTORS, torch.float32)
        slots = (k, beta, log_a, self.bounds, high, low, vectors)
        sizes = (*self.sizes, self.count, self.n)
        plan.steps.append(Launch(CHUNKS, self.B * self.H * self.count, slots, sizes))
        return high, low, vectors

    def walk(self, plan: Plan, kernel: Kernel, slots: Sequence[Slot | None]) -> None:
        """Walk through all segments of each head, or to the ends of all but the last, or but the first."""
        values, keys = (-(-width // STRIP) for width in (self.V, self.K))
        strips = {
            WALK_ENDS: (self.segments - 1) * (values + keys),
            WALK_BACK_ENDS: (self.segments - 1) * values + keys,
            WALK_WIDE: self.segments,
            WALK_WIDE_KEEP: self.segments,
            WALK_BACK_WIDE: self.segments,
        }.get(kernel, self.segments * values)
        cut = self.segments, -(-self.count // self.segments)
        sizes = (*self.sizes, self.V, self.count, *cut, self.heads)
        plan.steps.append(Launch(kernel, self.heads * strips, slots, sizes))

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
    """o, the final state, what `Schedule.chunks` gives, and of segments where each begins, and maps.

    traced: whether the backward pass is likely to follow, whose kernels are then compiled beside.
    """
    schedule = Schedule.of(k, v, bounds).cut(plan.device)
    chunks, begin, maps = schedule.chunks(plan, k, beta, log_a), initial, None
    if schedule.segments > 1:
        maps, ends = (schedule.per_segment(plan, width) for width in (schedule.K, schedule.V))
        slots = (q, k, v, *chunks, None, None, None, None, ends, maps)
        schedule.walk(plan, WALK_ENDS, slots)
        begin = schedule.carry(plan, maps, ends, initial, back=False)
    o, final = plan.like(v), plan.empty((schedule.n, schedule.H, schedule.K, schedule.V), torch.float32)
    slots = (q, k, v, *chunks, begin, bounds, o, None, final, None)
    schedule.walk(plan, WALK_WIDE if schedule.wide else WALK, slots)
    if traced:
        plan.expect(backward_pass, q, k, v, beta, log_a, initial, bounds, *chunks, begin, maps, o, None)
    return o, final, *chunks, begin, maps


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None, high: Slot, low: Slot, vectors: Slot, begin: Slot | None, maps: Slot | None,
    do: Slot, dfinal: Slot | None,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq and dk of every head of v, dv, dβ, d log_a, and dS_0."""
    schedule = Schedule.of(k, v, bounds, 1 if maps is None else maps.shape[1])
    (B, T, H), K, V = v.shape[:3], schedule.K, schedule.V
    chunks = high, low, vectors
    tiles = STRIP * -(-V // STRIP)
    states, dstates = (schedule.per_chunk(plan, WIDEST * tiles, v.dtype) for _ in range(2))
    written, dx = (schedule.per_chunk(plan, CHUNK * tiles, v.dtype) for _ in range(2))
    keep = WALK_WIDE_KEEP if schedule.wide else WALK_KEEP
    schedule.walk(plan, keep, (q, k, v, *chunks, begin, bounds, written, states, None, None))
    dend = dfinal
    if maps is not None:
        ends = schedule.per_segment(plan, V)
        schedule.walk(plan, WALK_BACK_ENDS, (q, k, *chunks, do, None, None, None, None, ends, maps))
        dend = schedule.carry(plan, maps, ends, dfinal, back=True)
    dinitial = None if initial is None else plan.like(initial)
    back = WALK_BACK_WIDE if schedule.wide_back else WALK_BACK
    schedule.walk(plan, back, (q, k, *chunks, do, dend, bounds, dx, dstates, dinitial, None))
    dq, dk, dv = plan.empty((B, T, H, K), q.dtype), plan.empty((B, T, H, K), k.dtype), plan.like(v)
    dbeta, dlog_a = plan.like(beta), None if log_a is None else plan.like(log_a)
    count = B * H * schedule.count
    slots = (q, k, v, vectors, bounds, do, dx, written, states, dstates, dq, dk, dv, dbeta, dlog_a)
    grid = min(count, processors(plan.device.index or 0))
    plan.steps.append(Launch(GRADIENTS, grid, slots, (*schedule.sizes, V, schedule.count, schedule.n, count)))
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
        return shared_sum(dq, q.shape[2]), shared_sum(dk, k.shape[2]), dv, dbeta, dlog_a, dinitial, None
