"""Code shared by the scan's backends: operands in working precision, decay factors, and the adjoint scan.

Also what recurrences share whose sequences may be packed into one, and whose heads may share keys.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ssmperf.authoring import Shape, UsageError

from .._autocast import without_autocast
from .._states import as_state

A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
InclusiveScan = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Operands:
    """Operands in working precision: float32 or wider, complex with a phase or a complex b.

    The phase is in float64, for backends to sum: float32 sums of a few dozen steps lose more digits than all
    other roundings.

    log_a, phase: (B|1, T|1, C|1). b: (B, T, C). state: h_0 (B, C). dtype: the dtype of b as given.
    """

    log_a: Tensor
    phase: Tensor | None
    b: Tensor
    state: Tensor
    dtype: torch.dtype

    @property
    def T(self) -> int:
        return self.b.shape[1]

    @property
    def gates(self) -> Tensor:
        """Gates of all steps (B|1, T, C|1), in the dtype of b."""
        return over_time(gate(self.log_a, self.phase).to(self.b.dtype), self.T)


def as_backend(all_states: Callable[[Operands], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Give a function that computes all states h (B, T, C) the recurrence's signature and results."""

    def backend(
        log_a: Tensor, b: Tensor, initial_state: Tensor | None = None, *, phase: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(torch.promote_types(log_a.dtype, b.dtype), torch.float32)
        if phase is not None:
            wide = torch.promote_types(wide, torch.complex64)
            phase = three_axes(phase.to(torch.float64))
        log_a = three_axes(log_a.to(wide.to_real()))
        if initial_state is None:
            initial_state = b.new_zeros(b.shape[0], b.shape[2])
        h = all_states(Operands(log_a, phase, b.to(wide), as_state(initial_state, wide), b.dtype))
        return (h if h.is_complex() else h.to(b.dtype)), h[:, -1]

    return without_autocast(named_after(all_states, backend))


def named_after(original: Callable[..., Any], function: F) -> F:
    """Give a function the name, module and docstring of another one; its signature stays its own."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, attribute, getattr(original, attribute))
    return function


def taking(arguments: type[A], function: Callable[[A], R]) -> Callable[..., R]:
    """Give a function of all arguments of a call, an instance of a dataclass, its fields as parameters."""

    def call(*operands: Any, **options: Any) -> R:
        return function(arguments(*operands, **options))

    returns = inspect.signature(function).return_annotation
    call.__signature__ = inspect.signature(arguments).replace(return_annotation=returns)  # type: ignore[attr-defined]
    return named_after(function, call)


def rounds(shape: Shape) -> int:
    """Number of rounds of a parallel prefix over T steps: log2 T rounded up, at least 1."""
    return math.ceil(math.log2(max(2, shape["T"])))


def gate(log_a: Tensor, phase: Tensor | None) -> Tensor:
    """Compute exp(log_a + i·phase) in the precision of log_a.

    Where log_a is -inf the gate is exactly 0, and so is the gradient of log_a.
    """
    magnitude = torch.exp(log_a)
    if phase is None:
        return magnitude
    angle = nearest_turn(phase).to(magnitude.dtype)
    # torch.polar has a NaN gradient where the magnitude is subnormal
    return torch.complex(magnitude * torch.cos(angle), magnitude * torch.sin(angle))


def nearest_turn(phase: Tensor) -> Tensor:
    """Subtract whole turns from a phase, which leaves it within ±π.

    A small negative phase stays small: as 2π less a little it would keep only the digits that 2π leaves, and
    all steps with the same phase would turn too far by the same error.
    """
    return phase - 2 * math.pi * torch.round(phase / (2 * math.pi))


def three_axes(gate: Tensor) -> Tensor:
    """View a gate that broadcasts to (B, T, C) as (B|1, T|1, C|1)."""
    return gate[(None,) * (3 - gate.dim())]


def differentiates(*operands: Tensor | None) -> bool:
    """Whether a call with these operands may be followed by its backward pass.

    Forward-mode differentiation counts, too: only an autograd function refuses operands with tangents.
    """
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in operands)


def sequence_bounds(
    cu_seqlens: Tensor, B: int, T: int, state: Sequence[int], initial_state: Tensor | None
) -> list[int]:
    """Check cu_seqlens and list it on the host: where packed sequences begin, and T.

    state: the shape of one sequence's state.

    Raises:
        UsageError: it is no vector of integers that rises from 0 to T, there is more than one batch element,
            or there is not one initial state per sequence.
    """
    _check_packed(cu_seqlens, B, T)
    bounds = _listed(cu_seqlens, T)
    _check_states(cu_seqlens, state, initial_state)
    return bounds


def bounds_on_device(
    cu_seqlens: Tensor, v: Tensor, state: Sequence[int], initial_state: Tensor | None
) -> Tensor:
    """Check cu_seqlens without waiting for a GPU, and bring it to the device of v (B, T, ...).

    Its values are checked if it lies on the CPU, and once for each T and number of sequences, unless a CUDA
    graph is being captured.

    Raises:
        UsageError: see `sequence_bounds`; or it lies on the CPU while a CUDA graph is being captured.
    """
    B, T = v.shape[:2]
    _check_packed(cu_seqlens, B, T)
    _check_states(cu_seqlens, state, initial_state)
    if is_on_host(cu_seqlens):
        if _capturing(v):
            raise UsageError("cu_seqlens lies on the CPU, and a CUDA graph would keep its values")
        _listed(cu_seqlens, T)
        return cu_seqlens.contiguous().to(v.device, non_blocking=True)
    kind = (cu_seqlens.device, cu_seqlens.shape[0], T)
    if kind not in _checked and not _capturing(v):
        _listed(cu_seqlens, T)
        if len(_checked) >= MOST_CHECKED:
            _checked.clear()
        _checked.add(kind)
    return cu_seqlens.contiguous()


def _capturing(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def is_on_host(x: Tensor) -> bool:
    """Whether the host reads x without waiting."""
    return x.device.type == "cpu"


MOST_CHECKED = 4096
_checked: set[tuple[torch.device, int, int]] = set()  # devices, numbers of bounds and steps


def _check_packed(cu_seqlens: Tensor, B: int, T: int) -> None:
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise UsageError(
            f"cu_seqlens must be a vector of int32 or int64, got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if (count := cu_seqlens.shape[0]) < 2:
        found = ("nothing", "one number")[count]
        raise UsageError(f"cu_seqlens must begin with 0 and end with T = {T}, got {found}")
    if B != 1:
        raise UsageError(f"cu_seqlens packs sequences into one batch element, got B = {B}")


def _check_states(cu_seqlens: Tensor, state: Sequence[int], initial_state: Tensor | None) -> None:
    states = (cu_seqlens.shape[0] - 1, *state)
    if initial_state is not None and tuple(initial_state.shape) != states:
        raise UsageError(
            f"initial_state must be {states}, one of each sequence, got {tuple(initial_state.shape)}"
        )


def _listed(cu_seqlens: Tensor, T: int) -> list[int]:
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != T:
        raise UsageError(
            f"cu_seqlens must begin with 0 and end with T = {T}, got {bounds[0]} and {bounds[-1]}"
        )
    for first, end in pairwise(bounds):
        if first > end:
            raise UsageError(f"cu_seqlens must not decrease, got {first} before {end}")
    return bounds


def one_by_one(
    function: Callable[..., tuple[Tensor, Any]],
    cu_seqlens: Tensor,
    operands: Mapping[str, Tensor | None],
    initial_state: Tensor | None,
) -> tuple[Tensor, Any]:
    """Apply a recurrence of matrix states to each of the sequences packed into the one batch element.

    operands: by name, among them k (1, T, Hk, K) and v (1, T, H, V). Those with more than two axes have time
        as their second one, and each sequence gets its steps of them; the others go to every sequence.
    initial_state: (n, H, K, V) for n sequences, or None.

    Returns:
        o (1, T, H, V), and the state after each sequence (n, H, K, V), or None if the function has none.

    Raises:
        UsageError: see `sequence_bounds`.
    """
    k, v = operands["k"], operands["v"]
    assert k is not None and v is not None
    (B, T, H, V), K = v.shape, k.shape[-1]
    bounds = sequence_bounds(cu_seqlens, B, T, (H, K, V), initial_state)
    starts: Sequence[Tensor | None] = [None] * (len(bounds) - 1)
    if initial_state is not None:
        starts = initial_state.split(1)
    outputs, states = [], [*starts]
    filled = [number for number, (first, end) in enumerate(pairwise(bounds)) if first < end]
    for number in filled:
        steps = slice(bounds[number], bounds[number + 1])
        part = {name: _take_steps(operand, steps) for name, operand in operands.items()}
        output, states[number] = function(**part, initial_state=starts[number])
        outputs.append(output)
    return torch.cat(outputs, 1), _stack_states(states, (1, H, K, V), states[filled[0]] if filled else None)


def _take_steps(operand: Tensor | None, steps: slice) -> Tensor | None:
    return operand if operand is None or operand.dim() <= 2 else operand[:, steps]


def _stack_states(
    states: Sequence[Tensor | None], shape: tuple[int, ...], like: Tensor | None
) -> Tensor | None:
    """Concatenate states in the dtype of one that was computed; None if that one is None.

    The others belong to empty sequences, and are as they were given: None stands for zeros of this shape.
    """
    if like is None:
        return None
    zeros = like.new_zeros(shape)
    return torch.cat([zeros if state is None else as_state(state, like.dtype) for state in states])


def shared_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat the heads of q and k (B, T, Hk, K) until there are H as of v: head h reads key head h·Hk // H.

    A single head is repeated as a view, several are copied. Where q, k and v differ in precision, q and k get
    the widest before: gradients of heads that share one are rounded when they are summed up, not each.

    Raises:
        UsageError: H is no multiple of Hk, or q and k have different heads.
    """
    H = v.shape[2]
    check_heads(q, k, H)
    if k.shape[2] == H:
        return q, k
    times = H // k.shape[2]
    wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype).to_real()
    q, k = (x.to(torch.promote_types(x.dtype, wide)) for x in (q, k))
    return _repeat_heads(q, times), _repeat_heads(k, times)


def check_heads(q: Tensor, k: Tensor, H: int) -> None:
    """Raise UsageError unless q and k (B, T, Hk, K) have H heads, or the same divisor of H."""
    Hk = k.shape[2]
    if q.shape[2] != Hk or (Hk != H and (Hk == 0 or H % Hk)):
        raise UsageError(
            f"q and k must have as many heads as v, or both the same divisor of them, "
            f"got {q.shape[2]} and {Hk}, and {H} of v"
        )


def _repeat_heads(x: Tensor, times: int) -> Tensor:
    return x.unsqueeze(3).expand(-1, -1, -1, times, -1).flatten(2, 3)


def over_time(gates: Tensor, T: int) -> Tensor:
    """View gates (B|1, T|1, ...) with all T steps."""
    return gates.expand(-1, T, *gates.shape[2:])


def segment_sums(x: Tensor) -> Tensor:
    """Sum x (..., T, C) over all segments: Σ_{s<j≤t} x_j as (..., t, s, C), 0 where s ≥ t.

    Each segment has its own sum, never a difference of two long ones, so that x may contain -inf.
    """
    T = x.shape[-2]
    later = torch.ones(T, T, dtype=torch.bool, device=x.device).tril(-1)
    return torch.where(later.unsqueeze(-1), x.unsqueeze(-2), 0).cumsum(-3)


def transfer(log_a: Tensor, phase: Tensor | None) -> Tensor:
    """Multiply gates (..., T, C) over all segments: those of s+1..t as (..., t, s, C), 0 where s > t."""
    T = log_a.shape[-2]
    causal = torch.ones(T, T, dtype=torch.bool, device=log_a.device).tril().unsqueeze(-1)
    magnitude = torch.where(causal, segment_sums(log_a), -math.inf)
    return gate(magnitude, None if phase is None else segment_sums(phase))


def adjoint_scan(
    inclusive: InclusiveScan, log_a: Tensor, phase: Tensor | None, b: Tensor, initial_state: Tensor
) -> Tensor:
    """Run `inclusive`, a scan without autograd; its backward pass is the same scan from the end."""
    T = b.shape[1]
    phase = None if phase is None else over_time(phase, T)
    states: Tensor = AdjointScan.apply(inclusive, over_time(log_a, T), phase, b, initial_state)  # type: ignore[no-untyped-call]
    return states


class AdjointScan(torch.autograd.Function):
    """h = inclusive(log_a, phase, b, h_0), whose backward is the same scan from the end, and differentiable.

    λ_t = g_t + conj(a_{t+1}) λ_{t+1};  db = λ;  d log_a + i d phase = λ_t conj(a_t h_{t-1});
    dh_0 = conj(a_1) λ_1 (docs/recurrences.md#gradients-of-scans). Gates have all T steps and broadcast over
    the other axes.
    """

    @staticmethod
    def forward(
        ctx: Any, inclusive: InclusiveScan, log_a: Tensor, phase: Tensor | None, b: Tensor, h_0: Tensor
    ) -> Tensor:
        h = inclusive(log_a, phase, b, h_0)
        ctx.inclusive = inclusive
        ctx.save_for_backward(log_a, phase, h_0, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        log_a, phase, h_0, h = ctx.saved_tensors
        back_phase = None if phase is None else -from_the_end(phase)
        zero = torch.zeros_like(h_0)
        adjoint = adjoint_scan(ctx.inclusive, from_the_end(log_a), back_phase, grad_h.flip(1), zero).flip(1)
        a = gate(log_a, phase)
        grad_a = grad_phase = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            before = torch.cat([h_0.unsqueeze(1), h[:, :-1]], dim=1)
            grad_gate = adjoint * (a * before).conj()
            grad_a = grad_gate.real.sum_to_size(log_a.shape)
            grad_phase = None if phase is None else grad_gate.imag.sum_to_size(phase.shape)
        return None, grad_a, grad_phase, adjoint, a[:, 0].conj() * adjoint[:, 0]


def from_the_end(gates: Tensor) -> Tensor:
    """Order gates for the scan from the end: the step at t takes gate t+1.

    The first step starts from zero, so its gate does not matter.
    """
    return torch.cat([torch.zeros_like(gates[:, :1]), gates[:, 1:].flip(1)], dim=1)
