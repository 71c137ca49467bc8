"""What all passes share: operands of R steps, and the gates of one.

A tile is BD channels × G groups of M states each. Its states are a tuple of M tensors (BD, G), so that a
thread holds M states of a few adjacent channels, the sum over a group costs no exchange, and keys come in
words of 8 bytes. Where a step lies outside, delta is 0: its gate is 1 and it writes nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
INLINE = tl.constexpr(not triton.knobs.runtime.interpret)  # as triton.jit decides
HUGE = tl.constexpr(1e15)  # stands for infinity: its product with a step size of 0 is 0


@triton.jit
def exponential2(x, FLUSH: tl.constexpr):
    """2^x; FLUSH rounds subnormal results to 0, three instructions less on NVIDIA devices."""
    if FLUSH:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def unpack(words, KIND: tl.constexpr, M: tl.constexpr):
    """M float32 tensors from words of two float32 or four halves."""
    values = ()
    for w in tl.static_range(M // (2 if KIND == "fp32" else 4)):
        values += unpack_word(words[w], KIND)
    return values


@triton.jit
def unpack_word(word, KIND: tl.constexpr):
    """A word's numbers as float32.

    Instructions by hand are one operation in the compiler's analyses, whose time grows faster than their
    number.
    """
    if KIND == "fp32":
        if INLINE:
            return tl.inline_asm_elementwise(
                "mov.b64 {$0, $1}, $2;", "=f,=f,l", [word], dtype=(tl.float32, tl.float32), is_pure=True,
                pack=1,
            )  # fmt: skip
        else:
            low, high = word.to(tl.int32), (word >> 32).to(tl.int32)
            return low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
    elif KIND == "bf16":
        if INLINE:
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


@triton.jit
def tile(block, D, BD: tl.constexpr, G: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr):
    """Channels (BD, G), groups (1, G), and which channels exist; EVEN: all do."""
    channel = tl.max_contiguous(block * BD + tl.arange(0, BD), VECTOR)[:, None]
    group = tl.arange(0, G)[None, :]
    in_channels = tl.full([BD, G], 1, tl.int1)
    if not EVEN:
        in_channels = tl.broadcast_to(channel < D, (BD, G))
    return tl.broadcast_to(channel, (BD, G)), group, in_channels


@triton.jit
def constant(value: tl.constexpr, BD: tl.constexpr, G: tl.constexpr, M: tl.constexpr):
    result = ()
    for _ in tl.static_range(M):
        result += (tl.full([BD, G], value, tl.float32),)
    return result


@triton.jit
def fetch_channels(
    x, token, step, end, D: tl.constexpr, channel, in_channels,
    WHOLE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """x at R steps (BD, G), every group the same. token: batch·T. From `end` on 0, or anything if WHOLE."""
    at = x + (token + (tl.minimum(step, end - R) if WHOLE else step)) * D
    row = tl.arange(0, R)[None, None, :]
    inside = tl.broadcast_to(in_channels[:, :, None], (channel.shape[0], channel.shape[1], R))
    if not WHOLE:
        inside = inside & (step + row < end)
    return by_step(tl.load(at + (row * D + channel[:, :, None]), mask=inside, other=0.0), R)


@triton.jit
def by_step(x, R: tl.constexpr):
    """x (BD, G, R) as R tensors (BD, G)."""
    parts = (x,)
    for s in tl.static_range(5):
        if R >> s > 1:
            evens, odds = (), ()
            for j in tl.static_range(1 << s):
                even, odd = tl.split(tl.reshape(parts[j], (x.shape[0], x.shape[1], R >> (s + 1), 2)))
                evens += (even,)
                odds += (odd,)
            parts = evens + odds
    result = ()
    for j in tl.static_range(R):
        result += (tl.reshape(parts[j], (x.shape[0], x.shape[1])),)
    return result


# Loads of R rows as one operation: the compiler's analysis of memory accesses takes most of its time, which
# grows with their number.


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


@triton.jit
def fetch_keys(
    k, token, step, end, WORDS: tl.constexpr, group, W: tl.constexpr,
    WHOLE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """W words (1, G) of k, whose row has WORDS, at R steps. From `end` on 0, or anything if WHOLE."""
    ALL: tl.constexpr = WHOLE and W * group.shape[1] == WORDS
    at = k + (token + (tl.minimum(step, end - R) if WHOLE else step)) * WORDS + group * W
    values = ()
    if INLINE:
        columns = ()
        for w in tl.static_range(W):
            address = (at + w).to(tl.int64)
            if ALL:
                columns += (
                    tl.inline_asm_elementwise(
                        rows_asm(R, 8 * WORDS), rows_constraints(R, "l"), [address], dtype=words_of(R),
                        is_pure=True, pack=1,
                    ),
                )  # fmt: skip
            else:
                rows = R if WHOLE else tl.minimum(end - step, R).to(tl.int32)
                columns += (
                    tl.inline_asm_elementwise(
                        some_rows_asm(R, 8 * WORDS), rows_constraints(R, "l,r"),
                        [address, tl.where(group * W + w < WORDS, rows, 0)], dtype=words_of(R),
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
                inside = (group * W + w < WORDS) & (WHOLE or step + r < end)
                words += (tl.load(at + r * WORDS + w, mask=inside, other=0),)
            values += (words,)
    return values


@triton.jit
def decay_rates(A, N, channel, group, in_channels, GATE: tl.constexpr, M: tl.constexpr):
    """M tensors: A in powers of two; of gates without A, nothing."""
    rates = ()
    if GATE == "exp":
        rates = in_powers_of_two(load_state(A, channel, group, N, in_channels, M), M)
    return rates


@triton.jit
def in_powers_of_two(A, M: tl.constexpr):
    rates = ()
    for j in tl.static_range(M):
        rates += (tl.minimum(tl.maximum(A[j], -HUGE), HUGE) * LOG2_E,)
    return rates


@triton.jit
def gates(delta, rates, keys, GATE: tl.constexpr, FLUSH: tl.constexpr, M: tl.constexpr):
    """M tensors: the gates of a step of size delta."""
    result = ()
    for j in tl.static_range(M):
        if GATE == "exp":
            result += (exponential2(delta * rates[j], FLUSH),)
        else:
            result += (1.0 - delta * (keys[j] * keys[j]),)
    return result


@triton.jit
def advance(state, gate, keys, update, M: tl.constexpr):
    """The states after a step that writes update ⊗ keys."""
    result = ()
    for j in tl.static_range(M):
        result += (tl.fma(gate[j], state[j], update * keys[j]),)
    return result


@triton.jit
def retreat(adjoint, gate, keys, value, M: tl.constexpr):
    """The adjoints before a step that reads value ⊗ keys, in descending time."""
    result = ()
    for j in tl.static_range(M):
        result += (gate[j] * (adjoint[j] + value * keys[j]),)
    return result


@triton.jit
def products(kept, gate, M: tl.constexpr):
    result = ()
    for j in tl.static_range(M):
        result += (kept[j] * gate[j],)
    return result


@triton.jit
def load_state(state, channel, group, N, in_channels, M: tl.constexpr):
    """M tensors of a user's state (D, N)."""
    n = group[:, :, None] * M + tl.arange(0, M)[None, None, :]
    inside = in_channels[:, :, None] & (n < N)
    values = tl.load(state + (channel[:, :, None] * N + n), mask=inside, other=0.0)
    return by_step(values.to(tl.float32), M)


@triton.jit
def store_state(to, state, channel, group, N, in_channels, M: tl.constexpr):
    n = group[:, :, None] * M + tl.arange(0, M)[None, None, :]
    inside = in_channels[:, :, None] & (n < N)
    tl.store(to + (channel[:, :, None] * N + n), in_one(state, M), mask=inside)


@triton.jit
def at_plane(plane, channel, group, D, M: tl.constexpr):
    """Where the M states (BD, G) of a kernel's own state (G·M, D) are, (BD, G, M)."""
    state = tl.arange(0, M)[None, None, :]
    return plane + ((group[:, :, None] * M + state) * D + channel[:, :, None])


@triton.jit
def load_plane(plane, channel, group, D, in_channels, M: tl.constexpr):
    """M tensors of a kernel's own state (G·M, D)."""
    inside = tl.broadcast_to(in_channels[:, :, None], (channel.shape[0], channel.shape[1], M))
    return by_step(tl.load(at_plane(plane, channel, group, D, M), mask=inside, other=0.0), M)


@triton.jit
def store_plane(to, state, channel, group, D, in_channels, M: tl.constexpr):
    inside = tl.broadcast_to(in_channels[:, :, None], (channel.shape[0], channel.shape[1], M))
    tl.store(at_plane(to, channel, group, D, M), in_one(state, M), mask=inside)


@triton.jit
def in_one(parts, R: tl.constexpr):
    """R tensors (BD, G) as (BD, G, R), the other way round than `by_step`."""
    BD: tl.constexpr = parts[0].shape[0]
    G: tl.constexpr = parts[0].shape[1]
    for s in tl.static_range(5):
        if R >> s > 1:
            joined = ()
            for j in tl.static_range(R >> (s + 1)):
                pair = tl.join(parts[j], parts[j + (R >> (s + 1))])
                joined += (tl.reshape(pair, (BD, G, 2 << s)),)
            parts = joined
    return tl.reshape(parts[0], (BD, G, R))
