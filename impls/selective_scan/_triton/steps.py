"""What all passes share: operands of R steps, and the gates of one.

A tile is BD channels × G groups of M states each. Its states are a tuple of M tensors (BD, G), so that a
thread holds M states of a few adjacent channels, the sum over a group costs no exchange, and keys come in
words of 8 bytes. Where a step lies outside, delta is 0: its gate is 1 and it writes nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
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
    if KIND == "fp32":
        for w in tl.static_range(M // 2):
            values += (words[w].to(tl.int32).to(tl.float32, bitcast=True),)
            values += ((words[w] >> 32).to(tl.int32).to(tl.float32, bitcast=True),)
    else:
        for w in tl.static_range(M // 4):
            for half in tl.static_range(2):
                pair = (words[w] >> (32 * half)).to(tl.int32)
                if KIND == "bf16":
                    values += ((pair << 16).to(tl.float32, bitcast=True),)
                    values += ((pair & -65536).to(tl.float32, bitcast=True),)
                else:
                    values += (pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),)
                    values += ((pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),)
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
    at = x + (token + (tl.minimum(step, end - R) if WHOLE else step)) * D + channel
    values = ()
    for r in tl.static_range(R):
        mask = in_channels if WHOLE else in_channels & (step + r < end)
        values += (tl.load(at + r * D, mask=mask, other=0.0),)
    return values


@triton.jit
def fetch_keys(
    k, token, step, end, WORDS: tl.constexpr, group, W: tl.constexpr,
    WHOLE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """W words (1, G) of k, whose row has WORDS, at R steps. From `end` on 0, or anything if WHOLE."""
    at = k + (token + (tl.minimum(step, end - R) if WHOLE else step)) * WORDS + group * W
    values = ()
    for r in tl.static_range(R):
        words = ()
        for w in tl.static_range(W):
            if WHOLE and W * group.shape[1] == WORDS:
                words += (tl.load(at + r * WORDS + w),)
            else:
                inside = (group * W + w < WORDS) & (WHOLE or step + r < end)
                words += (tl.load(at + r * WORDS + w, mask=inside, other=0),)
        values += (words,)
    return values


@triton.jit
def decay_rates(A, N, channel, group, in_channels, GATE: tl.constexpr, M: tl.constexpr):
    """M tensors: A in powers of two; of gates without A, nothing."""
    rates = ()
    if GATE == "exp":
        for j in tl.static_range(M):
            n = group * M + j
            a = tl.load(A + channel * N + n, mask=in_channels & (n < N), other=0.0).to(tl.float32)
            rates += (tl.minimum(tl.maximum(a, -HUGE), HUGE) * LOG2_E,)
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
        result += (gate[j] * state[j] + update * keys[j],)
    return result


@triton.jit
def load_state(state, channel, group, N, in_channels, M: tl.constexpr):
    """M tensors of a user's state (D, N)."""
    result = ()
    for j in tl.static_range(M):
        n = group * M + j
        result += (tl.load(state + channel * N + n, mask=in_channels & (n < N), other=0.0).to(tl.float32),)
    return result


@triton.jit
def store_state(to, state, channel, group, N, in_channels, M: tl.constexpr):
    for j in tl.static_range(M):
        n = group * M + j
        tl.store(to + channel * N + n, state[j], mask=in_channels & (n < N))


@triton.jit
def load_plane(plane, channel, group, D, in_channels, M: tl.constexpr):
    """M tensors of a kernel's own state (G·M, D)."""
    result = ()
    for j in tl.static_range(M):
        result += (tl.load(plane + (group * M + j) * D + channel, mask=in_channels, other=0.0),)
    return result


@triton.jit
def store_plane(to, state, channel, group, D, in_channels, M: tl.constexpr):
    for j in tl.static_range(M):
        tl.store(to + (group * M + j) * D + channel, state[j], mask=in_channels)
