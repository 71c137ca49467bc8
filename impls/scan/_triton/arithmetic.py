"""Affine maps of RUNS × BC tiles (of real numbers, the imaginary part is unused)."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import times_plus


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
