"""Kernels of key gates inside a chunk: blocks of SUB steps, pair by pair on the diagonal.

Between two blocks the decay factors into three sums that all start at the later block's first step. On the
diagonal it is a running product in registers: one exp per gate, and no exponent is ever a difference.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import KEY, SUB, decay, gate_base, gate_stride, head_offset, load_rows, locate, total_decay
from .chunks import COUNTS


@triton.jit
def load_row(x, t, T, stride, cols, K: tl.constexpr):
    """Row t of x (·, K) at the given columns as float32, zero outside."""
    return tl.load(x + t * stride + cols, mask=(cols < K) & (t < T), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=COUNTS)
def la_scores_key(
    q, k, log_a, wide, scores, T, H, NT,
    K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, CONST: tl.constexpr, PRECISION: tl.constexpr,
    WALK: tl.constexpr,
):  # fmt: skip
    """scores[i, j] = Σ_c q_ic k_jc · decay_c from j to i for j ≤ i; a program has SUB rows i and all of K.

    WALK: of wide chunks only.
    """
    block, chunk, bh = locate(H, NT, C // SUB)
    if WALK:  # noqa: SIM102, as only this test is of constants
        if tl.load(wide + bh * NT + chunk) == 0:
            return
    row = head_offset(bh, T, H) * K
    base, stride = gate_base(log_a, bh, T, H, K, KEY, CONST), gate_stride(H, K, KEY, CONST)
    start = chunk * C + block * SUB
    steps, keys = tl.arange(0, SUB), tl.arange(0, BK)
    out = scores + (bh * NT + chunk) * C * C + block * SUB * C
    q_tile = load_rows(q + row, start + steps, T, H * K, keys, K).to(tl.float32)

    from_start = tl.exp(decay(base, start, T, stride, keys, K, SUB, KEY, False))
    late = (q_tile * from_start).to(q.dtype.element_ty)
    between = tl.zeros((BK,), dtype=tl.float32)
    for back in range(1, C // SUB):
        if back <= block:
            other = start - back * SUB
            to_end = decay(base, other, T, stride, keys, K, SUB, KEY, True)
            early = load_rows(k + row, other + steps, T, H * K, keys, K).to(tl.float32)
            early = (early * tl.exp(to_end + between[None, :])).to(k.dtype.element_ty)
            part = tl.dot(late, tl.trans(early), input_precision=PRECISION)
            at = steps[:, None] * C + (block - back) * SUB + steps[None, :]
            tl.store(out + at, part.to(scores.dtype.element_ty))
            between += total_decay(base, other, T, stride, keys, K, SUB, KEY)

    decayed = q_tile  # q_i ⊙ decay from j to i, for rows i ≥ j
    for back in range(SUB):
        j = SUB - 1 - back
        k_row = load_row(k + row, start + j, T, H * K, keys, K)
        column = tl.sum(decayed * k_row[None, :], axis=1)
        at = steps * C + block * SUB + j
        tl.store(out + at, column.to(scores.dtype.element_ty), mask=steps >= j)
        gate = tl.exp(load_row(base, start + j, T, stride, keys, K))
        decayed = tl.where((steps >= j)[:, None], decayed * gate[None, :], decayed)


@triton.jit(do_not_specialize=COUNTS)
def la_grad_key(
    q, k, v, do, log_a, wide, dscores, boundary, dq_states, dk_states, dq, dk, dlog_a, T, H, NT,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    CONST: tl.constexpr, PRECISION: tl.constexpr, WALK: tl.constexpr,
):  # fmt: skip
    """Add the parts of dq and dk inside the chunk to those through states, and take the gate's gradient.

    d log_a_t = Σ_{s ≥ t in the chunk} (q_s ⊙ dq_s - k_s ⊙ dk_s) + rowsum(adjoint ⊙ state) at the chunk's end:
    the sum restarts in each chunk, so its rounding does not grow with T.

    dq_states, dk_states: the parts through states. WALK: the states and adjoints themselves, (B·H, chunks, K,
    V), and of wide chunks only.
    """
    tile, chunk, bh = locate(H, NT, tl.cdiv(K, BK))
    if WALK:  # noqa: SIM102, as only this test is of constants
        if tl.load(wide + bh * NT + chunk) == 0:
            return
    row = head_offset(bh, T, H) * K
    base, stride = gate_base(log_a, bh, T, H, K, KEY, CONST), gate_stride(H, K, KEY, CONST)
    keys = tile * BK + tl.arange(0, BK)
    steps = tl.arange(0, SUB)
    weights = dscores + (bh * NT + chunk) * C * C
    carry = tl.load(boundary + (bh * NT + chunk) * K + keys, mask=keys < K, other=0.0)
    beyond = tl.zeros((BK,), dtype=tl.float32)

    for after in range(C // SUB):
        block = C // SUB - 1 - after
        start = chunk * C + block * SUB
        t = start + steps
        mask = (t < T)[:, None] & (keys < K)[None, :]
        rows = row + t[:, None] * H * K + keys[None, :]

        earlier = tl.zeros((SUB, BK), dtype=tl.float32)
        between = tl.zeros((BK,), dtype=tl.float32)
        for back in range(1, C // SUB):
            if back <= block:
                other = start - back * SUB
                to_end = decay(base, other, T, stride, keys, K, SUB, KEY, True)
                k_tile = load_rows(k + row, other + steps, T, H * K, keys, K).to(tl.float32)
                k_tile = (k_tile * tl.exp(to_end + between[None, :])).to(k.dtype.element_ty)
                at = (block * SUB + steps[:, None]) * C + (block - back) * SUB + steps[None, :]
                earlier = tl.dot(tl.load(weights + at), k_tile, earlier, input_precision=PRECISION)
                between += total_decay(base, other, T, stride, keys, K, SUB, KEY)
        later = tl.zeros((SUB, BK), dtype=tl.float32)
        between = tl.zeros((BK,), dtype=tl.float32)
        for ahead in range(1, C // SUB):
            if ahead <= after:
                other = start + ahead * SUB
                from_start = decay(base, other, T, stride, keys, K, SUB, KEY, False)
                q_tile = load_rows(q + row, other + steps, T, H * K, keys, K).to(tl.float32)
                q_tile = (q_tile * tl.exp(from_start + between[None, :])).to(q.dtype.element_ty)
                at = ((block + ahead) * SUB + steps[None, :]) * C + block * SUB + steps[:, None]
                later = tl.dot(tl.load(weights + at), q_tile, later, input_precision=PRECISION)
                between += total_decay(base, other, T, stride, keys, K, SUB, KEY)

        from_start = decay(base, start, T, stride, keys, K, SUB, KEY, False)
        to_end = decay(base, start, T, stride, keys, K, SUB, KEY, True)
        if WALK:
            before = tl.zeros((BK,), dtype=tl.float32)
            for back in range(1, C // SUB):
                if back <= block:
                    before += total_decay(base, start - back * SUB, T, stride, keys, K, SUB, KEY)
            dq_tile = tl.zeros((SUB, BK), dtype=tl.float32)
            dk_tile = tl.zeros((SUB, BK), dtype=tl.float32)
            at = (bh * NT + chunk) * K * V
            values_row = head_offset(bh, T, H) * V
            for first in range(0, V, BV):
                values = first + tl.arange(0, BV)
                do_tile = load_rows(do + values_row, t, T, H * V, values, V)
                state = load_rows(dq_states + at, keys, K, V, values, V)
                dq_tile = tl.dot(do_tile, tl.trans(state), dq_tile, input_precision=PRECISION)
                v_tile = load_rows(v + values_row, t, T, H * V, values, V)
                adjoint = load_rows(dk_states + at, keys, K, V, values, V)
                dk_tile = tl.dot(v_tile, tl.trans(adjoint), dk_tile, input_precision=PRECISION)
            dq_tile = dq_tile * tl.exp(from_start + before[None, :])
            dk_tile = dk_tile * tl.exp(to_end + beyond[None, :])
            beyond += total_decay(base, start, T, stride, keys, K, SUB, KEY)
        else:
            dq_tile = tl.load(dq_states + rows, mask=mask, other=0.0)
            dk_tile = tl.load(dk_states + rows, mask=mask, other=0.0)
        dq_tile += earlier * tl.exp(from_start)
        dk_tile += later * tl.exp(to_end)

        diagonal = weights + block * SUB * (C + 1)
        factor = tl.full((SUB, BK), 1.0, dtype=tl.float32)  # decay from j to row i
        for back in range(SUB):
            j = SUB - 1 - back
            d = tl.load(diagonal + steps * C + j, mask=steps >= j, other=0.0).to(tl.float32)
            k_row = load_row(k + row, start + j, T, H * K, keys, K)
            dq_tile += d[:, None] * k_row[None, :] * factor
            gate = tl.exp(load_row(base, start + j, T, stride, keys, K))
            factor = tl.where((steps >= j)[:, None], factor * gate[None, :], factor)
        factor = tl.full((SUB, BK), 1.0, dtype=tl.float32)  # decay from row j to i
        for i in range(SUB):
            gate = tl.exp(load_row(base, start + i, T, stride, keys, K))
            factor = tl.where((steps < i)[:, None], factor * gate[None, :], factor)
            d = tl.load(diagonal + i * C + steps, mask=steps <= i, other=0.0).to(tl.float32)
            q_row = load_row(q + row, start + i, T, H * K, keys, K)
            dk_tile += d[:, None] * q_row[None, :] * factor

        q_tile = load_rows(q + row, t, T, H * K, keys, K).to(tl.float32)
        k_tile = load_rows(k + row, t, T, H * K, keys, K).to(tl.float32)
        local = q_tile * dq_tile - k_tile * dk_tile
        dgate = tl.cumsum(local, axis=0, reverse=True) + carry[None, :]
        carry += tl.sum(local, axis=0)
        gates = load_rows(base, t, T, stride, keys, K)
        tl.store(dlog_a + rows, tl.where(gates == float("-inf"), 0.0, dgate), mask=mask)
        tl.store(dq + rows, dq_tile.to(dq.dtype.element_ty), mask=mask)
        tl.store(dk + rows, dk_tile.to(dk.dtype.element_ty), mask=mask)
