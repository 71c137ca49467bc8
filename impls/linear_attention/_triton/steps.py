"""Kernels of value gates for heads that cannot be walked (see `valued`): one step after another.

A program takes the steps of a head in order, its strip of the state in registers. Four passes of one kernel
give everything. With x, w and y for (q, k, v) it makes o; since a transposed state changes the roles of keys
and values, (do, v, k) makes dq. In reverse, where the state is the adjoint of S, (k, q, do) makes dv and
(v, do, q) makes dk. Every decay is the product of its gates, one after another, so any gate is exact, and the
time is that of T steps whatever the gates are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import triton
import triton.language as tl

from ..._triton.host import loop_bound
from ..._triton.packed import counted
from ..._triton.plan import Plan, Slot
from ..._triton.sequences import Packing, sequence_of
from .blocks import gate_columns, partners, some_wide

CELLS = 2048  # of the state in a program of one warp
BLOCK = tl.constexpr(64)  # steps that `la_gates` adds up at once
STRIP = 32  # channels of a program of `la_gates`


@triton.jit(do_not_specialize=("T", "H"))
def la_steps(
    x, w, y, x_gate, y_gate, stepped, first, out, parts, last, T, H, NT, bounds, STEPS, CHUNKS, x_state,
    y_state, C: tl.constexpr, X: tl.constexpr, Y: tl.constexpr, XG: tl.constexpr, YG: tl.constexpr,
    BX: tl.constexpr, BY: tl.constexpr, X_CONST: tl.constexpr, Y_CONST: tl.constexpr, REVERSE: tl.constexpr,
    HAS_FIRST: tl.constexpr, PARTS: tl.constexpr, LAST: tl.constexpr, HELD: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """out_t = Σ_c x_tc S_tc of the states S_t = (a_t b_tᵀ) ⊙ S_{t-1} + w_t y_tᵀ.

    One program per strip of y. x, w: (B, T, H, X). y and out: (B, T, H, Y). x_gate, y_gate: log a and log b,
    as many as XG and YG say: none, one, or one per channel or complex channel; X_CONST, Y_CONST: (H, ·).
    REVERSE: from the end, S_t = (a_{t+1} b_{t+1}ᵀ) ⊙ S_{t+1} + w_t y_tᵀ, and once more decayed in `last`.
    parts: float32, out without the step's own write. first, last: (B·H, ·, ·), neighbours in X and Y apart by
    x_state and y_state. HELD: in `last` the state before the write of the last step. SOME: of heads
    where `stepped` (B·H, NT) has a flag.
    """
    strip = tl.program_id(0) % tl.cdiv(Y, BY)
    bh = (tl.program_id(0) // tl.cdiv(Y, BY)).to(tl.int64)
    start, T, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    if bounds is not None:
        STEPS, CHUNKS = counted(T), counted(chunks)
    if SOME:  # noqa: SIM102, as only this test is of constants
        if not some_wide(stepped, origin, chunks, CHUNKS):
            return
    xs, ys = tl.arange(0, BX), strip * BY + tl.arange(0, BY)
    has_x, has_y = xs < X, ys < Y
    mask = has_x[:, None] & has_y[None, :]
    cells = bh * X * Y + xs[:, None] * x_state + ys[None, :] * y_state
    state = tl.zeros((BX, BY), dtype=tl.float32)
    if HAS_FIRST:
        state += tl.load(first + cells, mask=mask, other=0.0)
    for step in range(STEPS):
        t = T - 1 - step if REVERSE else step
        row = start + t * H
        x_row = tl.load(x + row * X + xs, mask=has_x, other=0.0).to(tl.float32)
        w_row = tl.load(w + row * X + xs, mask=has_x, other=0.0).to(tl.float32)
        y_row = tl.load(y + row * Y + ys, mask=has_y, other=0.0).to(tl.float32)
        own = tl.sum(x_row * w_row, axis=0)
        if not REVERSE:
            state = decayed(state, x_gate, y_gate, bh % H, row, xs, ys, X, Y, XG, YG, X_CONST, Y_CONST)
        if HELD:
            tl.store(last + cells, state, mask=mask & (step == STEPS - 1))
        through = tl.sum(x_row[:, None] * state, axis=0)
        state += w_row[:, None] * y_row[None, :]
        if REVERSE:
            state = decayed(state, x_gate, y_gate, bh % H, row, xs, ys, X, Y, XG, YG, X_CONST, Y_CONST)
        if PARTS:
            tl.store(parts + row * Y + ys, through, mask=has_y)
        tl.store(out + row * Y + ys, (through + own * y_row).to(out.dtype.element_ty), mask=has_y)
    if LAST:
        tl.store(last + cells, state, mask=mask)


@triton.jit
def decayed(
    state, x_gate, y_gate, head, row, xs, ys, X: tl.constexpr, Y: tl.constexpr, XG: tl.constexpr,
    YG: tl.constexpr, X_CONST: tl.constexpr, Y_CONST: tl.constexpr,
):  # fmt: skip
    """The state times its gates."""
    if XG > 0:
        state = state * gates(x_gate + (head if X_CONST else row) * XG, xs, X, XG)[:, None]
    if YG > 0:
        state = state * gates(y_gate + (head if Y_CONST else row) * YG, ys, Y, YG)[None, :]
    return state


@triton.jit
def gates(at, channels, N: tl.constexpr, NG: tl.constexpr):
    """The gates of N channels, of which NG are stored."""
    columns = channels * 0 if NG == 1 else gate_columns(channels, N, NG)
    return tl.exp(tl.load(at + columns, mask=channels < N, other=0.0).to(tl.float32))


@triton.jit(do_not_specialize=("T", "H"))
def la_gates(
    x, w, dx, dw, gate, held, dlast, dgate, stepped, T, H, NT, bounds, PASSES, CHUNKS, n_state, m_state,
    C: tl.constexpr, N: tl.constexpr, M: tl.constexpr, NG: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
    CONST: tl.constexpr, HAS_LAST: tl.constexpr, TURN: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The gradient of log gates by channel: Σ_{s ≥ t} (x_s dx_s - w_s dw_s) + ends, float32 (B, T, H, N).

    dx, dw: without each step's own write. ends: the state `held` before the last write, times the gradient of
    S_T, over the M other channels; the last step's w dw is left out for it, so that no terms of order 1
    cancel where all gates are small. held, dlast: (B·H, ·, ·), neighbours apart by n_state and m_state.
    TURN: of phases, with J (see `turns`) before x and -J before w and the state. The gates are read for
    resets, whose gradient is 0. SOME: as in `la_steps`.
    """
    strip = tl.program_id(0) % tl.cdiv(N, BN)
    bh = (tl.program_id(0) // tl.cdiv(N, BN)).to(tl.int64)
    start, T, chunks, origin = sequence_of(bh, T, H, NT, bounds, C)
    if bounds is not None:
        if T == 0:  # and no state was held
            return
        PASSES, CHUNKS = counted(tl.cdiv(T, BLOCK)), counted(chunks)
    if SOME:  # noqa: SIM102, as only this test is of constants
        if not some_wide(stepped, origin, chunks, CHUNKS):
            return
    channels, steps = strip * BN + tl.arange(0, BN), tl.arange(0, BLOCK)
    total = tl.zeros((BN,), dtype=tl.float64)
    if HAS_LAST:
        source, sign = channels, tl.full((BN,), 1.0, dtype=tl.float32)
        if TURN:
            source, sign = partners(channels, N)
            sign = -sign
        total += ends_of(held, dlast, bh, channels, source, sign, n_state, m_state, N, M, BM)
    for part in range(PASSES):
        t = (PASSES - 1 - part) * BLOCK + steps
        inside = (t < T)[:, None] & (channels < N)[None, :]
        rows = (start + t[:, None] * H) * N
        at = rows + channels[None, :]
        x_tile = load_part(x + rows, channels, inside, TURN, N)
        w_tile = load_part(w + rows, channels, inside, TURN, N)
        w_tile = -w_tile if TURN else w_tile
        local = x_tile * tl.load(dx + at, mask=inside, other=0.0)
        local -= w_tile * tl.load(dw + at, mask=inside & (t < T - 1)[:, None], other=0.0)
        sums = tl.cumsum(local, axis=0, reverse=True) + total.to(tl.float32)[None, :]
        if not TURN:
            columns = channels * 0 if NG == 1 else gate_columns(channels, N, NG)
            gate_rows = tl.zeros((BLOCK,), dtype=tl.int64) + bh % H if CONST else start + t * H
            given = tl.load(gate + gate_rows[:, None] * NG + columns[None, :], mask=inside, other=0.0)
            sums = tl.where(given == float("-inf"), 0.0, sums)
        tl.store(dgate + at, sums, mask=inside)
        total += tl.sum(local, axis=0).to(tl.float64)


@triton.jit
def ends_of(
    held, dlast, bh, channels, source, sign, n_state, m_state, N: tl.constexpr, M: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """Σ_m held · dlast of each channel: of rows `source` of the state, with their signs."""
    others = tl.arange(0, BM)
    mask = (channels < N)[:, None] & (others < M)[None, :]
    cells = bh * N * M + others[None, :] * m_state
    before = tl.load(held + cells + source[:, None] * n_state, mask=mask, other=0.0) * sign[:, None]
    after = tl.load(dlast + cells + channels[:, None] * n_state, mask=mask, other=0.0)
    return tl.sum(before * after, axis=1).to(tl.float64)


@triton.jit
def load_part(rows, channels, inside, TURN: tl.constexpr, N: tl.constexpr):
    """Steps of x at the channels, float32, or (TURN) of J x."""
    if TURN:
        partner, sign = partners(channels, N)
        tile = tl.load(rows + partner[None, :], mask=inside, other=0.0).to(tl.float32)
        return tile * sign[None, :]
    else:
        return tl.load(rows + channels[None, :], mask=inside, other=0.0).to(tl.float32)


@dataclass(frozen=True)
class Steps:
    """The launches of one call with value gates.

    log_a: (H, KG|1) or (B, T, H, KG|1), where KG is K, or half of it for complex channels.
    stepped: (B·H, chunks), flags of the heads to take; None takes all. packing: in the same chunks.
    """

    plan: Plan
    B: int
    T: int
    H: int
    log_a: Slot | None
    log_b: Slot
    packing: Packing | None
    stepped: Slot | None = None

    @classmethod
    def of(
        cls, plan: Plan, q: Slot, log_a: Slot | None, log_b: Slot, packing: Packing | None,
        stepped: Slot | None = None,
    ) -> Self:  # fmt: skip
        B, T, H = q.shape[:3]
        return cls(plan, B, T, H, log_a, log_b, packing, stepped)

    @property
    def heads(self) -> int:
        """Heads of all sequences."""
        return self.H * (self.packing.sequences if self.packing else self.B)

    @property
    def chunks(self) -> int:
        return 1 if self.stepped is None else self.stepped.shape[1]

    @property
    def sizes(self) -> tuple[int, int, int, Slot | None]:
        return self.T, self.H, self.chunks, self.packing and self.packing.bounds

    def walk(
        self, x: Slot, w: Slot, y: Slot, first: Slot | None, out: Slot, *, across: bool = False,
        reverse: bool = False, parts: Slot | None = None, last: Slot | None = None, held: Slot | None = None,
    ) -> None:  # fmt: skip
        """Run `la_steps`: make out and what else is given of parts, the last state or the one held before.

        across: x and w are values, y keys.
        """
        X, Y = x.shape[-1], y.shape[-1]
        x_gate, y_gate = (self.log_b, self.log_a) if across else (self.log_a, self.log_b)
        BX = triton.next_power_of_2(X)
        BY = strip_of(BX, Y, begun=held is None or first is not None)
        self.plan.launch(
            la_steps, (self.heads * triton.cdiv(Y, BY),), x, w, y, x_gate or x, y_gate or y,
            self.stepped or x, first or x, out, parts or out, last or held or out,
            *self.sizes, loop_bound(self.T), loop_bound(self.chunks), *((1, X) if across else (Y, 1)),
            C=self.packing.C if self.packing else 1, X=X, Y=Y, XG=channels(x_gate), YG=channels(y_gate),
            BX=BX, BY=BY, X_CONST=constant(x_gate), Y_CONST=constant(y_gate), REVERSE=reverse,
            HAS_FIRST=first is not None, PARTS=parts is not None, LAST=last is not None,
            HELD=held is not None, SOME=self.stepped is not None, num_warps=1,
        )  # fmt: skip

    def gates(
        self, x: Slot, w: Slot, dx: Slot, dw: Slot, gate: Slot, ends: tuple[Slot, Slot | None],
        dgate: Slot, *, across: bool = False, turn: bool = False,
    ) -> None:  # fmt: skip
        """Run `la_gates`. ends: the state held and the gradient of S_T, (B, H, K, V); across: x is values."""
        N, (K, V), (held, dlast) = x.shape[-1], ends[0].shape[-2:], ends
        M = K if across else V
        BN, BM = min(STRIP, triton.next_power_of_2(N)), triton.next_power_of_2(M)
        self.plan.launch(
            la_gates, (self.heads * triton.cdiv(N, BN),), x, w, dx, dw, gate, held, dlast or held, dgate,
            self.stepped or x, *self.sizes, loop_bound(triton.cdiv(self.T, BLOCK.value)),
            loop_bound(self.chunks), *((1, V) if across else (V, 1)),
            C=self.packing.C if self.packing else 1, N=N, M=M, NG=channels(gate), BN=BN,
            BM=BM, CONST=constant(gate), HAS_LAST=dlast is not None, TURN=turn, SOME=self.stepped is not None,
            num_warps=4,
        )  # fmt: skip


def strip_of(BX: int, Y: int, *, begun: bool) -> int:
    """Width of a program's strip of Y channels.

    begun: whether it begins with a state, or stores none in its loop. Else Triton 3.6 dies at 16 × 64 cells.
    """
    cells = CELLS if begun or BX != 16 else CELLS // 4
    return max(1, min(cells // BX, triton.next_power_of_2(Y)))


def channels(gate: Slot | None) -> int:
    return 0 if gate is None else gate.shape[-1]


def constant(gate: Slot | None) -> bool:
    return gate is not None and gate.dim() == 2
