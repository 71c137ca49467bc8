"""Code shared by the backends: operands in working precision, scan elements, reads, the adjoint scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._autocast import without_autocast
from ..scan.common import from_the_end, named_after, three_axes

EMPTY = -1e38  # the exponent of an empty state; with -inf, two empty segments would combine to NaN

# (λ, m, u, z): decay by e^λ, then add e^m u to P and e^m z to Q
Element = tuple[Tensor, Tensor, Tensor, Tensor]
# (m, p, q): P = e^m p, Q = e^m q
State = tuple[Tensor, Tensor, Tensor]
# elements with time on axis 1 -> all states from an empty one
InclusiveScan = Callable[[Element], State]


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands in working precision: float32, or wider where an operand is wider.

    log_w: (B|1, T|1, C|1). k, v: (B, T, C). initial: (m, p, q), each (B, C); m carries no gradient.
    """

    log_w: Tensor
    k: Tensor
    v: Tensor
    initial: State

    @property
    def T(self) -> int:
        return self.k.shape[1]


def as_backend(all_states: Callable[[Operands], State]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give a function that computes the state after each step the recurrence's signature and results."""

    def backend(
        log_w: Tensor,
        k: Tensor,
        v: Tensor,
        initial_state: Tensor | None = None,
        *,
        bonus: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(torch.promote_types(log_w.dtype, k.dtype), v.dtype)
        wide = torch.promote_types(wide, torch.float32)
        if initial_state is None:
            nothing = k.new_zeros(k.shape[0], k.shape[2], dtype=wide)
            initial = (torch.full_like(nothing, EMPTY), nothing, nothing)
        else:
            p, q, m = initial_state.to(wide).unbind(1)
            initial = (m.detach(), p, q)
        x = Operands(three_axes(log_w.to(wide)), k.to(wide), v.to(wide), initial)
        m, p, q = states = all_states(x)
        y = p / q if bonus is None else _read_with_bonus(x, states, bonus.to(wide))
        return y.to(v.dtype), torch.stack([p[:, -1], q[:, -1], m[:, -1]], dim=1)

    return without_autocast(named_after(all_states, backend))


def _read_with_bonus(x: Operands, states: State, bonus: Tensor) -> Tensor:
    """Read the state before each step, and the step with e^{bonus + k}: y (B, T, C)."""
    m, p, q = (
        torch.cat([first.unsqueeze(1), rest[:, :-1]], dim=1)
        for first, rest in zip(x.initial, states, strict=True)
    )
    lead = (x.k - m) + bonus  # of the step over the state; the smaller of the two weights is e^{-|lead|}
    past = torch.exp(torch.where(lead > 0, -lead, 0))
    present = torch.exp(torch.where(lead > 0, 0, lead))
    return (past * p + present * x.v) / (past * q + present)


def combine(left: Element, right: Element) -> Element:
    """Compose two elements, `left` first. Associative, not commutative.

    See docs/recurrences.md#stabilised-ratio.
    """
    m, u, z = follow((left[1], left[2], left[3]), right)
    return left[0] + right[0], m, u, z


def follow(state: State, element: Element) -> State:
    """Apply an element to a state. The new exponent is the larger one, so no exponential exceeds 1.

    before − top is exact where the two are near, so adding decay last loses nothing to rounding.
    """
    (before, p, q), (decay, m, u, z) = state, element
    top = torch.maximum(before + decay, m)
    past, present = torch.exp((before - top) + decay), torch.exp(m - top)
    return top, past * p + present * u, past * q + present * z


def adjoint_scan(inclusive: InclusiveScan, x: Operands) -> State:
    """Run `inclusive`, a scan without autograd; its backward pass is the same scan from the end."""
    states: State = AdjointScan.apply(inclusive, x.log_w, x.k, x.v, *x.initial)  # type: ignore[no-untyped-call]
    return states


class AdjointScan(torch.autograd.Function):
    """(m, p, q) after each step; the backward pass is the same scan run from the end, and differentiable.

    The adjoint G of (P, Q) obeys G_t = e^{-m_t} g_t + e^{λ_{t+1}} G_{t+1}, g the gradients at (p, q):
    elements with exponents −m_t. Scanned as G = e^M (U, Z), every exponent below is ≤ 0 up to rounding:

        dv = e^{k+M} U;  dk = e^{k+M} (U v + Z);  dλ_t = e^{M_t+λ_t+m_{t-1}} (U_t p_{t-1} + Z_t q_{t-1});
        dp_0 = e^{M_1+λ_1+m_0} U_1;  dq_0 = e^{M_1+λ_1+m_0} Z_1;  m_0 gets no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, inclusive: InclusiveScan, log_w: Tensor, k: Tensor, v: Tensor, *initial: Tensor
    ) -> tuple[Tensor, ...]:
        decay = log_w.expand(-1, k.shape[1], -1)
        m_0, p_0, q_0 = initial
        first = follow((m_0, p_0, q_0), (decay[:, 0], k[:, 0], v[:, 0], torch.ones_like(k[:, 0])))
        rest = (k, v, torch.ones_like(k))
        m, u, z = (torch.cat([a.unsqueeze(1), b[:, 1:]], dim=1) for a, b in zip(first, rest, strict=True))
        states = inclusive((decay, m, u, z))
        ctx.inclusive = inclusive
        ctx.save_for_backward(log_w, k, v, *initial, *states)
        ctx.mark_non_differentiable(states[0])
        return states

    @staticmethod
    def backward(ctx: Any, _: Tensor, grad_p: Tensor, grad_q: Tensor) -> tuple[Tensor | None, ...]:
        log_w, k, v, *initial, m, p, q = ctx.saved_tensors
        decay = log_w.expand(-1, k.shape[1], -1)
        M, U, Z = _adjoint(ctx.inclusive, decay, m, grad_p, grad_q)
        at_key = torch.exp(M + k)
        m_0, p_0, q_0 = (
            torch.cat([first.unsqueeze(1), rest[:, :-1]], dim=1)
            for first, rest in zip(initial, (m, p, q), strict=True)
        )
        at_past = torch.exp((M + m_0) + decay)
        grad_decay = at_past * (U * p_0 + Z * q_0)
        return (
            None,
            grad_decay.sum_to_size(log_w.shape),
            at_key * (U * v + Z),
            at_key * U,
            None,
            (at_past * U)[:, 0],
            (at_past * Z)[:, 0],
        )


def _adjoint(inclusive: InclusiveScan, decay: Tensor, m: Tensor, grad_p: Tensor, grad_q: Tensor) -> State:
    """Scan gradients at states of exponents m from the end, differentiably: G_t = e^M (U, Z)."""
    back = (from_the_end(decay), -m.flip(1), grad_p.flip(1), grad_q.flip(1))
    M, U, Z = ElementScan.apply(inclusive, *back)  # type: ignore[no-untyped-call]
    return M.flip(1), U.flip(1), Z.flip(1)


class ElementScan(torch.autograd.Function):
    """(m, p, q) after each step of any elements, from an empty state; its backward pass is such a scan, too.

    As in `AdjointScan`, with gradients of u and z instead of those of k and v. Exponents get none.
    """

    @staticmethod
    def forward(
        ctx: Any, inclusive: InclusiveScan, decay: Tensor, exponent: Tensor, u: Tensor, z: Tensor
    ) -> tuple[Tensor, ...]:
        states = inclusive((decay, exponent, u, z))
        ctx.inclusive = inclusive
        ctx.save_for_backward(decay, exponent, *states)
        ctx.mark_non_differentiable(states[0])
        return states

    @staticmethod
    def backward(ctx: Any, _: Tensor, grad_p: Tensor, grad_q: Tensor) -> tuple[Tensor | None, ...]:
        decay, exponent, m, p, q = ctx.saved_tensors
        M, U, Z = _adjoint(ctx.inclusive, decay, m, grad_p, grad_q)
        at_write = torch.exp(M + exponent)
        at_past = torch.exp((M[:, 1:] + m[:, :-1]) + decay[:, 1:])
        kept = at_past * (U[:, 1:] * p[:, :-1] + Z[:, 1:] * q[:, :-1])
        grad_decay = functional.pad(kept, (0, 0, 1, 0))  # before the first step there is nothing
        return None, grad_decay.sum_to_size(decay.shape), None, at_write * U, at_write * Z
