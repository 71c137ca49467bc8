"""Code shared by the backends of selective_scan: gates and writes of D·N elements, and their adjoint scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssmperf.authoring import Shape

from .._autocast import without_autocast
from .._states import as_state
from ..scan.common import from_the_end, gate, named_after, over_time, taking
from ._signature import HUGE, Arguments, bounds_of, check, outer, present, working_dtype

Result = tuple[Tensor, Tensor]  # output, final state
# operands, S_0 (B, D, N) -> all states (B, T, D, N)
StateScan = Callable[["Operands", Tensor], Tensor]
# log gate and phase (B|1, T, D, N), write (B, T, D, N), S_0 -> all states
LogScan = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands in working precision, with axes (B, T, D, N) that multiply."""

    kind: str
    x: Tensor  # (B, T, D, 1)
    delta: Tensor | None  # (B, T, D, 1)
    k: Tensor  # (B, T, 1, N)
    q: Tensor  # (B, T, N, 1)
    rate: Tensor | None  # Re A (D, N)
    turn: Tensor | None  # Im A
    g: Tensor | None  # (B, T, D|1, 1|N)
    tau: float
    zoh: bool
    skip: Tensor | None  # (D,)
    z: Tensor | None  # (B, T, D)
    bounds: list[int] | None  # of packed sequences
    dtype: torch.dtype  # of the output

    @property
    def T(self) -> int:
        return self.x.shape[1]

    def log_gate(self) -> Tensor:
        """Compute log gates (B|1, T|1, D, N).

        An implicit gate below 0 has no logarithm: it gives NaN, unless it is a 0 with a rounding error.
        """
        if self.kind == "implicit":
            loss = present(self.delta) * self.k.square()
            rounding = 16 * torch.finfo(loss.dtype).eps
            return torch.log1p(-torch.where(loss < 1 + rounding, loss.clamp(max=1), loss))
        if self.kind == "sigmoid":
            return functional.logsigmoid(present(self.g) * present(self.rate)) / self.tau
        if self.kind == "const":
            return present(self.rate)[None, None]
        return present(self.delta).clamp(max=HUGE) * present(self.rate)

    def phase(self) -> Tensor | None:
        """Compute the gates' phase, with the axes of `log_gate`, in float64 for sums; None for real gates."""
        if self.turn is None:
            return None
        turn = self.turn.double()[None, None]
        return turn if self.kind == "const" else present(self.delta).double() * turn

    def gate(self) -> Tensor:
        """Compute gates (B|1, T|1, D, N), an implicit one so that it is differentiable at 0, too."""
        if self.kind == "implicit":
            return 1 - present(self.delta) * self.k.square()
        return gate(self.log_gate(), self.phase())

    def write(self) -> Tensor:
        """Compute the summand of each step's state, (B, T, D, N)."""
        if self.zoh:
            delta, A = present(self.delta).clamp(max=HUGE), present(self.rate)
            A = A if self.turn is None else torch.complex(A, self.turn)
            held: Tensor = HeldStep.apply(delta, A)  # type: ignore[no-untyped-call]
            return held * self.x * self.k
        return (self.x if self.delta is None else self.delta * self.x) * self.k

    def read(self, states: Tensor) -> Tensor:
        """Compute o_t = S_t q_t (B, T, D) from all states (B, T, D, N), in the output's dtype."""
        output = (states @ self.q).squeeze(-1)
        output = 2 * output.real if output.is_complex() else output
        if self.skip is not None:
            output = output + self.skip * self.x.squeeze(-1)
        if self.z is not None:
            output = output * functional.silu(self.z)
        return output.to(self.dtype)

    def sequences(self, state: Tensor) -> Iterator[tuple[Operands, Tensor]]:
        """Split packed operands and states into those of each sequence; yield unpacked ones unchanged."""
        if self.bounds is None:
            yield self, state
            return
        for start, (first, end) in zip(state.split(1), pairwise(self.bounds), strict=True):
            yield self.steps(first, end), start

    def blocks(self, count: int) -> Iterator[Operands]:
        """Split the operands into runs of `count` time steps, of which the last one may be shorter."""
        for first in range(0, self.T, count):
            yield self.steps(first, min(first + count, self.T))

    def steps(self, first: int, end: int) -> Operands:
        names = [name for name in ("x", "delta", "k", "q", "g", "z") if getattr(self, name) is not None]
        return replace(self, bounds=None, **{name: getattr(self, name)[:, first:end] for name in names})

    def restart(self, gates: Tensor, write: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Turn packed sequences into one sequence from zeros: a first step resets and writes its new state.

        Returns the mask of first steps (T, 1, 1), gates and writes (1, T, D, N), and zeros (1, D, N).
        """
        which, first, _ = self._filled(gates.device)
        reset = torch.zeros(self.T, 1, 1, dtype=torch.bool, device=gates.device)
        reset[first] = True
        write = write.index_add(1, first, gates[:, first] * state[which].unsqueeze(0))
        return reset, gates.masked_fill(reset, 0), write, torch.zeros_like(state[:1])

    def final(self, states: Tensor, state: Tensor) -> Tensor:
        """Pick the last of all states (B, T, D, N), per packed sequence if there are any; S_0 is `state`."""
        if self.bounds is None:
            return states[:, -1]
        which, _, last = self._filled(states.device)
        return state.index_copy(0, which, states[0, last])

    def _filled(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """List the packed sequences that have steps, and the first and last steps of each."""
        bounds = torch.tensor(self.bounds)
        which = bounds.diff().nonzero().squeeze(-1)
        return which.to(device), bounds[which].to(device), (bounds[which + 1] - 1).to(device)


def widen(given: Arguments) -> tuple[Operands, Tensor]:
    """Convert operands and S_0 to working precision: float32 or wider, complex with a complex A.

    Raises:
        UsageError: the operands contradict one another, or their shapes that do not fit.
    """
    check(given)
    bounds = bounds_of(given)
    x, delta, k, q, A, g, skip = given.x, given.delta, given.k, given.q, given.A, given.g, given.skip
    output_gate, delta_bias = given.output_gate, given.delta_bias
    wide = working_dtype(x, delta, k, q, A, g, skip, output_gate, delta_bias)
    real = wide.to_real()
    D, N = x.shape[2], k.shape[2]
    if delta is not None:
        delta = delta.to(real) if delta_bias is None else delta.to(real) + delta_bias.to(real)
        delta = torch.logaddexp(delta, torch.zeros_like(delta)) if given.delta_softplus else delta
    operands = Operands(
        kind=given.gate,
        x=x.to(real).unsqueeze(-1),
        delta=None if delta is None else delta.unsqueeze(-1),
        k=k.to(wide if k.is_complex() else real).unsqueeze(-2),
        q=q.to(wide).unsqueeze(-1),
        rate=None if A is None else A.real.to(real).clamp(-HUGE, HUGE),
        turn=A.imag.to(real) if A is not None and A.is_complex() else None,
        g=None if g is None else outer(g.to(real), D, N).clamp(-HUGE, HUGE),
        tau=given.tau,
        zoh=given.discretization == "zoh",
        skip=None if skip is None else skip.to(real),
        z=None if output_gate is None else output_gate.to(real),
        bounds=bounds,
        dtype=x.dtype,
    )
    state = given.initial_state
    if state is None:
        state = x.new_zeros(x.shape[0] if bounds is None else len(bounds) - 1, D, N)
    return operands, as_state(state, wide)


def takes_operands(compute: Callable[[Operands, Tensor], Result]) -> Callable[..., Result]:
    """Give a function of `Operands` and S_0 the recurrence's signature."""

    def function(given: Arguments) -> tuple[Tensor, Tensor]:
        return compute(*widen(given))

    return without_autocast(taking(Arguments, named_after(compute, function)))


def by_scanning(scan: StateScan, operands: Operands, state: Tensor) -> Result:
    """Compute output and final state by a scan that forms all T matrix states.

    This is F3 as an F1 scan of D·N channels (docs/recurrences.md#inclusions): exact, at the cost of memory.
    """
    states = scan(operands, state)
    return operands.read(states), operands.final(states, state)


def of_logs(scan: LogScan) -> StateScan:
    """Let a scan over log gates take `Operands`, and differentiate it by the same scan from the end."""

    def states(operands: Operands, state: Tensor) -> Tensor:
        with torch.no_grad():
            logs, phase = operands.log_gate(), operands.phase()
            logs = over_time(logs, operands.T)
            phase = None if phase is None else over_time(phase, operands.T)
        gates = over_time(operands.gate(), operands.T).to(state.dtype)
        write = operands.write().to(state.dtype)
        if operands.bounds is not None:
            reset, gates, write, state = operands.restart(gates, write, state)
            logs = logs.masked_fill(reset, -math.inf)
        h: Tensor = GateScan.apply(scan, logs, phase, gates, write, state)  # type: ignore[no-untyped-call]
        return h

    return states


class GateScan(torch.autograd.Function):
    """h_t = a_t ⊙ h_{t-1} + b_t by a scan over log a, with the gradient of a itself.

    λ_t = g_t + conj(a_{t+1}) λ_{t+1};  db = λ;  da = λ_t conj(h_{t-1});  dh_0 = conj(a_1) λ_1
    (docs/recurrences.md#gradients-of-scans). A gate that reaches 0 other than by an exponential has a
    gradient there, which its log has lost.
    """

    @staticmethod
    def forward(
        ctx: Any, scan: LogScan, logs: Tensor, phase: Tensor | None, a: Tensor, b: Tensor, h_0: Tensor
    ) -> Tensor:
        h = scan(logs, phase, b, h_0)
        ctx.scan = scan
        ctx.save_for_backward(logs, phase, a, h_0, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        logs, phase, a, h_0, h = ctx.saved_tensors
        back_phase = None if phase is None else -from_the_end(phase)
        back_a = from_the_end(a).conj() if torch.is_grad_enabled() else a  # for further derivatives only
        back = (from_the_end(logs), back_phase, back_a, grad_h.flip(1), torch.zeros_like(h_0))
        adjoint: Tensor = GateScan.apply(ctx.scan, *back).flip(1)  # type: ignore[no-untyped-call]
        grad_a = None
        if ctx.needs_input_grad[3]:
            before = torch.cat([h_0.unsqueeze(1), h[:, :-1]], dim=1)
            grad_a = (adjoint * before.conj()).sum_to_size(a.shape)
        return None, None, None, grad_a, adjoint, a[:, 0].conj() * adjoint[:, 0]


class HeldStep(torch.autograd.Function):
    """∫₀^Δ exp(A s) ds = expm1(ΔA) / A of Δ (B, T, D, 1) and A (D, N), Δ at A = 0: an input held for Δ.

    As Δ·φ(z) with z = ΔA and φ(z) = expm1(z) / z. The gradients exp(z) for Δ and Δ² φ'(z) for A are formed as
    such: differentiating the quotient loses 1/|z| digits.
    """

    @staticmethod
    def forward(ctx: Any, delta: Tensor, A: Tensor) -> Tensor:
        ctx.save_for_backward(delta, A)
        return delta * _phi(delta * A)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        delta, A = ctx.saved_tensors
        z = delta * A
        grad_delta = grad_A = None
        if ctx.needs_input_grad[0]:
            product = grad * torch.exp(z).conj()
            grad_delta = (product.real if product.is_complex() else product).sum_to_size(delta.shape)
        if ctx.needs_input_grad[1]:
            grad_A = (grad * (delta.square() * _slope_of_phi(z)).conj()).sum_to_size(A.shape)
        return grad_delta, grad_A


NEAR = 0.5  # below it 16 terms of the series give all digits of float64


def _phi(z: Tensor) -> Tensor:
    near = z.abs() < NEAR
    away = torch.where(near, 1, z)
    return torch.where(near, _series(z, near, lambda n: 1 / math.factorial(n + 1)), torch.expm1(away) / away)


def _slope_of_phi(z: Tensor) -> Tensor:
    near = z.abs() < NEAR
    away = torch.where(near, 1, z)
    quotient = (torch.exp(away) - torch.expm1(away) / away) / away
    return torch.where(near, _series(z, near, lambda n: (n + 1) / math.factorial(n + 2)), quotient)


def _series(z: Tensor, where: Tensor, coefficient: Callable[[int], float]) -> Tensor:
    z = torch.where(where, z, 0)
    total = torch.full_like(z, coefficient(15))
    for n in range(14, -1, -1):
        total = total * z + coefficient(n)
    return total


FORMING = 24  # kernels that form gates and writes, and read the states


def matrix_bytes(shape: Shape, itemsize: int) -> float:
    """Compute the bytes of one copy of all T states in working precision."""
    return shape["B"] * shape["T"] * shape["D"] * shape["N"] * max(4, itemsize)
