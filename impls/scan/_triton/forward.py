"""Forward: h_t = a_t h_{t−1} + b_t over all of time, or over one tile of a chain."""

from __future__ import annotations

import triton
import triton.language as tl

from ..._triton.arithmetic import load, polar, store, times, times_plus
from .arithmetic import enter_runs
from .chain import enter_runs_linked, take_ticket


@triton.jit(do_not_specialize=["T", "tiles"])
def scan_forward(
    log_a, phase, b, state, h, final, words,
    T, C, tiles, a_batch, a_time, p_batch, p_time,
    A_CHANNEL: tl.constexpr, P_CHANNEL: tl.constexpr, VARIES: tl.constexpr, COMPLEX: tl.constexpr,
    WHOLE: tl.constexpr, FLUSH: tl.constexpr,
    R: tl.constexpr, RUNS: tl.constexpr, BC: tl.constexpr, VECTOR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All tiles of BC channels one after another or, where there are words, one of them."""
    blocks = tl.cdiv(C, BC)
    strand = tl.program_id(0)
    strands = tl.num_programs(0)
    first_tile = 0
    if words is not None:
        strands = strands // tiles
        first_tile, strand = take_ticket(words, strands)
    batch = (strand // blocks).to(tl.int64)
    channel = tl.max_contiguous(strand % blocks * BC + tl.arange(0, BC), VECTOR)[None, :]
    run = tl.arange(0, RUNS)[:, None]
    in_channels = tl.broadcast_to(channel < C, (RUNS, BC))
    at_state = batch * C + tl.broadcast_to(channel, (RUNS, BC))

    hr = tl.zeros([RUNS, BC], tl.float32)
    hi = tl.zeros([RUNS, BC], tl.float32)
    if state is not None:
        hr, hi = load(state + at_state, in_channels)
    if words is None:
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

    for tile in tl.range(0, tiles if words is None else 1, num_stages=STAGES):
        start = (first_tile + tile) * (R * RUNS)
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
        if words is None:
            sr, si, hr, hi = enter_runs(run_ar, run_ai, run_br, run_bi, hr, hi, run, COMPLEX, RUNS)
        else:
            sr, si, hr, hi = enter_runs_linked(
                run_ar, run_ai, run_br, run_bi, hr, hi, run, words, first_tile, tiles, batch,
                strands // blocks, at_state, C, in_channels, COMPLEX, RUNS,
            )  # fmt: skip
        for r in tl.static_range(R):
            inside = (start + run * R + (0 if WHOLE else r) < T) & in_channels
            sr, si = times_plus(gates[r][0], gates[r][1], sr, si, inputs[r][0], inputs[r][1], COMPLEX)
            store(h + (batch * T + first + r) * C + offset, sr, si, inside)

    held = in_channels & (run == 0)
    if words is not None:
        held = held & (first_tile == tiles - 1)
    store(final + at_state, hr, hi, held)
