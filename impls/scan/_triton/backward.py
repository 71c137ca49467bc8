"""Backward: μ_t = conj(a_t)·(g_t + μ_{t+1}) in descending time, and from it every operand's gradient.

db_t = g_t + μ_{t+1}; with w_t = μ_t·conj(h_{t−1}), d log_a_t = Re w_t and d phase_t = Im w_t; dh_0 = μ_1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import enter_runs, fold_chunks, load, polar, store, store_map, times


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


@triton.jit(do_not_specialize=["T", "tiles", "chunks", "launched"])
def scan_backward(
    log_a, phase, g, h, state, final_grad, maps, db, da, dphase, dstate,
    T, C, tiles, chunks, launched, a_batch, a_time, p_batch, p_time,
    A_CHANNEL: tl.constexpr, P_CHANNEL: tl.constexpr, VARIES: tl.constexpr, COMPLEX: tl.constexpr,
    A_GRAD: tl.constexpr, P_GRAD: tl.constexpr,
    WRITE: tl.constexpr, WHOLE: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One chunk of BC channels; chunk 0 ends at T, and run 0 of a tile holds its last steps."""
    blocks = tl.cdiv(C, BC)
    block = tl.program_id(0) % blocks
    chunk = (tl.program_id(0) // blocks) % launched
    batch = (tl.program_id(0) // blocks // launched).to(tl.int64)
    batches = tl.num_programs(0) // blocks // launched
    channel = tl.max_contiguous(block * BC + tl.arange(0, BC), VECTOR)[None, :]
    run = tl.arange(0, RUNS)[:, None]
    in_channels = tl.broadcast_to(channel < C, (RUNS, BC))
    at_state = batch * C + tl.broadcast_to(channel, (RUNS, BC))
    at_map = batch * chunks * C + tl.broadcast_to(channel, (RUNS, BC))
    plane = batches.to(tl.int64) * chunks * C

    mr = tl.zeros([RUNS, BC], tl.float32)
    mi = tl.zeros([RUNS, BC], tl.float32)
    chunk_ar = tl.full([RUNS, BC], 1.0, tl.float32)
    chunk_ai = tl.zeros([RUNS, BC], tl.float32)
    a_total = tl.zeros([RUNS, BC], tl.float32)
    p_total = tl.zeros([RUNS, BC], tl.float32)
    if WRITE:
        mr, mi = load(final_grad + at_state, in_channels)
        mr, mi = fold_chunks(maps + at_map, plane, C, chunk, mr, mi, in_channels, COMPLEX)
        mr = tl.where(run == 0, mr, 0.0)
        mi = tl.where(run == 0, mi, 0.0)

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

    for tile in tl.range(0, tiles, num_stages=STAGES):
        start = T - 1 - (chunk * tiles + tile) * (R * RUNS)
        first = start.to(tl.int64)
        gates = ()
        inputs = ()
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
        sr, si, mr, mi = enter_runs(run_ar, run_ai, run_br, run_bi, mr, mi, run, COMPLEX, RUNS)
        if WRITE:
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
                    hr, hi = load(h + at - C, past)
                    row = (batch * T + first - r - run * R) * blocks + block
                    w = sr * hr + si * hi if COMPLEX else sr * hr
                    a_total = emit(da, at, row, w, a_total, past, A_GRAD)
                    p_total = emit(dphase, at, row, si * hr - sr * hi, p_total, past, P_GRAD)
        else:
            chunk_ar, chunk_ai = times(chunk_ar, chunk_ai, run_ar, run_ai, COMPLEX)

    held = in_channels & (run == 0)
    if WRITE:
        last = held & (chunk == chunks - 1)
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
        emit_total(da, at_map + chunk * C, a_total, held, A_GRAD)
        emit_total(dphase, at_map + chunk * C, p_total, held, P_GRAD)
    else:
        store_map(maps + at_map + chunk * C, plane, chunk_ar, chunk_ai, mr, mi, held, COMPLEX)
