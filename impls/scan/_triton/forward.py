"""Forward: h_t = a_t h_{t−1} + b_t over one chunk of time."""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import enter_runs, fold_chunks, load, polar, store, store_map, times, times_plus


@triton.jit(do_not_specialize=["T", "tiles", "chunks", "launched"])
def scan_forward(
    log_a, phase, b, state, h, final, maps,
    T, C, tiles, chunks, launched, a_batch, a_time, p_batch, p_time,
    A_CHANNEL: tl.constexpr, P_CHANNEL: tl.constexpr, VARIES: tl.constexpr, COMPLEX: tl.constexpr,
    WRITE: tl.constexpr, WHOLE: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One chunk (`tiles` tiles of RUNS·R steps) of BC channels: its states if WRITE, else only its map."""
    blocks = tl.cdiv(C, BC)
    chunk = (tl.program_id(0) // blocks) % launched
    batch = (tl.program_id(0) // blocks // launched).to(tl.int64)
    batches = tl.num_programs(0) // blocks // launched
    channel = tl.max_contiguous(tl.program_id(0) % blocks * BC + tl.arange(0, BC), VECTOR)[None, :]
    run = tl.arange(0, RUNS)[:, None]
    in_channels = tl.broadcast_to(channel < C, (RUNS, BC))
    at_state = batch * C + tl.broadcast_to(channel, (RUNS, BC))
    maps += batch * chunks * C + tl.broadcast_to(channel, (RUNS, BC))
    plane = batches.to(tl.int64) * chunks * C

    hr = tl.zeros([RUNS, BC], tl.float32)
    hi = tl.zeros([RUNS, BC], tl.float32)
    chunk_ar = tl.full([RUNS, BC], 1.0, tl.float32)
    chunk_ai = tl.zeros([RUNS, BC], tl.float32)
    if WRITE:
        if state is not None:
            hr, hi = load(state + at_state, in_channels)
        hr, hi = fold_chunks(maps, plane, C, chunk, hr, hi, in_channels, COMPLEX)
        hr = tl.where(run == 0, hr, 0.0)
        hi = tl.where(run == 0, hi, 0.0)

    log_a += batch * a_batch
    a_offset = run * R * a_time + channel * A_CHANNEL
    if phase is not None:
        phase += batch * p_batch
        p_offset = run * R * p_time + channel * P_CHANNEL
    if not VARIES:
        if phase is not None:
            constant = polar(log_a + a_offset, phase + p_offset, in_channels, FLUSH)
        else:
            constant = polar(log_a + a_offset, None, in_channels, FLUSH)
    offset = run * R * C + channel

    for tile in tl.range(0, tiles, num_stages=STAGES):
        start = (chunk * tiles + tile) * (R * RUNS)
        first = start.to(tl.int64)
        gates = ()
        inputs = ()
        run_ar = tl.full([RUNS, BC], 1.0, tl.float32)
        run_ai = tl.zeros([RUNS, BC], tl.float32)
        run_br = tl.zeros([RUNS, BC], tl.float32)
        run_bi = tl.zeros([RUNS, BC], tl.float32)
        for r in tl.static_range(R):
            # Where R divides T, a run is inside as a whole.
            inside = (start + run * R + (0 if WHOLE else r) < T) & in_channels
            if not VARIES:
                gate = (tl.where(inside, constant[0], 1.0), tl.where(inside, constant[1], 0.0))
            elif phase is not None:
                at = phase + (first + r) * p_time + p_offset
                gate = polar(log_a + (first + r) * a_time + a_offset, at, inside, FLUSH)
            else:
                gate = polar(log_a + (first + r) * a_time + a_offset, None, inside, FLUSH)
            x = load(b + (batch * T + first + r) * C + offset, inside)
            run_br, run_bi = times_plus(gate[0], gate[1], run_br, run_bi, x[0], x[1], COMPLEX)
            run_ar, run_ai = times(run_ar, run_ai, gate[0], gate[1], COMPLEX)
            gates += (gate,)
            inputs += (x,)
        sr, si, hr, hi = enter_runs(run_ar, run_ai, run_br, run_bi, hr, hi, run, COMPLEX, RUNS)
        if WRITE:
            for r in tl.static_range(R):
                inside = (start + run * R + (0 if WHOLE else r) < T) & in_channels
                sr, si = times_plus(gates[r][0], gates[r][1], sr, si, inputs[r][0], inputs[r][1], COMPLEX)
                store(h + (batch * T + first + r) * C + offset, sr, si, inside)
        else:
            chunk_ar, chunk_ai = times(chunk_ar, chunk_ai, run_ar, run_ai, COMPLEX)

    held = in_channels & (run == 0)
    if WRITE:
        store(final + at_state, hr, hi, held & (chunk == chunks - 1))
    else:
        store_map(maps + chunk * C, plane, chunk_ar, chunk_ai, hr, hi, held, COMPLEX)
