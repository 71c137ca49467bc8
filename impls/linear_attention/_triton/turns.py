"""Kernels of complex gates: they turn queries and keys into a frame in which all gates are real.

With Φ_t the sum of the phases to step t, S_t = e^{iΦ_t} ⊙ S'_t, and S' has the real gates, keys e^{-iΦ_t} k_t
and queries e^{iΦ_t} q_t. A channel's real and imaginary part are two real channels, all real parts before
all imaginary ones: queries (Re, -Im), keys (Re, Im), so that q' · k' is the real part of their product. In
this order one map turns both: (a, b) to (a cos Φ + b sin Φ, b cos Φ - a sin Φ). Its derivative by Φ is J:
(a, b) to (b, -a).

Phases add up in float64, whose sums keep their digits for as many steps as there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl

from ..._triton.arithmetic import cos_sin
from ..._triton.host import loop_bound
from ..._triton.packed import counted
from ..._triton.plan import Plan, Slot
from ..._triton.sequences import Packing, chunk_steps, head_offset, sequence_of
from .blocks import locate, locate_heads_first
from .chunks import COUNTS

ANGLES = tl.constexpr(32)  # angles that one pass of `la_frames` makes
STRIP = 32  # channels of a program of `la_frames`


@triton.jit(do_not_specialize=COUNTS)
def la_phases(phase, sums, T, H, NT, places, K: tl.constexpr, FRAME: tl.constexpr, BK: tl.constexpr):
    """Sum up the phases of each frame: sums (B·H, frames, K) float64 of phase (B, T, H, K)."""
    _, frame, bh = locate_heads_first(H, NT, 1)
    keys = tl.arange(0, BK)
    start, end = chunk_steps(frame, T, NT, places, FRAME)
    row = phase + (head_offset(bh, T, H) + start * H) * K + keys
    left = end - start
    total = tl.zeros((BK,), dtype=tl.float64)
    for step in range(FRAME):
        total += tl.load(row + step * (H * K), mask=(keys < K) & (step < left), other=0.0).to(tl.float64)
    tl.store(sums + (bh * NT + frame) * K + keys, total, mask=keys < K)


@triton.jit(do_not_specialize=COUNTS)
def la_frames(
    given, angles, T, H, NT, bounds, PASSES, K: tl.constexpr, FRAME: tl.constexpr, BK: tl.constexpr,
    CONST: tl.constexpr,
):  # fmt: skip
    """Φ before each frame and after the last step: angles (B·H, frames + 1, K), within ±π.

    Of packed sequences those after the last step follow all others, (sequences · H, K).
    given: what `la_phases` wrote; CONST: the phases (H, K) that all steps share.
    """
    strip, _, bh = locate(H, 1, tl.cdiv(K, BK))
    _, steps, frames, origin = sequence_of(bh, T, H, NT, bounds, FRAME)
    if bounds is not None:
        PASSES = counted(tl.cdiv(frames + 1, ANGLES))
    keys = strip * BK + tl.arange(0, BK)
    numbers = tl.arange(0, ANGLES)
    total = tl.zeros((BK,), dtype=tl.float64)
    if CONST:
        each = tl.load(given + bh % H * K + keys, mask=keys < K, other=0.0).to(tl.float64)
    for part in range(PASSES):
        frame = part * ANGLES + numbers
        inside = (frame <= frames)[:, None] & (keys < K)[None, :]
        if CONST:
            sums = tl.minimum(frame * FRAME, steps).to(tl.float64)[:, None] * each[None, :]
        else:
            before = (frame > 0) & (frame <= frames)
            cells = given + (origin + frame[:, None] - 1) * K + keys[None, :]
            added = tl.load(cells, mask=before[:, None] & (keys < K)[None, :], other=0.0)
            sums = total[None, :] + tl.cumsum(added, axis=0)
            total += tl.sum(added, axis=0)
        rest = sums - 6.283185307179586 * tl.floor(sums * 0.15915494309189535 + 0.5)
        row = bh * (NT + 1) + frame
        if bounds is not None:
            row = tl.where(frame < frames, origin + bh % H + frame, H * (NT + 1) + bh)
        tl.store(angles + row[:, None] * K + keys[None, :], rest.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def la_turn(
    q, k, phase, angles, wide, dlog_a, dphase, q_turned, k_turned, dlog_a_summed, dphase_summed, T, H, NT,
    places,
    K: tl.constexpr, KP: tl.constexpr, FRAME: tl.constexpr, BK: tl.constexpr, CONST: tl.constexpr,
    FROM: tl.constexpr, TO: tl.constexpr, BACK: tl.constexpr, WIDE: tl.constexpr, GATES: tl.constexpr,
    PHASES: tl.constexpr,
):  # fmt: skip
    """Turn q and k, or (BACK) turn their gradients back.

    FROM, TO: channels of the operands and of the results, 2 K where imaginary parts are there (and K where
    they are 0, or not wanted). phase: (B, T, H, KP), CONST: (H, KP); KP is K or 1. WIDE: frames are chunks,
    and those that are not wide are left out. GATES, PHASES: add up the gradients of gates, and of phases, of
    real and imaginary parts, (B, T, H, 2 K) to (B, T, H, K).
    """
    _, frame, bh = locate_heads_first(H, NT, 1)
    if WIDE:  # noqa: SIM102, as only this test is of constants
        if tl.load(wide + bh * NT + frame) == 0:
            return
    start, end = chunk_steps(frame, T, NT, places, FRAME)
    if places is not None:  # noqa: SIM102, as only this test is of constants
        if start >= end:
            return
    keys = tl.arange(0, BK)
    columns = keys if KP > 1 else keys * 0
    inside = keys < K
    angle = tl.load(angles + (bh * (NT + 1) + frame) * KP + columns, mask=inside, other=0.0).to(tl.float64)
    row, left = head_offset(bh, T, H) + start * H, end - start
    phases = phase + (bh % H if CONST else row) * KP + columns
    for step in range(FRAME):
        inside = (keys < K) & (step < left)
        angle += tl.load(phases + (H * 0 if CONST else step * H * KP), mask=inside, other=0.0).to(tl.float64)
        cos, sin = cos_sin(angle)
        if BACK:
            sin = -sin
        source, target = (row + step * H) * FROM + keys, (row + step * H) * TO + keys
        turn(q, source, q_turned, target, cos, sin, inside, K, FROM, TO)
        turn(k, source, k_turned, target, cos, sin, inside, K, FROM, TO)
        if GATES:
            add_parts(dlog_a, dlog_a_summed, row + step * H, keys, inside, K)
        if PHASES:
            add_parts(dphase, dphase_summed, row + step * H, keys, inside, K)


@triton.jit
def add_parts(parts, summed, row, keys, inside, K: tl.constexpr):
    """One row of the gradients of gates or phases."""
    re = tl.load(parts + row * (2 * K) + keys, mask=inside, other=0.0)
    im = tl.load(parts + row * (2 * K) + K + keys, mask=inside, other=0.0)
    tl.store(summed + row * K + keys, re + im, mask=inside)


@triton.jit
def turn(x, source, turned, target, cos, sin, inside, K: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr):
    """Turn one row."""
    re = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    if FROM > K:
        im = tl.load(x + source + K, mask=inside, other=0.0).to(tl.float32)
    else:
        im = tl.zeros(re.shape, dtype=tl.float32)
    kind = turned.dtype.element_ty
    tl.store(turned + target, (re * cos + im * sin).to(kind), mask=inside)
    if TO > K:
        tl.store(turned + target + K, (im * cos - re * sin).to(kind), mask=inside)


@dataclass(frozen=True)
class Frames:
    """The frame of one call's complex gates. phase: (H, K|1) or (B, T, H, K|1), contiguous.

    steps: between two angles in memory. packing: in frames, which are the chunks of so many steps.
    """

    plan: Plan
    B: int
    T: int
    H: int
    K: int
    phase: Slot
    steps: int
    packing: Packing | None = None

    @classmethod
    def of(cls, plan: Plan, q: Slot, phase: Slot, K: int, *, steps: int, packing: Packing | None) -> Self:
        """K: channels of the gate; q may have imaginary parts beside them."""
        B, T, H, _ = q.shape
        return cls(plan, B, T, H, K, phase, steps, packing)

    @property
    def const(self) -> bool:
        return self.phase.dim() == 2

    @property
    def count(self) -> int:
        return self.packing.count if self.packing else triton.cdiv(self.T, self.steps)

    @property
    def programs(self) -> int:
        return self.B * self.H * self.count

    def angles(self) -> Slot:
        """Φ before each frame and after the last step: (B·H, frames + 1, K|1), within ±π; see `la_frames`."""
        width, sizes = self.phase.shape[-1], (self.T, self.H, self.count)
        packing, sums, sequences = self.packing, self.phase, self.B
        shape: tuple[int, ...] = (self.B * self.H, self.count + 1, width)
        if packing is not None:
            sequences, shape = packing.sequences, (self.H * (self.count + 1 + packing.sequences), width)
        if not self.const:
            sums = self.plan.empty((self.B * self.H, self.count, width), torch.float64)
            self.plan.launch(
                la_phases, (self.programs,), self.phase, sums, *sizes, packing and packing.places, K=width,
                FRAME=self.steps, BK=triton.next_power_of_2(width), num_warps=warps(width),
            )  # fmt: skip
        angles = self.plan.empty(shape, torch.float32)
        BK = min(STRIP, triton.next_power_of_2(width))
        self.plan.launch(
            la_frames, (sequences * self.H * triton.cdiv(width, BK),), sums, angles, *sizes,
            packing and packing.bounds, loop_bound(triton.cdiv(self.count + 1, ANGLES.value)), K=width,
            FRAME=self.steps, BK=BK, CONST=self.const, num_warps=1,
        )  # fmt: skip
        return angles

    def turn(self, q: Slot, k: Slot, angles: Slot, *, wide: Slot | None = None) -> tuple[Slot, Slot]:
        """q and k turned, with 2 K channels. wide: flags of the frames that are wanted; None means all."""
        q_turned, k_turned = (self.plan.empty((*x.shape[:-1], 2 * self.K), x.dtype) for x in (q, k))
        self._turn((q, k), angles, (q_turned, k_turned), wide=wide)
        return q_turned, k_turned

    def turn_back(
        self, dq: Slot, dk: Slot, angles: Slot, channels: int, dtype: torch.dtype, dlog_a: Slot | None,
        dphase: Slot | None,
    ) -> tuple[Slot, Slot, Slot | None, Slot | None]:  # fmt: skip
        """dq and dk with so many channels, K or (with imaginary parts) 2 K, turned back; dlog_a and dphase.

        dlog_a, dphase: of real and imaginary parts, (B, T, H, 2 K), are added up; others are left alone.
        """
        shape = (self.B, self.T, self.H, channels)
        back = self.plan.empty(shape, dtype), self.plan.empty(shape, dtype)
        parts = [
            part if part is not None and part.shape == (self.B, self.T, self.H, 2 * self.K) else None
            for part in (dlog_a, dphase)
        ]
        summed = [
            None if part is None else self.plan.empty((self.B, self.T, self.H, self.K), part.dtype)
            for part in parts
        ]
        self._turn((dq, dk), angles, back, parts=parts, summed=summed, reverse=True)
        return *back, summed[0] or dlog_a, summed[1] or dphase

    def turn_back_wide(
        self, parts: tuple[Slot, Slot], angles: Slot, found: tuple[Slot, Slot], wide: Slot
    ) -> None:
        """Turn dq and dk of 2 K channels back in the frames that `wide` flags, into those of the others."""
        self._turn(parts, angles, found, wide=wide, reverse=True)

    def _turn(
        self, given: tuple[Slot, Slot], angles: Slot, results: tuple[Slot, Slot], *, wide: Slot | None = None,
        parts: Sequence[Slot | None] = (None, None), summed: Sequence[Slot | None] = (None, None),
        reverse: bool = False,
    ) -> None:  # fmt: skip
        q, gates, phases = given[0], parts[0], parts[1]
        self.plan.launch(
            la_turn, (self.programs,), *given, self.phase, angles, wide or q, gates or q, phases or q,
            *results, summed[0] or q, summed[1] or q, self.T, self.H, self.count,
            self.packing and self.packing.places,
            K=self.K, KP=self.phase.shape[-1], FRAME=self.steps, BK=triton.next_power_of_2(self.K),
            CONST=self.const, FROM=q.shape[-1], TO=results[0].shape[-1], BACK=reverse, WIDE=wide is not None,
            GATES=gates is not None, PHASES=phases is not None, num_warps=warps(self.K),
        )  # fmt: skip


def warps(width: int) -> int:
    """Number of warps at which a thread has four channels."""
    return max(1, triton.next_power_of_2(width) // 128)
