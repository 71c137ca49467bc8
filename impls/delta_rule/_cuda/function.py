"""Plans of the kernels, and the autograd function around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._autograd import once_differentiable
from ..._cuda.enqueue import enqueue
from ..._cuda.load import processors
from ..._triton.plan import Plan, Slot, aligned, packed, planned
from ..common import shared_sum
from .program import CHUNKS, GRADIENTS, WALK, WALK_BACK, WALK_KEEP, Kernel, loaded

CHUNK = 64
STRIP = 64  # values of a block of a walk
WIDEST = 128
VECTORS = 5 * CHUNK  # numbers per chunk: gates, rates and their sums


def launch(kernel: Kernel, grid: int, arguments: list[int], device: int, stream: int) -> None:
    """Launch on a stream of a device; every argument has 64 bits."""
    handle = int(loaded(kernel, device).handle)
    enqueue(handle, grid, kernel.threads, kernel.shared_bytes, stream, arguments, device)


class Launch:
    """A step of a plan: a kernel, its grid, the slots that it reads and writes, and sizes."""

    def __init__(self, kernel: Kernel, grid: int, slots: Sequence[Slot | None], sizes: Sequence[int]) -> None:
        self.kernel, self.grid, self.sizes = kernel, grid, list(sizes)
        self.indices = [None if slot is None else slot.index for slot in slots]
        self.uses = frozenset(index for index in self.indices if index is not None)
        self.device = next(slot.device for slot in slots if slot is not None).index or 0

    def __call__(self, tensors: Sequence[Tensor | None], pointers: Sequence[int | None], stream: int) -> None:
        given = [0 if index is None else pointers[index] or 0 for index in self.indices]
        launch(self.kernel, self.grid, given + self.sizes, self.device, stream)


@dataclass(frozen=True)
class Schedule:
    """Sizes of a call. n: sequences, B unless they are packed. count: places of chunks of a head."""

    B: int
    T: int
    H: int
    G: int
    K: int
    V: int
    bounds: Slot | None

    @classmethod
    def of(cls, k: Slot, v: Slot, bounds: Slot | None) -> Schedule:
        B, T, H, V = v.shape
        return cls(B, T, H, k.shape[2], k.shape[3], V, bounds)

    @property
    def n(self) -> int:
        return self.B if self.bounds is None else self.bounds.shape[0] - 1

    @property
    def count(self) -> int:
        """Sequences that begin anywhere need one place more each (see `_triton.packed`)."""
        return -(-self.T // CHUNK) if self.bounds is None else self.T // CHUNK + self.n

    @property
    def walks(self) -> int:
        return self.n * self.H * -(-self.V // STRIP)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.T, self.H, self.G, self.K

    def per_chunk(self, plan: Plan, size: int, dtype: torch.dtype) -> Slot:
        return plan.empty((self.B * self.H * self.count, size), dtype)

    def states(self, plan: Plan) -> Slot:
        return plan.empty((self.n, self.H, self.K, self.V), torch.float32)

    def chunks(self, plan: Plan, q: Slot, k: Slot, beta: Slot, log_a: Slot | None) -> tuple[Slot, ...]:
        """Compute for each chunk the inverse in two parts, the scores, gates and rates."""
        high, low, scores = (self.per_chunk(plan, CHUNK * CHUNK, k.dtype) for _ in range(3))
        vectors = self.per_chunk(plan, VECTORS, torch.float32)
        slots = (q, k, beta, log_a, self.bounds, high, low, scores, vectors)
        sizes = (*self.sizes, self.count, self.n)
        plan.steps.append(Launch(CHUNKS, self.B * self.H * self.count, slots, sizes))
        return high, low, scores, vectors


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None,
) -> tuple[Slot, Slot]:  # fmt: skip
    """o and the final state."""
    schedule = Schedule.of(k, v, bounds)
    chunks, o, final = schedule.chunks(plan, q, k, beta, log_a), plan.like(v), schedule.states(plan)
    slots = (q, k, v, *chunks, initial, schedule.bounds, o, None, final)
    plan.steps.append(Launch(WALK, schedule.walks, slots, (*schedule.sizes, schedule.V, schedule.count)))
    return o, final


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None, do: Slot, dfinal: Slot | None,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq and dk of every head of v, dv, dβ, d log_a, and dS_0."""
    schedule = Schedule.of(k, v, bounds)
    (B, T, H), K, V = v.shape[:3], schedule.K, schedule.V
    sizes = (*schedule.sizes, V, schedule.count)
    chunks, final = schedule.chunks(plan, q, k, beta, log_a), schedule.states(plan)
    states, dstates = (schedule.per_chunk(plan, K * V, v.dtype) for _ in range(2))
    written, dx = plan.like(v), plan.like(v)
    slots = (q, k, v, *chunks, initial, schedule.bounds, written, states, final)
    plan.steps.append(Launch(WALK_KEEP, schedule.walks, slots, sizes))
    dinitial = None if initial is None else plan.like(initial)
    slots = (q, k, *chunks, do, dfinal, schedule.bounds, dx, dstates, dinitial)
    plan.steps.append(Launch(WALK_BACK, schedule.walks, slots, sizes))
    dq, dk, dv = plan.empty((B, T, H, K), q.dtype), plan.empty((B, T, H, K), k.dtype), plan.like(v)
    dbeta, dlog_a = plan.like(beta), None if log_a is None else plan.like(log_a)
    count = B * H * schedule.count
    slots = (q, k, v, chunks[3], bounds, do, dx, written, states, dstates, dq, dk, dv, dbeta, dlog_a)
    grid = min(count, processors(plan.device.index or 0))
    plan.steps.append(Launch(GRADIENTS, grid, slots, (*sizes, schedule.n, count)))
    return dq, dk, dv, dbeta, dlog_a, dinitial


class DeltaRule(torch.autograd.Function):
    """(o, S_T) of contiguous q, k (B, T, G, K) and v (B, T, H, V), bfloat16, and β and log_a (B, T, H).

    bounds: of packed sequences, whose states are (n, H, K, V). β and log_a are float32. Keeps the operands
    alone, and recomputes all else.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_a: Tensor | None, initial: Tensor | None,
        bounds: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        o, final = forward_pass(q, k, v, beta, log_a, initial, bounds)
        ctx.save_for_backward(q, k, v, beta, log_a, initial, bounds)
        ctx.set_materialize_grads(False)
        return o, final

    @staticmethod
    @once_differentiable("delta_rule/cuda")
    def backward(ctx: Any, do: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, beta, log_a, initial, bounds = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else aligned(packed(do))
        dfinal = None if dfinal is None else packed(dfinal)
        dq, dk, dv, dbeta, dlog_a, dinitial = backward_pass(q, k, v, beta, log_a, initial, bounds, do, dfinal)
        return shared_sum(dq, q.shape[2]), shared_sum(dk, k.shape[2]), dv, dbeta, dlog_a, dinitial, None
