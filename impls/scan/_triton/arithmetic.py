"""Arithmetic, gates and affine maps of RUNS × BC tiles (of real numbers, the imaginary part is unused)."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import exp2


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
    """In the pointers' dtype; only the real part unless they are int64 (complex64)."""
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
def then(a1, b1, c1, d1, a2, b2, c2, d2):
    """Compose two spans of runs; h becomes a·h + b after all of a span, c·h + d before its last run."""
    return a1 * a2, a2 * b1 + b2, c2 * a1, c2 * b1 + d2


@triton.jit
def then_complex(
    ar1, ai1, br1, bi1, cr1, ci1, dr1, di1, ar2, ai2, br2, bi2, cr2, ci2, dr2, di2
):  # fmt: skip
    return (
        ar1 * ar2 - ai1 * ai2,
        ar1 * ai2 + ai1 * ar2,
        ar2 * br1 - ai2 * bi1 + br2,
        ar2 * bi1 + ai2 * br1 + bi2,
        cr2 * ar1 - ci2 * ai1,
        cr2 * ai1 + ci2 * ar1,
        cr2 * br1 - ci2 * bi1 + dr2,
        cr2 * bi1 + ci2 * br1 + di2,
    )


@triton.jit
def exponential(x, FLUSH: tl.constexpr):
    """e^x; FLUSH rounds subnormal results to 0, three instructions less on NVIDIA devices."""
    return exp2(x * 1.4426950408889634, FLUSH)


@triton.jit
def cos_sin(phase):
    """By reduction to |y| ≤ π/4 in float64, then Taylor polynomials that are cut below 2e-9."""
    x = phase.to(tl.float64)
    quarters = tl.floor(x * 0.6366197723675814 + 0.5)
    y = (x - quarters * 1.5707963267948966).to(tl.float32)
    quadrant = (quarters - 4.0 * tl.floor(quarters * 0.25)).to(tl.int32)
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


@triton.jit
def from_last(x, run, RUNS: tl.constexpr):
    """Move the last run's value to run 0, zeros elsewhere."""
    last = tl.sum(tl.where(run == RUNS - 1, x, 0.0), axis=0, keep_dims=True)
    return tl.where(run == 0, last, 0.0)


@triton.jit
def enter_runs(ar, ai, br, bi, hr, hi, run, COMPLEX: tl.constexpr, RUNS: tl.constexpr):
    """Each run's starting state and the state after the tile, from the runs' maps and the state before it.

    The states before and after the tile sit in run 0, with zeros in the others. The scan carries the
    exclusive prefix along: shifting the inclusive one by a run would move every load to another layout.
    """
    br, bi = times_plus(ar, ai, hr, hi, br, bi, COMPLEX)
    if RUNS == 1:
        return hr, hi, br, bi
    else:
        one = tl.full(ar.shape, 1.0, tl.float32)
        if COMPLEX:
            zero = tl.zeros(ar.shape, tl.float32)
            _, _, br, bi, _, _, hr, hi = tl.associative_scan(
                (ar, ai, br, bi, one, zero, hr, hi), 0, then_complex
            )
            return hr, hi, from_last(br, run, RUNS), from_last(bi, run, RUNS)
        else:
            _, br, _, hr = tl.associative_scan((ar, br, one, hr), 0, then)
            return hr, hi, from_last(br, run, RUNS), bi
