"""What the backends share: operands in working precision, the scan element, the readout, the adjoint scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EMPTY = -1e38  # the exponent of nothing; with -inf two empty spans would combine to NaN

# (λ, m, u, z): decay by e^λ, then add e^m u to P and e^m z to Q
Element = tuple[Tensor, Tensor, Tensor, Tensor]
# (m, p, q): P = e^m p, Q = e^m q
State = tuple[Tensor, Tensor, Tensor]
# elements with time on axis 1 -> all states from an empty one
InclusiveScan = Callable[[Element], State]


def operands(
    log_w: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None, bonus: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, State, Tensor | None]:
    """λ (B|1, T|1, C|1), k and v (B, T, C), the initial (m, p, q) each (B, C), and the bonus (C,) or None.

    In working precision: float32, or wider where an operand is wider. m carries no gradient.
    """
    wide = torch.promote_types(torch.promote_types(log_w.dtype, k.dtype), v.dtype)
    wide = torch.promote_types(wide, torch.float32)
    log_w = log_w.to(wide)[(None,) * (3 - log_w.dim())]
    if initial_state is None:
        nothing = k.new_zeros(k.shape[0], k.shape[2], dtype=wide)
        state = (torch.full_like(nothing, EMPTY), nothing, nothing)
    else:
        p, q, m = initial_state.to(wide).unbind(1)
        state = (m.detach(), p, q)
    return log_w, k.to(wide), v.to(wide), state, None if bonus is None else bonus.to(wide)


def combine(left: Element, right: Element) -> Element:
    """The span `left` followed by the span `right`. Associative, not commutative (RECURRENCES.md §4.10)."""
    m, u, z = follow((left[1], left[2], left[3]), right)
    return left[0] + right[0], m, u, z


def follow(state: State, element: Element) -> State:
    """The state after an element. Its exponent is the larger one, so no exponential is above 1.

    before − top is exact where the two are near, so what rounding took from before + decay comes back.
    """
    (before, p, q), (decay, m, u, z) = state, element
    top = torch.maximum(before + decay, m)
    past, present = torch.exp((before - top) + decay), torch.exp(m - top)
    return top, past * p + present * u, past * q + present * z


def result(
    states: State, initial: State, k: Tensor, v: Tensor, bonus: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y (B, T, C) in working precision, and the final state (B, 3, C), from the states after each step."""
    m, p, q = states
    final = torch.stack([p[:, -1], q[:, -1], m[:, -1]], dim=1)
    if bonus is None:
        return p / q, final
    before = tuple(
        torch.cat([first.unsqueeze(1), rest[:, :-1]], dim=1)
        for first, rest in zip(initial, states, strict=True)
    )
    m, p, q = before
    lead = (k - m) + bonus  # of the step over the state; the smaller of the two weights is e^{-|lead|}
    past = torch.exp(torch.where(lead > 0, -lead, 0))
    present = torch.exp(torch.where(lead > 0, 0, lead))
    return (past * p + present * v) / (past * q + present), final


def adjoint_scan(inclusive: InclusiveScan, log_w: Tensor, k: Tensor, v: Tensor, initial: State) -> State:
    """All states of `inclusive`, a scan without autograd, differentiable by the same scan from the end."""
    states: State = AdjointScan.apply(inclusive, log_w, k, v, *initial)  # type: ignore[no-untyped-call]
    return states


class AdjointScan(torch.autograd.Function):
    """(m, p, q) after each step, whose backward is the same scan run from the end.

    The adjoint G of (P, Q) obeys G_t = e^{-m_t} g_t + e^{λ_{t+1}} G_{t+1}, g the gradients at (p, q):
    elements with exponents −m_t. Scanned as G = e^M (U, Z), every exponent below is ≤ 0 up to rounding:

        dv = e^{k+M} U;  dk = e^{k+M} (U v + Z);  dλ_t = e^{M_t+λ_t+m_{t-1}} (U_t p_{t-1} + Z_t q_{t-1});
        dp_0 = e^{M_1+λ_1+m_0} U_1 and dq_0 alike; m_0 gets none.
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
    @once_differentiable
    def backward(ctx: Any, _: Tensor, grad_p: Tensor, grad_q: Tensor) -> tuple[Tensor | None, ...]:
        log_w, k, v, *initial, m, p, q = ctx.saved_tensors
        decay = log_w.expand(-1, k.shape[1], -1)
        # step t of the reversed scan takes decay t+1; its first starts from nothing, so any decay does
        later = torch.cat([torch.zeros_like(decay[:, :1]), decay[:, 1:].flip(1)], dim=1)
        found = ctx.inclusive((later, -m.flip(1), grad_p.flip(1), grad_q.flip(1)))
        M, U, Z = (part.flip(1) for part in found)
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
