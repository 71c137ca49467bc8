"""Key heads that several heads of values share, as in Mamba-2: head h reads key head h // SHARED."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.plan import Plan, Slot

ROWS = 16  # of a program


@triton.jit
def key_head_offset(bh, T, H, SHARED: tl.constexpr):
    """Row index of step 0 of a head's key head in a (B, T, H / SHARED, ·) tensor."""
    return (bh // H) * T * (H // SHARED) + bh % H // SHARED


@triton.jit(do_not_specialize=("count",))
def la_repeat(x, out, count, K: tl.constexpr, BK: tl.constexpr, SHARED: tl.constexpr, ROWS: tl.constexpr):
    """Write each row of x (count, K) SHARED times, one behind the other."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, BK)[None, :]
    mask = (row < count)[:, None] & (keys < K)
    numbers = tl.load(x + row[:, None] * K + keys, mask=mask, other=0.0)
    for time in range(SHARED):
        tl.store(out + (row * SHARED + time)[:, None] * K + keys, numbers, mask=mask)


def repeated(plan: Plan, x: Slot, H: int) -> Slot:
    """Repeat the heads of x (B, T, G, K), contiguous, until there are H; x itself if there are."""
    B, T, G, K = x.shape
    if G == H:
        return x
    out = plan.empty((B, T, H, K), x.dtype)
    plan.launch(
        la_repeat, (triton.cdiv(B * T * G, ROWS),), x, out, B * T * G, K=K, BK=triton.next_power_of_2(K),
        SHARED=H // G, ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return out
