"""Arithmetic that kernels of several recurrences share."""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
HUGE = tl.constexpr(1e15)  # stands for infinity where its product with 0 must be 0


@triton.jit
def exp2(x, FLUSH: tl.constexpr):
    """2^x; FLUSH rounds subnormal results to 0, three instructions less on NVIDIA devices."""
    if FLUSH:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def pack(low, high):
    """Two float32 as one int64."""
    return low.to(tl.uint32, bitcast=True).to(tl.int64) | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpack(word):
    return word.to(tl.int32).to(tl.float32, bitcast=True), (word >> 32).to(tl.int32).to(
        tl.float32, bitcast=True
    )


@triton.jit
def load(pointers, mask):
    """Real and imaginary part in float32; a complex64 travels as one int64. 0 outside the mask."""
    x = tl.load(pointers, mask=mask, other=0)
    if x.dtype == tl.int64:
        return unpack(x)
    else:
        return x.to(tl.float32), tl.zeros(x.shape, tl.float32)


@triton.jit
def store(pointers, real, imag, mask):
    """Store in the pointers' dtype; only the real part unless they are int64 (complex64)."""
    if pointers.dtype.element_ty == tl.int64:
        tl.store(pointers, pack(real, imag), mask=mask)
    else:
        tl.store(pointers, real.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def times(ar, ai, xr, xi, COMPLEX: tl.constexpr):
    if COMPLEX:
        return ar * xr - ai * xi, ar * xi + ai * xr
    else:
        return ar * xr, ai


@triton.jit
def times_plus(ar, ai, xr, xi, yr, yi, COMPLEX: tl.constexpr):
    """a·x + y."""
    if COMPLEX:
        return ar * xr - ai * xi + yr, ar * xi + ai * xr + yi
    else:
        return ar * xr + yr, yi


@triton.jit
def exponential(x, FLUSH: tl.constexpr):
    """e^x; FLUSH rounds subnormal results to 0, three instructions less on NVIDIA devices."""
    return exp2(x * 1.4426950408889634, FLUSH)


@triton.jit
def cos_sin(phase):
    """Cosine and sine of a phase of any size, reduced in float64."""
    x = phase.to(tl.float64)
    quarters = tl.floor(x * 0.6366197723675814 + 0.5)
    y = (x - quarters * 1.5707963267948966).to(tl.float32)
    return _cos_sin(y, (quarters - 4.0 * tl.floor(quarters * 0.25)).to(tl.int32))


@triton.jit
def turns_of(phase):
    """A phase in turns, without whole ones: float32, within ±½ and a 2,000th of what was taken away.

    Its first 12 bits times the first 12 bits of 1/2π have no rounding error, so none grows with the phase.
    """
    if phase.dtype == tl.float64:
        precise = phase * 0.15915494309189535
        return (precise - tl.floor(precise + 0.5)).to(tl.float32)
    phase = phase.to(tl.float32)
    high = (phase.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    turns = high * 0.15911865234375
    rest = (phase - high) * 0.15911865234375 + phase * 3.629074814534561e-05
    return turns - tl.floor(turns + 0.5) + rest


@triton.jit
def cos_sin_of_turns(turns, APPROXIMATE: tl.constexpr):
    """Cosine and sine of 2π · turns, in float32: whole turns are taken away without rounding.

    APPROXIMATE: by NVIDIA's instructions, with errors of at most 2^-20.
    """
    if APPROXIMATE:
        y = (turns - tl.floor(turns + 0.5)) * 6.283185307179586
        cos = tl.inline_asm_elementwise(
            "cos.approx.f32 $0, $1;", "=f,f", [y], tl.float32, is_pure=True, pack=1
        )
        sin = tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [y], tl.float32, is_pure=True, pack=1
        )
        return cos, sin
    else:
        turns -= tl.floor(turns)
        quarters = tl.floor(turns * 4.0 + 0.5)
        return _cos_sin((turns - quarters * 0.25) * 6.283185307179586, quarters.to(tl.int32) & 3)


@triton.jit
def _cos_sin(y, quadrant):
    """Cosine and sine of y + quadrant · π/2, |y| ≤ π/4, by Taylor polynomials that are cut below 2e-9."""
    z = y * y
    s = y + y * z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880))))
    c = 1.0 + z * (-0.5 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320 + z * (-1 / 3628800)))))
    odd = (quadrant & 1) == 1
    cos = tl.where(odd, s, c)
    sin = tl.where(odd, c, s)
    cos = tl.where((quadrant == 1) | (quadrant == 2), -cos, cos)
    return cos, tl.where(quadrant >= 2, -sin, sin)


@triton.jit
def polar(log_a, phase, mask, FLUSH: tl.constexpr):
    """The gates at log_a (pointers) and phase (pointers or None); 1 outside the mask."""
    magnitude = exponential(tl.load(log_a, mask=mask, other=0.0).to(tl.float32), FLUSH)
    if phase is None:
        return magnitude, tl.zeros(magnitude.shape, tl.float32)
    else:
        cos, sin = cos_sin(tl.load(phase, mask=mask, other=0.0).to(tl.float32))
        return magnitude * cos, magnitude * sin
