"""Forward with time innermost: a program walks the tiles of one row, a channel of a batch element.

A tile is RUNS × R steps. A thread holds runs of R adjacent steps, loaded and stored as vectors: a run is
composed to one affine map, the maps of the runs are scanned across threads, and each run is replayed from its
true starting state. The carry stays off the scan: it is applied to the composed maps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import load, polar, store, times, times_plus
from .chain import compose


@triton.jit
def only(x, where):
    """x there, elsewhere -0: unlike 0, it adds nothing to any value, so that no addition of it is compiled.

    A literal -0.0 would become 0.
    """
    return tl.where(where, x, tl.full(x.shape, -(2**31), tl.int32).to(tl.float32, bitcast=True))


@triton.jit
def pick(x, r, WHICH: tl.constexpr):
    """Step WHICH of every run, (RUNS): of a thread's own registers, at no cost."""
    return tl.sum(only(x, r == WHICH), axis=1)


@triton.jit
def put(x, values, r, WHICH: tl.constexpr):
    """x with the values (RUNS) as step WHICH of every run."""
    return tl.where(r == WHICH, values[:, None], x)


@triton.jit
def pick_both(x, r, WHICH: tl.constexpr, COMPLEX: tl.constexpr):
    """Real and imaginary part of a step; of real numbers the second is unused."""
    real = pick(x[0], r, WHICH)
    if COMPLEX:
        return real, pick(x[1], r, WHICH)
    else:
        return real, tl.zeros(real.shape, tl.float32)


@triton.jit
def of_run(x, run, WHICH: tl.constexpr):
    """One run's value, in all runs."""
    return tl.broadcast_to(tl.sum(only(x, run == WHICH), axis=0, keep_dims=True), x.shape)


@triton.jit
def enter_runs(ar, ai, br, bi, hr, hi, run, COMPLEX: tl.constexpr, RUNS: tl.constexpr):
    """Each run's starting state and the state after the tile, from the runs' maps and the state before it.

    The states before and after the tile are in every run.
    """
    if RUNS == 1:
        after_r, after_i = times_plus(ar, ai, hr, hi, br, bi, COMPLEX)
        return hr, hi, after_r, after_i
    else:
        ar, ai, br, bi, cr, ci, dr, di = compose(ar, ai, br, bi, COMPLEX)
        sr, si = times_plus(cr, ci, hr, hi, dr, di, COMPLEX)
        after_r, after_i = times_plus(ar, ai, hr, hi, br, bi, COMPLEX)
        after_r = of_run(after_r, run, RUNS - 1)
        if COMPLEX:
            after_i = of_run(after_i, run, RUNS - 1)
        return sr, si, after_r, after_i


@triton.jit
def origin(batch, channel, by_batch, by_channel, lead, ALONG: tl.constexpr, R: tl.constexpr):
    """Offset of a gate's row, `lead` steps before its first: a multiple of R if its rows lie as b's do."""
    at = batch * by_batch + channel * by_channel - lead
    return at // R * R if ALONG else at


@triton.jit
def fetch_gates(
    log_a, phase, at, mask, valid, A_TIME: tl.constexpr, P_TIME: tl.constexpr, ALONG: tl.constexpr,
    FLUSH: tl.constexpr,
):  # fmt: skip
    """mask: of whole vectors. valid: of steps, for rows that do not lie as b's do."""
    inside = mask if ALONG else valid
    at_phase = phase + at * P_TIME if phase is not None else None
    return polar(log_a + at * A_TIME, at_phase, inside, FLUSH)


@triton.jit
def is_step(first, i, T, RAGGED: tl.constexpr):
    """Whether step i of the runs that begin with the steps `first` exists."""
    return (first + i >= 0) & (first + i < T) if RAGGED else first < T


@triton.jit
def step_of(gates, inputs, r, i, valid, COMPLEX: tl.constexpr, RAGGED: tl.constexpr):
    """The gate and the input of step i of every run; outside of the row 1 and 0."""
    gr, gi = pick_both(gates, r, i, COMPLEX)
    xr, xi = pick_both(inputs, r, i, COMPLEX)
    if RAGGED:
        gr = tl.where(valid, gr, 1.0)
        xr = tl.where(valid, xr, 0.0)
        gi = tl.where(valid, gi, 0.0)
        xi = tl.where(valid, xi, 0.0)
    return (gr, gi), (xr, xi)


@triton.jit
def store_steps(to, x, mask, valid, full, RAGGED: tl.constexpr):
    """Vectors; where a tile reaches over an end of its row, steps one by one."""
    if RAGGED:
        if full:
            store(to, x[0], x[1], None)
        else:
            store(to, x[0], x[1], valid)
    else:
        store(to, x[0], x[1], mask)


@triton.jit(do_not_specialize=["T", "C", "tiles"])
def scan_forward_time_last(
    log_a, phase, b, state, h, final,
    T, C, tiles, a_batch, a_channel, p_batch, p_channel,
    A_TIME: tl.constexpr, P_TIME: tl.constexpr, ALONG: tl.constexpr, COMPLEX: tl.constexpr,
    WHOLE: tl.constexpr, RAGGED: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A_TIME, P_TIME: strides of log_a and phase over time, 1, or 0 where they are the same at every step.

    ALONG: rows of the gates begin at the same places of a vector as those of b. WHOLE: tiles divide T.
    RAGGED: R does not, so rows begin within a vector: the first tile begins `lead` steps before the row, with
    the vector. A vector is then read if one of its steps exists.
    """
    row = tl.program_id(0)
    batch = (row // C).to(tl.int64)
    channel = (row % C).to(tl.int64)
    row = row.to(tl.int64)
    begin = row * T // R * R
    lead = (row * T - begin).to(tl.int32) if RAGGED else 0
    run = tl.arange(0, RUNS)
    r = tl.arange(0, R)[None, :]
    offset = run[:, None] * R + r
    everywhere = tl.full([RUNS], 1, tl.int1)
    at_row = tl.zeros([RUNS], tl.int64) + row

    hr = tl.zeros([RUNS], tl.float32)
    hi = tl.zeros([RUNS], tl.float32)
    if state is not None:
        hr, hi = load(state + at_row, everywhere)

    VARIES: tl.constexpr = A_TIME + P_TIME > 0
    log_a += origin(batch, channel, a_batch, a_channel, lead * A_TIME, ALONG and A_TIME > 0, R)
    if phase is not None:
        phase += origin(batch, channel, p_batch, p_channel, lead * P_TIME, ALONG and P_TIME > 0, R)
    if not VARIES:
        constant = polar(log_a + run * 0, phase + run * 0 if phase is not None else None, everywhere, FLUSH)

    for tile in tl.range(0, tiles, num_stages=STAGES):
        start = tile * (R * RUNS)
        at = start + offset
        first = start + run * R - lead
        mask = tl.full([RUNS, R], 1, tl.int1)
        if not WHOLE:
            mask = mask & (first < T)[:, None]
        valid = mask
        if RAGGED:
            valid = (at >= lead) & (at < T + lead)
        if VARIES:
            gates = fetch_gates(log_a, phase, at, mask, valid, A_TIME, P_TIME, ALONG, FLUSH)
        inputs = load(b + begin + at, mask)

        ar = tl.full([RUNS], 1.0, tl.float32)
        ai = tl.zeros([RUNS], tl.float32)
        br = tl.zeros([RUNS], tl.float32)
        bi = tl.zeros([RUNS], tl.float32)
        steps = ()
        for i in tl.static_range(R):
            exists = is_step(first, i, T, RAGGED)
            if VARIES:
                gate, x = step_of(gates, inputs, r, i, exists, COMPLEX, RAGGED)
            else:
                _, x = step_of(inputs, inputs, r, i, exists, COMPLEX, RAGGED)
                gate = (constant[0], constant[1])
                if not WHOLE:
                    gate = (tl.where(exists, constant[0], 1.0), tl.where(exists, constant[1], 0.0))
            if i == 0:
                ar, ai, br, bi = gate[0], gate[1], x[0], x[1]
            else:
                br, bi = times_plus(gate[0], gate[1], br, bi, x[0], x[1], COMPLEX)
                ar, ai = times(ar, ai, gate[0], gate[1], COMPLEX)
            steps += ((gate, x),)
        sr, si, hr, hi = enter_runs(ar, ai, br, bi, hr, hi, run, COMPLEX, RUNS)
        out_r = tl.zeros([RUNS, R], tl.float32)
        out_i = tl.zeros([RUNS, R], tl.float32)
        for i in tl.static_range(R):
            gate, x = steps[i]
            sr, si = times_plus(gate[0], gate[1], sr, si, x[0], x[1], COMPLEX)
            out_r = put(out_r, sr, r, i)
            if COMPLEX:
                out_i = put(out_i, si, r, i)
        full = (start >= lead) & (start + R * RUNS <= T + lead)
        store_steps(h + begin + at, (out_r, out_i), mask, valid, full, RAGGED)

    store(final + at_row, hr, hi, run == 0)
