"""Backward: μ_t = conj(a_t)·(g_t + μ_{t+1}) in descending time, and from it every operand's gradient.

db_t = g_t + μ_{t+1}; with w_t = μ_t·conj(h_{t−1}), d log_a_t = Re w_t and d phase_t = Im w_t; dh_0 = μ_1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import load, polar, store, times
from .arithmetic import enter_runs
from .chain import enter_runs_linked, take_ticket


@triton.jit
def emit(to, at, row, w, total, mask, KIND: tl.constexpr):
    """Hand on one step's gate gradient: as it is, summed over the channels, or added to the total."""
    if KIND == "elements":
        tl.store(to + at, w.to(to.dtype.element_ty), mask=mask)
    elif KIND == "rows":
        over_channels = tl.sum(tl.where(mask, w, 0.0), axis=1, keep_dims=True)
        tl.store(to + tl.broadcast_to(row, w.shape), tl.broadcast_to(over_channels, w.shape), mask=mask)
    elif KIND == "total":
        total = total + tl.where(mask, w, 0.0)
    return total


@triton.jit
def emit_total(to, at, total, mask, KIND: tl.constexpr):
    if KIND == "total":
        over_runs = tl.sum(total, axis=0, keep_dims=True)
        tl.store(to + at, tl.broadcast_to(over_runs, total.shape), mask=mask)


@triton.jit(do_not_specialize=["T", "tiles"])
def scan_backward(
    log_a, phase, g, h, state, final_grad, words, db, da, dphase, dstate,
    T, C, tiles, a_batch, a_time, p_batch, p_time,
    A_CHANNEL: tl.constexpr, P_CHANNEL: tl.constexpr, VARIES: tl.constexpr, COMPLEX: tl.constexpr,
    A_GRAD: tl.constexpr, P_GRAD: tl.constexpr,
    WHOLE: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All tiles of BC channels or one, as in forward; tile 0 ends at T, and run 0 holds its last steps."""
    blocks = tl.cdiv(C, BC)
    strand = tl.program_id(0)
    strands = tl.num_programs(0)
    first_tile = 0
    if words is not None:
        strands = strands // tiles
        first_tile, strand = take_ticket(words, strands)
    block = strand % blocks
    batch = (strand // blocks).to(tl.int64)
    channel = tl.max_contiguous(block * BC + tl.arange(0, BC), VECTOR)[None, :]
    run = tl.arange(0, RUNS)[:, None]
    in_channels = tl.broadcast_to(channel < C, (RUNS, BC))
    at_state = batch * C + tl.broadcast_to(channel, (RUNS, BC))

    mr, mi = load(final_grad + at_state, in_channels)
    if words is None:
        mr = tl.where(run == 0, mr, 0.0)
        mi = tl.where(run == 0, mi, 0.0)
    a_total = tl.zeros([RUNS, BC], tl.float32)
    p_total = tl.zeros([RUNS, BC], tl.float32)

    log_a += batch * a_batch
    a_offset = channel * A_CHANNEL - run * R * a_time
    if phase is not None:
        phase += batch * p_batch
        p_offset = channel * P_CHANNEL - run * R * p_time
    if not VARIES:
        if phase is not None:
            constant = polar(log_a + a_offset, phase + p_offset, in_channels, FLUSH)
        else:
            constant = polar(log_a + a_offset, None, in_channels, FLUSH)
    offset = channel - run * R * C

    for tile in tl.range(0, tiles if words is None else 1, num_stages=STAGES):
        start = T - 1 - (first_tile + tile) * (R * RUNS)
        first = start.to(tl.int64)
        gates = ()
        inputs = ()
        pasts = ()
        run_ar = tl.full([RUNS, BC], 1.0, tl.float32)
        run_ai = tl.zeros([RUNS, BC], tl.float32)
        run_br = tl.zeros([RUNS, BC], tl.float32)
        run_bi = tl.zeros([RUNS, BC], tl.float32)
        for r in tl.static_range(R):
            inside = (run * R + (0 if WHOLE else r) <= start) & in_channels
            if not VARIES:
                gate = (tl.where(inside, constant[0], 1.0), tl.where(inside, constant[1], 0.0))
            elif phase is not None:
                at = phase + (first - r) * p_time + p_offset
                gate = polar(log_a + (first - r) * a_time + a_offset, at, inside, FLUSH)
            else:
                gate = polar(log_a + (first - r) * a_time + a_offset, None, inside, FLUSH)
            gate = (gate[0], -gate[1])
            x = load(g + (batch * T + first - r) * C + offset, inside)
            run_br, run_bi = times(gate[0], gate[1], run_br + x[0], run_bi + x[1], COMPLEX)
            run_ar, run_ai = times(run_ar, run_ai, gate[0], gate[1], COMPLEX)
            gates += (gate,)
            inputs += (x,)
            if words is not None and (A_GRAD != "none" or P_GRAD != "none"):
                # Before the wait for the tiles that this one follows.
                past = inside & (run * R + r < start)
                pasts += (load(h + (batch * T + first - r) * C + offset - C, past),)
        if words is None:
            sr, si, mr, mi = enter_runs(run_ar, run_ai, run_br, run_bi, mr, mi, run, COMPLEX, RUNS)
        else:
            sr, si, mr, mi = enter_runs_linked(
                run_ar, run_ai, run_br, run_bi, mr, mi, run, words, first_tile, tiles, batch,
                strands // blocks, at_state, C, in_channels, COMPLEX, RUNS,
            )  # fmt: skip
        for r in tl.static_range(R):
            inside = (run * R + (0 if WHOLE else r) <= start) & in_channels
            at = (batch * T + first - r) * C + offset
            sr += inputs[r][0]
            si += inputs[r][1]
            if db is not None:
                store(db + at, sr, si, inside)
            sr, si = times(gates[r][0], gates[r][1], sr, si, COMPLEX)
            if A_GRAD != "none" or P_GRAD != "none":
                past = inside & (run * R + r < start)  # t ≥ 1; the initial state's term comes last
                hr, hi = load(h + at - C, past) if words is None else pasts[r]
                row = (batch * T + first - r - run * R) * blocks + block
                w = sr * hr + si * hi if COMPLEX else sr * hr
                a_total = emit(da, at, row, w, a_total, past, A_GRAD)
                p_total = emit(dphase, at, row, si * hr - sr * hi, p_total, past, P_GRAD)

    held = in_channels & (run == 0)
    last = held
    if words is not None:
        last = held & (first_tile == tiles - 1)
    if dstate is not None:
        store(dstate + at_state, mr, mi, last)
    hr = tl.zeros([RUNS, BC], tl.float32)
    hi = tl.zeros([RUNS, BC], tl.float32)
    if state is not None:
        hr, hi = load(state + at_state, last)
    at = batch * T * C + tl.broadcast_to(channel, (RUNS, BC))
    row = batch * T * blocks + block
    w = mr * hr + mi * hi if COMPLEX else mr * hr
    a_total = emit(da, at, row, w, a_total, last, A_GRAD)
    p_total = emit(dphase, at, row, mi * hr - mr * hi, p_total, last, P_GRAD)
    # One partial sum per program: (B, C), or (B, tiles, C) of a chain.
    at_total = at_state if words is None else at_state + (batch * (tiles - 1) + first_tile) * C
    emit_total(da, at_total, a_total, held, A_GRAD)
    emit_total(dphase, at_total, p_total, held, P_GRAD)
