"""Launches of value gates: a walk where their decay is mild, and steps for the heads where it is not.

As for queries and keys (see `anchors`): with G_t the sum of value gates from the middle of the chunk to step
t, values take exp(-G) with them, results exp(G), and the columns of the state what lies between two middles.
Where this leaves the operands' range in a chunk of a head, `steps` makes all results of that head again.
States hold keys times values, so under key gates each may use half of the range.

The gradient of log b is Σ_{s ≥ t} (o_s ⊙ do_s - v_s ⊙ dv_s) over the steps of a chunk, plus what passes the
chunk's end. Its terms cancel, so all four are as the walks had them, o and dv in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from ..._triton.plan import Slot
from ..._triton.sequences import chunk_steps, head_offset
from .blocks import load_chunk, load_rows, locate_heads_first
from .chunks import COUNTS
from .schedule import NONE
from .steps import Steps
from .walk_grads import summed
from .walking import Prepared, Walk, part


@triton.jit(do_not_specialize=COUNTS)
def la_grad_values(
    o, do, v, dv, early_keys, factors, wide, states, adjoints, dlog_b, T, H, NT, places,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    KEYED: tl.constexpr, PRECISION: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The gradient of log b by channel, float32 (B, T, H, V).

    o, do, v, dv, early_keys: as the walks took and made them; KEYED: under key gates, with factors and flags
    of a reverse walk.
    """
    tile, chunk, bh = locate_heads_first(H, NT, tl.cdiv(V, BV))
    start, end = chunk_steps(chunk, T, NT, places, C)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    begin, left = head_offset(bh, T, H) + start * H, end - start
    at = bh * NT + chunk
    steps, values = tl.arange(0, C), tile * BV + tl.arange(0, BV)
    through = tl.zeros((C, BV), dtype=tl.float32)
    ends = tl.zeros((BV,), dtype=tl.float32)
    for first in range(0, K, BK):
        keys = first + tl.arange(0, BK)
        adjoint = load_rows(adjoints + at * K * V, keys, K, V, values, V)
        k_tile = load_chunk(early_keys + begin * K, left, H * K, keys, C, K)
        through = tl.dot(k_tile, adjoint, through, input_precision=PRECISION)
        state = load_rows(states + at * K * V, keys, K, V, values, V).to(tl.float32)
        if KEYED:
            state *= decay_through(factors + at * 3 * K, wide + at, keys, K)[:, None]
        ends += tl.sum(state * adjoint.to(tl.float32), axis=0)
    v_tile = load_chunk(v + begin * V, left, H * V, values, C, V).to(tl.float32)
    ends += tl.sum(v_tile * through, axis=0)
    o_tile = load_chunk(o + begin * V, left, H * V, values, C, V).to(tl.float32)
    do_tile = load_chunk(do + begin * V, left, H * V, values, C, V).to(tl.float32)
    dv_tile = load_chunk(dv + begin * V, left, H * V, values, C, V).to(tl.float32)
    later = (steps[None, :] >= steps[:, None]).to(PART)
    dgate = summed(later, o_tile * do_tile - v_tile * dv_tile, PART) + ends[None, :]
    rows = begin * V + (steps[:, None] * (H * V) + values[None, :])
    tl.store(dlog_b + rows, dgate, mask=(steps < left)[:, None] & (values < V)[None, :])


@triton.jit
def decay_through(factors, wide, keys, K: tl.constexpr):
    """What a reverse walk multiplies the state of a chunk with, between its adjoint and itself, by key."""
    between = tl.load(factors + K + keys, mask=keys < K, other=0.0)
    begin_factor = tl.load(factors + keys, mask=keys < K, other=0.0)
    return between * tl.where(tl.load(wide) != 0, begin_factor * begin_factor, 1.0)


@dataclass(frozen=True)
class Valued(Walk):
    """The launches of one call with value gates."""

    @property
    def walks(self) -> bool:
        """Whether heads are walked at all. float16 has no range for decay in values."""
        return self.fits and self.dtype != torch.float16 and (self.gate == NONE or self.by_channel)

    @property
    def limit(self) -> float:
        return super().limit / (2 if self.by_channel else 1)

    @property
    def slack(self) -> int:
        return super().slack + 1024  # 8 bytes for each column of a strip

    def tail(self, width: int) -> int:
        return 0  # the columns' factors belong to whole strips

    def fade(self, x: Slot | None, w: Slot | None, log_b: Slot) -> tuple[Slot, Slot, Slot, Slot]:
        """x ⊙ exp(G), w ⊙ exp(-G) in the operands' dtype, the columns' factors, and flags of wide chunks."""
        given = x or w
        assert given is not None
        V = given.shape[-1]
        columns, wide = self.per_chunk(3, V), self.per_chunk(dtype=torch.int32)
        late, early = (given if each is None else self.plan.like(each, self.dtype) for each in (x, w))
        self.anchor(x, w, log_b, late, early, columns, wide, copy=True)
        return late, early, columns, wide

    def forward_valued(
        self, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, first: Slot | None, *,
        keep: bool, by_value: bool,
    ) -> tuple[Slot, Slot, Slot | None, Slot | None]:  # fmt: skip
        """o, S_T, and of a walk (keep) the states that chunks read and (by_value) o as it was made.

        by_value: whether d log_b will be wanted.
        """
        if not self.walks:
            o, last = self.plan.like(v), self.per_sequence()
            Steps.of(self.plan, q, log_a, log_b, self.packing).walk(q, k, v, first, o, last=last)
            return o, last, None, None
        _, early, columns, wide = self.fade(None, v, log_b)
        ready = replace(self.prepare(q, k, log_a), columns=columns)
        faded, last, states = self.walk(ready, early, first, reverse=False, keep=keep, exact=by_value)
        o, *_ = self.fade(faded, None, log_b)
        Steps.of(self.plan, q, log_a, log_b, self.packing, wide).walk(q, k, v, first, o, last=last)
        return o, last, states if keep else None, faded if by_value else None

    def backward_valued(
        self, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, first: Slot | None,
        states: Slot | None, made: Slot | None, do: Slot, dlast: Slot | None, *, gates: tuple[bool, bool],
    ) -> tuple[Slot | None, ...]:  # fmt: skip
        """dq, dk, dv, d log_a, d log_b and d phase or their parts, dS_0.

        states, made: what forward kept of a walk. gates: whether d log_a and d log_b are wanted.
        """
        by_key, by_value = gates
        wide = None
        dlog_b = self.plan.empty((self.B, self.T, self.H, self.V if by_value else 0), torch.float32)
        if states is None:
            dq, dk = self.plan.like(q, self.gradients_dtype), self.plan.like(k, self.gradients_dtype)
            dv = self.plan.like(v)
            dfirst = self.per_sequence()
            dlog_a = self.plan.empty((self.B, self.T, self.H, self.K), torch.float32) if by_key else dq
            dphase = self.turned()
        else:
            late, early, columns, wide = self.fade(do, v, log_b)
            ready = replace(self.prepare(q, k, log_a, reverse=True), columns=columns)
            faded, dfirst, adjoints = self.walk(ready, late, dlast, reverse=True, keep=True, exact=by_value)
            dq, dk, dlog_a, dphase = self.gradients(q, k, early, late, log_a, ready, states, adjoints)
            _, dv, *_ = self.fade(None, faded, log_b)
            if by_value and made is not None:
                self.grad_values(made, late, early, faded, ready, states, adjoints, dlog_b)
        self.step_back(q, k, v, log_a, log_b, wide, first, do, dlast, (dq, dk, dv, dfirst),
                       (dlog_a if by_key else None, dlog_b if by_value else None, dphase))  # fmt: skip
        return dq, dk, dv, dlog_a if by_key else None, dlog_b if by_value else None, dphase, dfirst

    def grad_values(
        self, o: Slot, do: Slot, v: Slot, dv: Slot, ready: Prepared, states: Slot, adjoints: Slot,
        dlog_b: Slot,
    ) -> None:  # fmt: skip
        """Run `la_grad_values`."""
        BV = self.width(self.V, self.tiles.value)
        self.plan.launch(
            la_grad_values, (self.programs * triton.cdiv(self.V, BV),), o, do, v, dv, ready.early,
            ready.factors or v, ready.wide or v, states, adjoints, dlog_b, *self.sizes, K=self.K, V=self.V,
            C=self.tiles.chunk, BK=self.width(self.K, self.tiles.inner), BV=BV, KEYED=self.by_channel,
            PRECISION=self.tiles.precision, PART=part(self.dtype), num_warps=4, num_stages=2,
        )  # fmt: skip

    def step_back(
        self, q: Slot, k: Slot, v: Slot, log_a: Slot | None, log_b: Slot, wide: Slot | None,
        first: Slot | None, do: Slot, dlast: Slot | None, found: tuple[Slot, Slot, Slot, Slot],
        gates: tuple[Slot | None, Slot | None, Slot],
    ) -> None:  # fmt: skip
        """Make the gradients of the heads that were not walked, where the others' are."""
        steps = Steps.of(self.plan, q, log_a, log_b, self.packing, wide)
        dq, dk, dv, dfirst = found
        dlog_a, dlog_b, dphase = gates

        def parts(x: Slot, wanted: bool) -> Slot | None:
            return self.plan.like(x, torch.float32) if wanted else None

        by_key, by_value = dlog_a is not None or self.turning, dlog_b is not None
        held = self.plan.like(dfirst) if by_key or by_value else None
        dq_through, dk_through = parts(q, by_key), parts(k, by_key)
        dv_through, o_through = parts(v, by_value), parts(v, by_value)
        steps.walk(do, v, k, first, dq, across=True, parts=dq_through, held=held)
        steps.walk(v, do, q, dlast, dk, across=True, reverse=True, parts=dk_through)
        steps.walk(k, q, do, dlast, dv, reverse=True, parts=dv_through, last=dfirst)
        if held is None:
            return
        ends = held, dlast
        if dq_through is not None and dk_through is not None:
            if dlog_a is not None and log_a is not None:
                steps.gates(q, k, dq_through, dk_through, log_a, ends, dlog_a)
            if self.turning:
                steps.gates(q, k, dq_through, dk_through, log_b, ends, dphase, turn=True)
        if dlog_b is not None and o_through is not None and dv_through is not None:
            steps.walk(q, k, v, first, self.plan.like(v), parts=o_through)
            steps.gates(do, v, o_through, dv_through, log_b, ends, dlog_b, across=True)
