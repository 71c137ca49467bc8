"""Backward with time innermost: μ_t = conj(a_t)·(g_t + μ_{t+1}), the tiles of a row in descending time.

db_t = g_t + μ_{t+1}; with w_t = μ_t·conj(h_{t−1}), d log_a_t = Re w_t and d phase_t = Im w_t; dh_0 = μ_1.
Run 0 holds a tile's last steps, so that the scan across threads runs forwards; within a run steps ascend in
memory, and a thread takes them in descending order. Its h_{t−1} are its own, but for a run's first step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import load, polar, store, times
from .time_last_forward import (
    enter_runs,
    fetch_gates,
    is_step,
    origin,
    pick_both,
    put,
    step_of,
    store_steps,
)


@triton.jit
def emit_total(to, row, total, run, KIND: tl.constexpr):
    if KIND == "total":
        over_runs = tl.broadcast_to(tl.sum(total, axis=0, keep_dims=True), total.shape)
        tl.store(to + row + run, over_runs, mask=run == 0)


@triton.jit(do_not_specialize=["T", "C", "tiles"])
def scan_backward_time_last(
    log_a, phase, g, h, state, final_grad, db, da, dphase, dstate,
    T, C, tiles, a_batch, a_channel, p_batch, p_channel,
    A_TIME: tl.constexpr, P_TIME: tl.constexpr, ALONG: tl.constexpr, COMPLEX: tl.constexpr,
    A_GRAD: tl.constexpr, P_GRAD: tl.constexpr,
    WHOLE: tl.constexpr, RAGGED: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As in forward. A_GRAD, P_GRAD: a gate's gradient as elements (B, C, T), as totals (B, C), or none."""
    row = tl.program_id(0)
    batch = (row // C).to(tl.int64)
    channel = (row % C).to(tl.int64)
    row = row.to(tl.int64)
    begin = row * T // R * R
    lead = (row * T - begin).to(tl.int32) if RAGGED else 0
    run = tl.arange(0, RUNS)
    r = tl.arange(0, R)[None, :]
    place = (RUNS - 1 - run) * R
    offset = place[:, None] + r
    everywhere = tl.full([RUNS], 1, tl.int1)
    at_row = tl.zeros([RUNS], tl.int64) + row

    mr, mi = load(final_grad + at_row, everywhere)
    zero_r = tl.zeros([RUNS], tl.float32)
    zero_i = tl.zeros([RUNS], tl.float32)
    if state is not None:
        zero_r, zero_i = load(state + at_row, everywhere)
    a_total = tl.zeros([RUNS], tl.float32)
    p_total = tl.zeros([RUNS], tl.float32)
    WANTED: tl.constexpr = A_GRAD != "none" or P_GRAD != "none"

    VARIES: tl.constexpr = A_TIME + P_TIME > 0
    log_a += origin(batch, channel, a_batch, a_channel, lead * A_TIME, ALONG and A_TIME > 0, R)
    if phase is not None:
        phase += origin(batch, channel, p_batch, p_channel, lead * P_TIME, ALONG and P_TIME > 0, R)
    if not VARIES:
        constant = polar(log_a + run * 0, phase + run * 0 if phase is not None else None, everywhere, FLUSH)

    for tile in tl.range(0, tiles, num_stages=STAGES):
        start = (tiles - 1 - tile) * (R * RUNS)
        at = start + offset
        first = start + place - lead
        mask = tl.full([RUNS, R], 1, tl.int1)
        if not WHOLE:
            mask = mask & (first < T)[:, None]
        valid = mask
        if RAGGED:
            valid = (at >= lead) & (at < T + lead)
        if VARIES:
            gates = fetch_gates(log_a, phase, at, mask, valid, A_TIME, P_TIME, ALONG, FLUSH)
        inputs = load(g + begin + at, mask)
        if WANTED:
            states = load(h + begin + at, mask)
            before = first > 0
            if not WHOLE:
                before = before & (first <= T)
            past_r, past_i = load(h + begin + (start + place - 1), before)

        ar = tl.full([RUNS], 1.0, tl.float32)
        ai = tl.zeros([RUNS], tl.float32)
        br = tl.zeros([RUNS], tl.float32)
        bi = tl.zeros([RUNS], tl.float32)
        steps = ()
        for i in tl.static_range(R - 1, -1, -1):
            exists = is_step(first, i, T, RAGGED)
            if VARIES:
                gate, x = step_of(gates, inputs, r, i, exists, COMPLEX, RAGGED)
            else:
                _, x = step_of(inputs, inputs, r, i, exists, COMPLEX, RAGGED)
                gate = (constant[0], constant[1])
                if not WHOLE:
                    gate = (tl.where(exists, constant[0], 1.0), tl.where(exists, constant[1], 0.0))
            gate = (gate[0], -gate[1])
            if i == R - 1:
                ar, ai = gate[0], gate[1]
                br, bi = times(ar, ai, x[0], x[1], COMPLEX)
            else:
                br, bi = times(gate[0], gate[1], br + x[0], bi + x[1], COMPLEX)
                ar, ai = times(ar, ai, gate[0], gate[1], COMPLEX)
            steps += ((gate, x),)
        sr, si, mr, mi = enter_runs(ar, ai, br, bi, mr, mi, run, COMPLEX, RUNS)

        db_r = tl.zeros([RUNS, R], tl.float32)
        db_i = tl.zeros([RUNS, R], tl.float32)
        w_r = tl.zeros([RUNS, R], tl.float32)
        w_i = tl.zeros([RUNS, R], tl.float32)
        for i in tl.static_range(R - 1, -1, -1):
            gate, x = steps[R - 1 - i]
            sr += x[0]
            si += x[1]
            db_r = put(db_r, sr, r, i)
            if COMPLEX:
                db_i = put(db_i, si, r, i)
            sr, si = times(gate[0], gate[1], sr, si, COMPLEX)
            if WANTED:
                if i > 0:
                    hr, hi = pick_both(states, r, i - 1, COMPLEX)
                else:
                    hr, hi = past_r, past_i
                if RAGGED or i == 0:
                    hr = tl.where(first + i == 0, zero_r, hr)
                    hi = tl.where(first + i == 0, zero_i, hi)
                w = sr * hr + si * hi if COMPLEX else sr * hr
                v = si * hr - sr * hi
                exists = is_step(first, i, T, RAGGED)
                if A_GRAD == "total":
                    a_total += w if WHOLE else tl.where(exists, w, 0.0)
                if P_GRAD == "total":
                    p_total += v if WHOLE else tl.where(exists, v, 0.0)
                w_r = put(w_r, w, r, i)
                w_i = put(w_i, v, r, i)
        full = (start >= lead) & (start + R * RUNS <= T + lead)
        if db is not None:
            store_steps(db + begin + at, (db_r, db_i), mask, valid, full, RAGGED)
        if A_GRAD == "elements":
            store_steps(da + begin + at, (w_r, w_i), mask, valid, full, RAGGED)
        if P_GRAD == "elements":
            store_steps(dphase + begin + at, (w_i, w_r), mask, valid, full, RAGGED)

    if dstate is not None:
        store(dstate + at_row, mr, mi, run == 0)
    emit_total(da, row, a_total, run, A_GRAD)
    emit_total(dphase, row, p_total, run, P_GRAD)
