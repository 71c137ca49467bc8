"""k and q come in words of 8 bytes, which are unpacked where they are used."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import COMPILED

# A thread's R words are one load by hand: the compiler's analysis of memory accesses takes most of its time,
# which grows with their number.


@triton.constexpr_function
def rows_asm(R, stride):
    return " ".join(f"ld.global.nc.b64 ${r}, [${R} + {r * stride}];" for r in range(R))


@triton.constexpr_function
def some_rows_asm(R, stride):
    """The first of R rows, as many as the last operand says; 0 for the others."""
    rows = (
        f"setp.gt.s32 p, ${R + 1}, {r}; mov.b64 ${r}, 0; @p ld.global.nc.b64 ${r}, [${R} + {r * stride}];"
        for r in range(R)
    )
    return "{ .reg .pred p; " + " ".join(rows) + " }"


@triton.constexpr_function
def rows_constraints(R, inputs):
    return "=&l," * R + inputs


@triton.constexpr_function
def words_of(R):
    return (tl.int64,) * R


@triton.constexpr_function
def per_word(dtype):
    """Numbers in a word."""
    return 64 // dtype.primitive_bitwidth


@triton.jit
def fetch_keys(k, at, step, lanes, N: tl.constexpr, TILE: tl.constexpr):
    """The M states' words (1, G) of k (B, T, N) at R steps."""
    R: tl.constexpr = TILE.STEPS
    PER: tl.constexpr = per_word(k.dtype.element_ty)
    WORDS: tl.constexpr = (N + PER - 1) // PER
    W: tl.constexpr = TILE.STATES // PER
    row = at.token + (tl.minimum(step, at.end - R) if TILE.WHOLE else step)
    first = k.to(tl.pointer_type(tl.int64)) + row * WORDS + lanes.group * W
    values = ()
    if COMPILED:
        columns = ()
        for w in tl.static_range(W):
            address = (first + w).to(tl.int64)
            if TILE.WHOLE and W * TILE.GROUPS == WORDS:
                columns += (
                    tl.inline_asm_elementwise(
                        rows_asm(R, 8 * WORDS), rows_constraints(R, "l"), [address], dtype=words_of(R),
                        is_pure=True, pack=1,
                    ),
                )  # fmt: skip
            else:
                rows = R if TILE.WHOLE else tl.minimum(at.end - step, R).to(tl.int32)
                columns += (
                    tl.inline_asm_elementwise(
                        some_rows_asm(R, 8 * WORDS), rows_constraints(R, "l,r"),
                        [address, tl.where(lanes.group * W + w < WORDS, rows, 0)], dtype=words_of(R),
                        is_pure=True, pack=1,
                    ),
                )  # fmt: skip
        for r in tl.static_range(R):
            words = ()
            for w in tl.static_range(W):
                words += (columns[w][r],)
            values += (words,)
    else:
        for r in tl.static_range(R):
            words = ()
            for w in tl.static_range(W):
                inside = (lanes.group * W + w < WORDS) & (TILE.WHOLE or step + r < at.end)
                words += (tl.load(first + r * WORDS + w, mask=inside, other=0),)
            values += (words,)
    return values


@triton.jit
def unpack(words, dtype: tl.constexpr):
    """The numbers of some words as float32 tensors."""
    values = ()
    for w in tl.static_range(len(words)):
        values += unpack_word(words[w], dtype)
    return values


@triton.jit
def unpack_word(word, dtype: tl.constexpr):
    """A word's numbers as float32.

    Instructions by hand are one operation in the compiler's analyses, whose time grows faster than their
    number.
    """
    if dtype == tl.float32:
        if COMPILED:
            return tl.inline_asm_elementwise(
                "mov.b64 {$0, $1}, $2;", "=f,=f,l", [word], dtype=(tl.float32, tl.float32), is_pure=True,
                pack=1,
            )  # fmt: skip
        else:
            low, high = word.to(tl.int32), (word >> 32).to(tl.int32)
            return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
    elif dtype == tl.bfloat16:
        if COMPILED:
            return tl.inline_asm_elementwise(
                """{ .reg .b32 low, high;
                mov.b64 {low, high}, $4;
                shl.b32 $0, low, 16; and.b32 $1, low, 0xffff0000;
                shl.b32 $2, high, 16; and.b32 $3, high, 0xffff0000; }""",
                "=r,=r,=r,=r,l", [word], dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True,
                pack=1,
            )  # fmt: skip
        else:
            values = ()
            for half in tl.static_range(2):
                pair = (word >> (32 * half)).to(tl.int32)
                values += ((pair << 16).to(tl.float32, bitcast=True),)
                values += ((pair & -65536).to(tl.float32, bitcast=True),)
            return values
    else:
        values = ()
        for half in tl.static_range(4):
            bits = (word >> (16 * half)).to(tl.int16)
            values += (bits.to(tl.float16, bitcast=True).to(tl.float32),)
        return values
