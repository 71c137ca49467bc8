"""What the linear_attention backends share: operands, reads, flattened elements, attention in a tile."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ssmperf import Shape, UsageError

from ..scan.common import gate, over_time, transfer
from . import gate_factors

# q, k, v, log_a (B|1,T|1,H,K|1), phase (alike), log_b (B,T,H,V), S_0 (B,H,K,V) -> o (B,T,H,V), S_T
PostRead = Callable[..., tuple[Tensor, Tensor]]
# log gate and phase (B|1,T|1,H,K|1,V|1), write (B,T,H,K,V), S_0 -> all states (B,T,H,K,V)
StateScan = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


def attend(
    post_read: PostRead,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_a: Tensor | None,
    log_b: Tensor | None,
    initial_state: Tensor | None,
    phase: Tensor | None,
    bonus: Tensor | None,
    read: str,
) -> tuple[Tensor, Tensor]:
    """Bring the operands of the recurrence to working precision and run `post_read` on them.

    A read before the write is a read after it with the queries one step early; the bonus adds to that.

    Raises:
        UsageError: an unknown `read`, or a bonus with read="post".
    """
    if read not in ("post", "pre"):
        raise UsageError(f"unknown read {read!r} (valid: post, pre)")
    if bonus is not None and read != "pre":
        raise UsageError("bonus needs read='pre'")
    B, _, H, K = q.shape
    given = [operand for operand in (q, k, v, log_a, log_b, phase) if operand is not None]
    real_output = not (q.is_complex() or k.is_complex() or v.is_complex())
    wide = torch.float32 if phase is None else torch.complex64
    for operand in given:
        wide = torch.promote_types(wide, operand.dtype)
    real = wide.to_real()
    dtype = v.dtype
    q, k, v = q.to(wide), k.to(wide), v.to(wide)
    if phase is not None and log_a is None:
        log_a = phase.new_zeros(H)
    log_a = None if log_a is None else gate_factors(log_a.to(real), H, K)
    phase = None if phase is None else gate_factors(phase.to(torch.float64), H, K)
    log_b = None if log_b is None else log_b.to(real)
    if initial_state is None:
        initial_state = q.new_zeros(B, H, K, v.shape[-1])
    state = initial_state.to(wide)

    if read == "post":
        output, final = post_read(q, k, v, log_a, phase, log_b, state)
    else:
        early = torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], dim=1)
        output, final = post_read(early, k, v, log_a, phase, log_b, state)
        output = torch.cat([read_out(q[:, :1], state.unsqueeze(1)), output[:, :-1]], dim=1)
        if bonus is not None:
            output = output + (q * bonus.to(wide) * k).sum(-1, keepdim=True) * v
    if real_output:
        output = output.real.to(dtype)
    return output, final


def flatten(
    k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, log_b: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Elements of the equivalent `scan` over matrix states: log gate, phase and write.

    Gates stay (B|1, T|1, H, K|1, V|1), with V only under a value gate; the write k vᵀ is (B, T, H, K, V).
    """
    write = k.unsqueeze(-1) * v.unsqueeze(-2)
    log_gate = None if log_a is None else log_a.unsqueeze(-1)
    if log_b is not None:
        log_gate = log_b.unsqueeze(-2) if log_gate is None else log_gate + log_b.unsqueeze(-2)
    if log_gate is None:
        log_gate = k.new_zeros(1, 1, 1, 1, 1, dtype=k.dtype.to_real())
    return log_gate, None if phase is None else phase.unsqueeze(-1), write


def by_scanning(scan: StateScan) -> PostRead:
    """Attention that forms all T matrix states by a scan over K·V channels a head, and reads each."""

    def post_read(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_a: Tensor | None,
        phase: Tensor | None,
        log_b: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        states = scan(*flatten(k, v, log_a, phase, log_b), state)
        return read_out(q, states), states[:, -1]

    return post_read


def of_gates(scan: Callable[[Tensor, Tensor, Tensor], Tensor]) -> StateScan:
    """A scan that takes gates, made to take their log and phase."""

    def state_scan(log_gate: Tensor, phase: Tensor | None, write: Tensor, state: Tensor) -> Tensor:
        return scan(over_time(gate(log_gate, phase), write.shape[1]).to(write.dtype), write, state)

    return state_scan


def read_out(q: Tensor, states: Tensor) -> Tensor:
    """o_t = S_tᵀ q_t for all steps: (B, T, H, K) and (B, T, H, K, V) to (B, T, H, V)."""
    return (q.unsqueeze(-2) @ states).squeeze(-2)


def by_head(x: Tensor | None, T: int) -> Tensor | None:
    """(B|1, T|1, H, F) as (B|1, H, T, F)."""
    return None if x is None else over_time(x, T).transpose(1, 2)


def scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """x ⊙ factor, where None stands for 1."""
    return x if factor is None else x * factor


def from_start(log_a: Tensor | None, phase: Tensor | None = None) -> Tensor | None:
    """Gates (..., T, F) multiplied from the tile's start up to each step, that step included."""
    if log_a is None:
        return None
    return gate(log_a.cumsum(-2), None if phase is None else phase.cumsum(-2))


def to_end(log_a: Tensor | None, phase: Tensor | None = None) -> Tensor | None:
    """Gates (..., T, F) multiplied from the step after each one to the tile's end."""
    if log_a is None:
        return None
    return gate(sums_after(log_a), None if phase is None else sums_after(phase))


def sums_after(x: Tensor) -> Tensor:
    """Σ_{j>t} x_j of (..., T, F); a sum of its own for each t, so that -inf is legal."""
    later = torch.cat([x[..., 1:, :], torch.zeros_like(x[..., :1, :])], dim=-2)
    return later.flip(-2).cumsum(-2).flip(-2)


def tile_scores(q: Tensor, k: Tensor, log_a: Tensor | None, phase: Tensor | None) -> Tensor:
    """q_t · (α_{s+1..t} ⊙ k_s) within tiles (..., T, ·) as (..., t, s), 0 where s > t; all exponents are ≤ 0.

    A gate per tile and head costs T² numbers, one per key T²·K.
    """
    if log_a is None:
        return (q @ k.mT).tril()
    decay = transfer(log_a, phase)  # (..., t, s, K|1)
    if decay.shape[-1] == 1:
        return (q @ k.mT) * decay.squeeze(-1)
    return ((decay * k.unsqueeze(-3)) @ q.unsqueeze(-1)).squeeze(-1)


def tile_attention(
    q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, log_b: Tensor | None
) -> Tensor:
    """o_t = Σ_{s≤t} (q_t · (α_{s+1..t} ⊙ k_s)) β_{s+1..t} ⊙ v_s within tiles (..., T, ·), from empty states.

    A gate per value costs T²·V numbers more than the scores.
    """
    scores = tile_scores(q, k, log_a, phase)
    if log_b is None:
        return scores @ v
    values = transfer(log_b, None) * v.unsqueeze(-3)  # (..., t, s, V)
    return (scores.unsqueeze(-2) @ values).squeeze(-2)


def tile_edges(
    k: Tensor, v: Tensor, log_a: Tensor | None, phase: Tensor | None, log_b: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """How tiles (..., T, ·) meet the states before and after them.

    Returns the key gates (..., T, K|1) and value gates (..., T, V) from the tile's start to each step, the
    decay of a state over the whole tile (..., K|1, V|1), None where nothing decays, and the state (..., K, V)
    that the tile leaves when it starts empty.
    """
    alpha, beta = from_start(log_a, phase), from_start(log_b)
    decay = None if alpha is None else alpha[..., -1, :].unsqueeze(-1)
    if beta is not None:
        decay = scaled(beta[..., -1, :].unsqueeze(-2), decay)
    write = scaled(k, to_end(log_a, phase)).mT @ scaled(v, to_end(log_b))
    return alpha, beta, decay, write


def matrix_bytes(shape: Shape, itemsize: int) -> float:
    """Bytes of one copy of all T matrix states in working precision."""
    return shape["B"] * shape["T"] * shape["H"] * shape["K"] * shape["V"] * max(4, itemsize)
