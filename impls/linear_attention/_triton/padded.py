"""Values in rows of whole words.

An odd number of half-precision values leaves every second row between words, where neither vectors nor
asynchronous copies can be loaded: a walk takes five times as long. A column of ones for a normaliser makes
the width odd.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.plan import Plan, Slot

WORD = 4  # bytes; the least that an asynchronous copy takes
VECTOR = 16  # bytes
ROWS = 16  # of a program


@triton.jit(do_not_specialize=("count",))
def la_pad(x, out, count, V: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BV: tl.constexpr):
    """Rows of V numbers as rows of WIDTH numbers, with zeros behind."""
    begin = tl.program_id(0).to(tl.int64) * ROWS
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, BV)[None, :]
    inside = rows < count - begin
    numbers = tl.load(x + begin * V + rows * V + columns, mask=inside & (columns < V), other=0.0)
    tl.store(out + begin * WIDTH + rows * WIDTH + columns, numbers, mask=inside & (columns < WIDTH))


def whole_width(v: Slot) -> int:
    """The width at which rows of v begin at a vector, if they do not begin at a word; else V."""
    V, size = v.shape[-1], v.dtype.itemsize
    whole = triton.cdiv(V * size, VECTOR) * VECTOR // size
    return whole if V * size % WORD else V


def padded(plan: Plan, x: Slot, width: int) -> Slot:
    """x (…, V), contiguous, as (…, width) with zeros behind; x itself if that is its width."""
    V = x.shape[-1]
    if width == V:
        return x
    out = plan.empty((*x.shape[:-1], width), x.dtype)
    rows = x.numel() // V
    plan.launch(
        la_pad, (triton.cdiv(rows, ROWS),), x, out, rows, V=V, WIDTH=width, ROWS=ROWS,
        BV=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out
