"""Values in rows of whole words.

An odd number of half-precision values leaves every second row between words, where neither vectors nor
asynchronous copies can be loaded: a walk takes five times as long. A column of ones for a normaliser makes
the width odd.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from ..._triton.plan import Plan, Slot

WORD = 4  # bytes; the least that an asynchronous copy takes
VECTOR = 16  # bytes
ROWS = 16  # of a program
REST = 16  # columns; the most that a second tile takes


@triton.jit
def pad_columns(
    x, out, factor, rows, columns, inside, V: tl.constexpr, WIDTH: tl.constexpr, FADE: tl.constexpr
):
    """Copy some columns of rows of V numbers into rows of WIDTH numbers, (FADE) times a factor per row."""
    numbers = tl.load(x + rows * V + columns, mask=inside & (columns < V), other=0.0)
    if FADE:
        numbers = numbers.to(tl.float32) * factor[:, None]
    tl.store(out + rows * WIDTH + columns, numbers.to(out.dtype.element_ty), mask=inside & (columns < WIDTH))


@triton.jit(do_not_specialize=("count", "T", "H", "NT"))
def la_pad(
    x, out, spans, wide, count, T, H, NT,
    V: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, BV: tl.constexpr,
    REST: tl.constexpr, FADE: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """Rows of V numbers as rows of WIDTH numbers, with zeros behind.

    BV: width of the first tile of columns. REST: width of a second one behind it, or 0; a single one of twice
    BV would be nearly half masked.
    FADE: rows (B, T, H) of values get the decay of scalar gates to the chunk's middle, or (REVERSE) those of
    do the decay from there, unless the chunk is wide: see `anchors.la_spans`.
    """
    rows, begin = tl.arange(0, ROWS), tl.program_id(0).to(tl.int64) * ROWS
    some = rows < count - begin
    factor = some  # unused unless FADE
    if FADE:
        number = tl.program_id(0) * ROWS + rows  # in 32 bits: division of 64 takes many instructions
        token, head = number // H, number % H
        t = token % T
        at = (token // T * H + head).to(tl.int64) * NT + t // C
        span = tl.load(spans + at * C + t % C, mask=some, other=0.0)
        near = tl.load(wide + at, mask=some, other=0) == 0
        factor = tl.where(near, tl.exp(span if REVERSE else -span), 1.0)
    inside = some[:, None]
    source, target = x + begin * V, out + begin * WIDTH
    columns = tl.arange(0, BV)[None, :]
    pad_columns(source, target, factor, rows[:, None], columns, inside, V, WIDTH, FADE)
    if REST:
        columns = BV + tl.arange(0, REST)[None, :]
        pad_columns(source, target, factor, rows[:, None], columns, inside, V, WIDTH, FADE)


def whole_width(v: Slot | Tensor) -> int:
    """The width at which rows of v begin at a vector, if they do not begin at a word; else V."""
    V, size = v.shape[-1], v.dtype.itemsize
    whole = triton.cdiv(V * size, VECTOR) * VECTOR // size
    return whole if V * size % WORD else V


def widened(x: Tensor, columns: int) -> Tensor:
    """The same with so many columns of zeros behind, x itself for none: for operands that autograd pads."""
    return pad(x, (0, columns)) if columns else x


def tiles_of(width: int) -> tuple[int, int]:
    """Widths of a row's tiles: the largest power of two and a short rest, or one for all columns and 0."""
    whole = triton.next_power_of_2(width)
    main = whole // 2
    rest = triton.next_power_of_2(width - main)
    return (main, rest) if width < whole and rest <= REST else (whole, 0)


def padded(plan: Plan, x: Slot, width: int) -> Slot:
    """x (…, V), contiguous, as (…, width) with zeros behind; x itself if that is its width."""
    return x if width == x.shape[-1] else _launch(plan, x, width, None, (1, 1, 1), C=16)


def faded(
    plan: Plan, x: Slot, width: int, spans: Slot, wide: Slot, C: int, sizes: tuple[int, int, int],
    reverse: bool,
) -> Slot:  # fmt: skip
    """v (B, T, H, V), or (reverse) do, padded, and with its decay brought in: see the kernel."""
    return _launch(plan, x, width, (spans, wide), sizes, C=C, reverse=reverse)


def _launch(
    plan: Plan, x: Slot, width: int, gates: tuple[Slot, Slot] | None, sizes: tuple[int, int, int], *,
    C: int, reverse: bool = False,
) -> Slot:  # fmt: skip
    V = x.shape[-1]
    out = plan.empty((*x.shape[:-1], width), x.dtype)
    rows = x.numel() // V
    BV, rest = tiles_of(width)
    plan.launch(
        la_pad, (triton.cdiv(rows, ROWS),), x, out, *(gates or (x, x)), rows, *sizes, V=V, WIDTH=width, C=C,
        ROWS=ROWS, BV=BV, REST=rest, FADE=gates is not None, REVERSE=reverse, num_warps=4,
    )  # fmt: skip
    return out
