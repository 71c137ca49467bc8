"""The scan as two prefix sums in the log domain.

Heinsen, Efficient parallelization of a ubiquitous sequential computation (2023);
docs/recurrences.md#logspace.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssmperf.authoring import Shape, UnsupportedValues, backend

from .common import Operands, adjoint_scan, as_backend, gate

FLOOR = {torch.float32: -104.0, torch.float64: -746.0}  # the largest integers whose exp is exactly 0
SPAN_LIMIT = {torch.float32: 1e4, torch.float64: 1e6}
LEVELS = 20  # of a tree over a million steps


def log_scan(log_a: Tensor, phase: Tensor | None, b: Tensor, initial_state: Tensor) -> Tensor:
    """Compute all states h_t (B, T, ...), differentiably; the backward is a log-space scan, too.

    Raises:
        UnsupportedValues: the decay span of the gates is too long for the precision.
    """
    return adjoint_scan(_heinsen, log_a, phase, b, initial_state)


def error_bound(span: float, dtype: str) -> float:
    """Bound the relative error of exp(L): the absolute rounding error of L, |L| times the precision.

    A sum over a tree rounds once per level, and a million steps have 20. Constant gates come near to that,
    since they round the same way at every step.
    """
    floor = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[dtype]
    kind = torch.float64 if dtype == "float64" else torch.float32
    return max(floor, LEVELS * torch.finfo(kind).eps / 2 * span)


def _heinsen(log_a: Tensor, phase: Tensor | None, b: Tensor, initial_state: Tensor) -> Tensor:
    """h_t = exp(L_t) Σ_{s≤t} exp(log b_s - L_s) with L = Σ log a and h_0 as the input before the first.

    The inner sum is a logcumsumexp of positive terms. Signed and complex inputs are split into the positive
    streams ±Re, ±Im, and phases first turn the inputs into a rotating frame. So all logs are real, and the
    log of a zero is -inf. A reset counts as the floor, whose exp is 0.
    """
    L = log_a.clamp(min=FLOOR[log_a.dtype]).cumsum(1)
    span, limit = -L[:, -1].min().item(), SPAN_LIMIT[log_a.dtype]
    if span > limit:
        raise UnsupportedValues(
            f"decay span {span:.0f} is beyond {limit:.0f}, where logs lose too many digits"
        )
    L = torch.cat([torch.zeros_like(L[:, :1]), L], dim=1)
    inputs = torch.cat([initial_state.unsqueeze(1), b], dim=1)
    turn = None
    if phase is not None:
        angle = phase.cumsum(1)
        angle = torch.cat([torch.zeros_like(angle[:, :1]), angle], dim=1)
        turn = gate(L.new_zeros(angle.shape), angle)
        inputs = inputs * turn.conj()
    if inputs.is_complex():
        h = torch.complex(_signed(inputs.real, L), _signed(inputs.imag, L))
    else:
        h = _signed(inputs, L)
    return (h if turn is None else h * turn)[:, 1:]


def _signed(inputs: Tensor, L: Tensor) -> Tensor:
    positive = _positive(inputs, L)
    return positive - _positive(-inputs, L) if bool((inputs < 0).any()) else positive


def _positive(inputs: Tensor, L: Tensor) -> Tensor:
    return torch.exp(L + torch.logcumsumexp(inputs.clamp(min=0).log() - L, dim=1))


def launches(shape: Shape) -> float:
    """A fixed number of operators; a cumulative sum along a strided axis is one launch."""
    return 24


def serial_steps(shape: Shape, gate_kind: str) -> float:
    """Sums over time, a strided axis: of the gates, the phases, and the two or four positive streams."""
    return (6 if gate_kind.endswith("_complex") else 3) * shape["T"]


def workspace(shape: Shape, itemsize: int, gate_kind: str) -> float:
    """L, the inputs, and the logs and sums of two streams."""
    return 6 * shape["B"] * shape["T"] * shape["C"] * max(4, itemsize)


@backend(
    "scan",
    name="logspace",
    error_bound=error_bound,
    launches=launches,
    serial_steps=serial_steps,
    workspace=workspace,
)
@as_backend
def logspace(x: Operands) -> Tensor:
    """Heinsen's scan: a cumulative sum and a logcumsumexp; its error grows with the decay span.

    Raises:
        UnsupportedValues: Σ -log_a of a channel exceeds 10⁴ (10⁶ in float64).
    """
    return log_scan(x.log_a, x.phase, x.b, x.state)
