"""Plans of the kernels, and the autograd function around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from ..._autograd import once_differentiable
from ..._triton.host import loop_bound, processors, shared_memory
from ..._triton.plan import Plan, Slot, packed, planned
from ..._triton.sequences import Packing
from ..common import shared_sum
from .carry import delta_carry, segments_of
from .gradients import delta_gradients
from .inverse import delta_chunks
from .parts import CHUNK
from .tiles import Tiles, tiles, width_of
from .walk import delta_walk, delta_walk_back

WIDEST = 256  # keys at most: a program has all of them
CARRIED = 32  # width of the strip of values with which a program carries states on

Chunks = tuple[Slot, Slot | None, Slot, Slot]  # high, low, scores and gates of `delta_chunks`


@dataclass(frozen=True)
class Schedule:
    """Sizes of a call and block sizes of its kernels. n: sequences, B unless they are packed.

    count: places of chunks of a head. segments: into which a head is cut, by time; 1 for none.
    """

    B: int
    T: int
    H: int
    K: int
    V: int
    shared: int
    packing: Packing | None
    cut: Tiles
    segments: int = 1
    precision: str = "tf32x3"

    @classmethod
    def of(cls, plan: Plan, k: Slot, v: Slot, bounds: Slot | None) -> Schedule:
        B, T, H, V = v.shape
        packing, K = Packing.of(plan, bounds, T, CHUNK), k.shape[-1]
        cut = tiles(K, (packing.sequences if packing else B) * H, half=v.element_size() == 2)
        whole = cls(B, T, H, K, V, H // k.shape[2], packing, cut)
        if packing:
            return whole
        return replace(whole, segments=segments_of(whole.count, whole.walks(V)[0], processors(plan.device)))

    @property
    def n(self) -> int:
        return self.packing.sequences if self.packing else self.B

    @property
    def count(self) -> int:
        return self.packing.count if self.packing else triton.cdiv(self.T, CHUNK)

    @property
    def places(self) -> Slot | None:
        return self.packing.places if self.packing else None

    @property
    def bounds(self) -> Slot | None:
        return self.packing.bounds if self.packing else None

    def per_chunk(self, plan: Plan, size: int, dtype: torch.dtype) -> Slot:
        return plan.empty((self.B * self.H * self.count, size), dtype)

    def states(self, plan: Plan) -> Slot:
        return plan.empty((self.n, self.H, self.K, self.V), torch.float32)

    def edges(self, plan: Plan, width: int) -> Slot:
        """Room for what each segment begins or ends in."""
        return plan.empty((self.n * self.H, self.segments, self.K, width), torch.float32)

    def chunks(self, plan: Plan, q: Slot, k: Slot, beta: Slot, log_a: Slot | None) -> Chunks:
        """What the walks need of each chunk: the inverse in one or two parts, the scores and the gates."""
        square = CHUNK * CHUNK
        high, scores = self.per_chunk(plan, square, k.dtype), self.per_chunk(plan, square, k.dtype)
        low = self.per_chunk(plan, square, k.dtype) if k.element_size() == 2 else None
        gates = self.per_chunk(plan, 2 * CHUNK, torch.float32)
        plan.launch(
            delta_chunks, (self.B * self.H * self.count,), q, k, beta, log_a, high, low, scores, gates,
            self.places, self.T, self.H, self.count, K=self.K, C=CHUNK,
            BK=width_of(self.K, self.cut.inverse_key), SHARED=self.shared, GATED=log_a is not None,
            PRECISION=self.precision, num_warps=self.cut.inverse_warps,
        )  # fmt: skip
        return high, low, scores, gates

    def begun(
        self, plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, chunks: Chunks, initial: Slot | None
    ) -> tuple[Slot | None, Slot | None]:
        """The state in which each segment begins, and the maps of all; without segments `initial`."""
        if self.segments == 1:
            return initial, None
        maps, ends, starts = self.edges(plan, self.K), self.edges(plan, self.V), self.edges(plan, self.V)
        for values, to in ((None, maps), (v, ends)):
            width = to.shape[3]
            plan.launch(
                delta_walk, self.walks(width), q, k, values, beta, *chunks, None, None, to, None, None, None,
                *self.sizes, EMIT=False, KEEP=False, **self.walking(plan, k, self.cut.walk_stages, width),
            )  # fmt: skip
        self.carry(plan, maps, ends, initial, starts, back=False)
        return starts, maps

    def carry(
        self, plan: Plan, maps: Slot, ends: Slot, given: Slot | None, edges: Slot, *, back: bool
    ) -> None:
        """Find the edges of segments from the one that is given."""
        BV = width_of(self.V, CARRIED)
        plan.launch(
            delta_carry, (self.n * self.H * triton.cdiv(self.V, BV),), maps, ends, given, edges,
            self.segments, loop_bound(self.segments - 1), K=self.K, V=self.V, BK=width_of(self.K, 64), BV=BV,
            BACK=back, PRECISION=self.precision, num_warps=4,
        )  # fmt: skip

    def walking(self, plan: Plan, k: Slot, stages: int, values: int | None = None) -> dict[str, Any]:
        """Constants of a walk; with fewer stages where their tiles do not fit into shared memory.

        values: V, if not that of the call.
        """
        V = self.V if values is None else values
        BK, BV = width_of(self.K, WIDEST), width_of(V, self.cut.walk)
        per_stage = CHUNK * (2 * BK + BV + 3 * CHUNK) * k.element_size()
        other = 3 * CHUNK * BV * k.element_size() + 4096
        room = max(1, (shared_memory(plan.device) - other) // per_stage)
        return {
            "K": self.K, "V": V, "C": CHUNK, "BK": BK, "BV": BV, "SHARED": self.shared,
            "PRECISION": self.precision, "STAGES": min(stages, room), "num_warps": self.cut.walk_warps,
        }  # fmt: skip

    def walks(self, width: int) -> tuple[int]:
        """The programs of a walk over values of a width."""
        return (self.n * self.H * self.segments * triton.cdiv(width, width_of(width, self.cut.walk)),)

    @property
    def sizes(self) -> tuple[Any, ...]:
        cuts = (self.segments, triton.cdiv(self.count, self.segments)) if self.segments > 1 else (None, None)
        return self.T, self.H, loop_bound(self.count), *cuts


@planned
def forward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None,
) -> tuple[Slot, Slot]:  # fmt: skip
    """o and the final state."""
    schedule = Schedule.of(plan, k, v, bounds)
    chunks, o, final = schedule.chunks(plan, q, k, beta, log_a), plan.like(v), schedule.states(plan)
    starts, _ = schedule.begun(plan, q, k, v, beta, chunks, initial)
    plan.launch(
        delta_walk, schedule.walks(schedule.V), q, k, v, beta, *chunks, starts, o, final, None, None,
        schedule.bounds, *schedule.sizes, EMIT=True, KEEP=False,
        **schedule.walking(plan, k, schedule.cut.walk_stages),
    )  # fmt: skip
    return o, final


@planned
def backward_pass(
    plan: Plan, q: Slot, k: Slot, v: Slot, beta: Slot, log_a: Slot | None, initial: Slot | None,
    bounds: Slot | None, do: Slot, dfinal: Slot | None,
) -> tuple[Slot | None, ...]:  # fmt: skip
    """dq, dk of every head of v, dv, parts of dβ and d log_a by strips of keys, and dS_0."""
    schedule, gated = Schedule.of(plan, k, v, bounds), log_a is not None
    chunks, final = schedule.chunks(plan, q, k, beta, log_a), schedule.states(plan)
    states, dstates = (schedule.per_chunk(plan, schedule.K * schedule.V, v.dtype) for _ in range(2))
    written, dx = plan.like(v), plan.like(v)
    starts, maps = schedule.begun(plan, q, k, v, beta, chunks, initial)
    plan.launch(
        delta_walk, schedule.walks(schedule.V), q, k, v, beta, *chunks, starts, None, final, states, written,
        schedule.bounds, *schedule.sizes, EMIT=False, KEEP=True,
        **schedule.walking(plan, k, schedule.cut.walk_stages),
    )  # fmt: skip
    dinitial = None if initial is None else plan.like(initial)
    walking = schedule.walking(plan, k, schedule.cut.back_stages)
    dends = dfinal
    if maps is not None:
        parts, dends = schedule.edges(plan, schedule.V), schedule.edges(plan, schedule.V)
        plan.launch(
            delta_walk_back, schedule.walks(schedule.V), q, k, beta, *chunks, do, None, None, None, parts,
            None, *schedule.sizes, **walking,
        )  # fmt: skip
        schedule.carry(plan, maps, parts, dfinal, dends, back=True)
    plan.launch(
        delta_walk_back, schedule.walks(schedule.V), q, k, beta, *chunks, do, dends, dx, dstates, dinitial,
        schedule.bounds, *schedule.sizes, **walking,
    )  # fmt: skip
    (B, T, H), K, cut = v.shape[:3], schedule.K, schedule.cut
    strip = width_of(K, cut.key)
    strips = triton.cdiv(K, strip)
    dq, dk, dv = plan.empty((B, T, H, K), q.dtype), plan.empty((B, T, H, K), k.dtype), plan.like(v)
    dbeta = plan.empty((strips, B, T, H), torch.float32)
    dlog_a = plan.like(dbeta) if gated else None
    plan.launch(
        delta_gradients, (B * H * schedule.count * strips,), q, k, v, beta, log_a, chunks[3], do, dx, written,
        states, dstates, dq, dk, dv, dbeta, dlog_a, schedule.places, T, H, schedule.count,
        loop_bound(K), loop_bound(schedule.V), K=K, V=schedule.V, C=CHUNK, BK=strip,
        BV=width_of(schedule.V, cut.value), SHARED=schedule.shared, GATED=gated,
        PRECISION=schedule.precision, STAGES=cut.grad_stages, num_warps=cut.grad_warps,
    )  # fmt: skip
    return dq, dk, dv, dbeta, dlog_a, dinitial


class DeltaRule(torch.autograd.Function):
    """(o, S_T) of contiguous operands; q and k may have fewer heads than v.

    q, k and v have one dtype. beta (B, T, H), log_a (B, T, H) or None. bounds: of packed sequences, whose
    states are (n, H, K, V). Keeps the operands alone, and recomputes all else.
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
    @once_differentiable("delta_rule/triton")
    def backward(ctx: Any, do: Tensor | None, dfinal: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, beta, log_a, initial, bounds = ctx.saved_tensors
        do = torch.zeros_like(v) if do is None else packed(do)
        dfinal = None if dfinal is None else packed(dfinal)
        dq, dk, dv, dbeta, dlog_a, dinitial = backward_pass(q, k, v, beta, log_a, initial, bounds, do, dfinal)
        dq, dk = (shared_sum(each, of.shape[2]) for each, of in ((dq, q), (dk, k)))
        dlog_a = None if log_a is None else total(dlog_a, log_a)
        return dq, dk, dv, total(dbeta, beta), dlog_a, dinitial, None


def total(parts: Tensor, of: Tensor) -> Tensor:
    """Add up a gradient's parts (strips, ...), in the dtype of its operand; one strip costs no kernel."""
    return (parts[0] if len(parts) == 1 else parts.sum(0)).to(of.dtype)
