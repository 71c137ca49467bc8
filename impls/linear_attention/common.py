"""Code shared by the linear_attention backends: operands, reads, attention in a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape

from .._states import as_state
from ..scan.common import gate, named_after, over_time, transfer
from . import gate_factors
from ._signature import Arguments, check_read, whole_signature

TERMS = 512  # of a product over time that are added up at once


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands in working precision: float32 or wider, complex with a phase or complex q, k or v.

    q, k: (B, T, H, K). v: (B, T, H, V). log_a, phase: (B|1, T|1, H, K|1), the phase in float64.
    log_b: (B, T, H, V). state: S_0 (B, H, K, V). dtype: the dtype of v as given.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_a: Tensor | None
    phase: Tensor | None
    log_b: Tensor | None
    state: Tensor
    dtype: torch.dtype

    @property
    def T(self) -> int:
        return self.q.shape[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Operands:
        """Apply a function to every operand that has a time axis, so to all but the state."""

        def changed(x: Tensor | None) -> Tensor | None:
            return None if x is None else change(x)

        return replace(
            self, q=change(self.q), k=change(self.k), v=change(self.v),
            log_a=changed(self.log_a), phase=changed(self.phase), log_b=changed(self.log_b),
        )  # fmt: skip

    def by_head(self) -> Operands:
        """Move time behind the heads, (B|1, H, T, ·), and give gates all T steps."""
        return self.map(lambda x: over_time(x, self.T).transpose(1, 2))


# reads after the write: -> o (B, T, H, V) and S_T in working precision
PostRead = Callable[[Operands], tuple[Tensor, Tensor]]


def as_backend(post_read: PostRead) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give a function that reads after the write the recurrence's signature and results."""

    def backend(given: Arguments) -> tuple[Tensor, Tensor]:
        check_read(given.read, given.bonus)
        x = working(given)
        if given.read == "post":
            output, final = post_read(x)
        else:
            output, final = _read_before_write(post_read, x, given.bonus)
        return output if given.complex_operands else output.real.to(given.v.dtype), final

    return whole_signature(named_after(post_read, backend))


def working(given: Arguments) -> Operands:
    """Bring the operands of the recurrence to working precision."""
    q, v, log_a, log_b, phase, state = (
        given.q, given.v, given.log_a, given.log_b, given.phase, given.initial_state
    )  # fmt: skip
    B, _, H, K = q.shape
    wide = torch.float32 if phase is None else torch.complex64
    for operand in (q, given.k, v, log_a, log_b, phase):
        if operand is not None:
            wide = torch.promote_types(wide, operand.dtype)
    real = wide.to_real()
    if phase is not None and log_a is None:
        log_a = phase.new_zeros(H)
    if state is None:
        state = q.new_zeros(B, H, K, v.shape[-1])
    return Operands(
        q=q.to(wide),
        k=given.k.to(wide),
        v=v.to(wide),
        log_a=None if log_a is None else gate_factors(log_a.to(real), H, K),
        phase=None if phase is None else gate_factors(phase.to(torch.float64), H, K),
        log_b=None if log_b is None else log_b.to(real),
        state=as_state(state, wide),
        dtype=v.dtype,
    )


def _read_before_write(post_read: PostRead, x: Operands, bonus: Tensor | None) -> tuple[Tensor, Tensor]:
    """Read before the write: after it, with the queries one step early. The bonus adds to that."""
    early = torch.cat([x.q[:, 1:], torch.zeros_like(x.q[:, :1])], dim=1)
    output, final = post_read(replace(x, q=early))
    output = torch.cat([read_out(x.q[:, :1], x.state.unsqueeze(1)), output[:, :-1]], dim=1)
    if bonus is not None:
        output = output + (x.q * bonus.to(x.q.dtype) * x.k).sum(-1, keepdim=True) * x.v
    return output, final


def read_out(q: Tensor, states: Tensor) -> Tensor:
    """Read o_t = S_tᵀ q_t at all steps: (B, T, H, K) and (B, T, H, K, V) to (B, T, H, V)."""
    return (q.unsqueeze(-2) @ states).squeeze(-2)


def scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply elementwise by a factor; None stands for 1."""
    return x if factor is None else x * factor


def from_start(log_a: Tensor | None, phase: Tensor | None = None) -> Tensor | None:
    """Multiply gates (..., T, F) from the tile's start up to each step, including that step."""
    if log_a is None:
        return None
    return gate(log_a.cumsum(-2), None if phase is None else phase.cumsum(-2))


def to_end(log_a: Tensor | None, phase: Tensor | None = None) -> Tensor | None:
    """Multiply gates (..., T, F) from the step after each one to the tile's end."""
    if log_a is None:
        return None
    return gate(sums_after(log_a), None if phase is None else sums_after(phase))


def sums_after(x: Tensor) -> Tensor:
    """Compute Σ_{j>t} x_j of (..., T, F), never as a difference of two sums, so that -inf is legal."""
    later = torch.cat([x[..., 1:, :], torch.zeros_like(x[..., :1, :])], dim=-2)
    return later.flip(-2).cumsum(-2).flip(-2)


def in_tiles(x: Tensor, C: int) -> Tensor:
    """Cut (B|1, T, H, F) into (B|1, H, N, C, F); zeros fill the last chunk, and change no state."""
    padded = functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % C))
    cut: Tensor = padded.unflatten(1, (-1, C))
    return cut.permute(0, 3, 1, 2, 4)


def over_steps(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (..., m, T) by (..., T, n) in pieces of `TERMS` steps, and add the pieces up.

    A GPU's float32 product adds up one term after another. Where values repeat, all of its roundings have one
    direction and grow with T: 6·10⁻⁶ of attention over 4,099 characters on an H200, and 8·10⁻⁷ in pieces.
    """
    pieces = zip(left.split(TERMS, dim=-1), right.split(TERMS, dim=-2), strict=True)
    total: Tensor = reduce(torch.add, (a @ b for a, b in pieces))
    return total


def further_pieces(shape: Shape) -> int:
    """Count the pieces of a product over time beyond the first; each takes a product and a sum."""
    return (shape["T"] - 1) // TERMS


def tile_scores(q: Tensor, k: Tensor, log_a: Tensor | None, phase: Tensor | None) -> Tensor:
    """Compute q_t · (α_{s+1..t} ⊙ k_s) within tiles (..., T, ·) as (..., t, s), 0 where s > t.

    All exponents are ≤ 0. A scalar gate takes T² numbers per tile and head, a key gate T²·K.
    """
    if log_a is None:
        return (q @ k.mT).tril()
    decay = transfer(log_a, phase)  # (..., t, s, K|1)
    if decay.shape[-1] == 1:
        return (q @ k.mT) * decay.squeeze(-1)
    return ((decay * k.unsqueeze(-3)) @ q.unsqueeze(-1)).squeeze(-1)


def tile_attention(x: Operands) -> Tensor:
    """Compute o_t = Σ_{s≤t} (q_t · (α_{s+1..t} ⊙ k_s)) β_{s+1..t} ⊙ v_s within tiles (..., T, ·).

    The states before the tiles do not count. A value gate takes T²·V numbers in addition to the scores.
    """
    scores = tile_scores(x.q, x.k, x.log_a, x.phase)
    if x.log_b is None:
        return over_steps(scores, x.v)
    values = transfer(x.log_b, None) * x.v.unsqueeze(-3)  # (..., t, s, V)
    return over_steps(scores.unsqueeze(-2), values).squeeze(-2)


def tile_edges(x: Operands) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Relate tiles (..., T, ·) to the states before and after them.

    Returns:
        the key gates (..., T, K|1) and the value gates (..., T, V) from the tile's start up to each step, the
        decay of a state over the whole tile (..., K|1, V|1) (each None where nothing decays), and the state
        (..., K, V) after a tile that starts from zero.
    """
    alpha, beta = from_start(x.log_a, x.phase), from_start(x.log_b)
    decay = None if alpha is None else alpha[..., -1, :].unsqueeze(-1)
    if beta is not None:
        decay = scaled(beta[..., -1, :].unsqueeze(-2), decay)
    write = over_steps(scaled(x.k, to_end(x.log_a, x.phase)).mT, scaled(x.v, to_end(x.log_b)))
    return alpha, beta, decay, write
