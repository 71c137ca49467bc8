"""The arguments of a call, and their checks: valid combinations, shapes, working precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from ssmperf.authoring import UsageError

from ..scan.common import sequence_bounds

GATES = ("exp", "implicit", "sigmoid", "const")
DISCRETIZATIONS = ("euler", "zoh")
NEEDED = {"exp": ("delta", "A"), "implicit": ("delta",), "sigmoid": ("A", "g"), "const": ("A",)}
MEANINGLESS = {"exp": ("g",), "implicit": ("A", "g"), "sigmoid": (), "const": ("g",)}
# Stands for infinity in factors of a log gate: its exponential is 0, and times 0 it is 0 where inf gives NaN.
HUGE = 1e15


def gate_kind(operands: Mapping[str, Any]) -> str:
    """Name the gate: `exp`, `exp_zoh`, `implicit`, `sigmoid` or `const`, with `_complex` if A is complex."""
    kind: str = operands.get("gate") or "exp"
    if operands.get("discretization") == "zoh":
        kind += "_zoh"
    A = operands.get("A")
    return kind + ("_complex" if A is not None and A.is_complex() else "")


@dataclass(slots=True)
class Arguments:
    """The arguments of one call, which `selective_scan` describes."""

    x: Tensor
    delta: Tensor | None
    k: Tensor
    q: Tensor
    A: Tensor | None = None
    initial_state: Tensor | None = None
    _: KW_ONLY
    gate: str = "exp"
    g: Tensor | None = None
    tau: float = 1.0
    discretization: str = "euler"
    skip: Tensor | None = None
    output_gate: Tensor | None = None
    delta_bias: Tensor | None = None
    delta_softplus: bool = False
    cu_seqlens: Tensor | None = None


def check(given: Arguments) -> None:
    """Refuse operands and options for which the operation is not defined.

    Raises:
        UsageError: an unknown gate or discretization, a missing or meaningless operand, a wrong shape, a
            complex operand where only a real one is defined, or a bias or softplus without a delta.
    """
    gate, tau, discretization = given.gate, given.tau, given.discretization
    for name, value, valid in (("gate", gate, GATES), ("discretization", discretization, DISCRETIZATIONS)):
        if value not in valid:
            raise UsageError(f"unknown {name} {value!r} (valid: {', '.join(valid)})")
    if discretization == "zoh" and gate != "exp":
        raise UsageError(f"discretization 'zoh' needs gate='exp', got gate={gate!r} (valid there: euler)")
    for name in NEEDED[gate]:
        if getattr(given, name) is None:
            raise UsageError(f"gate {gate!r} needs {name}, got None")
    for name in MEANINGLESS[gate]:
        if getattr(given, name) is not None:
            raise UsageError(f"gate {gate!r} takes no {name} (it takes {', '.join(NEEDED[gate])})")
    if gate != "sigmoid" and tau != 1:
        raise UsageError(f"tau belongs to gate='sigmoid', got tau={tau} with gate={gate!r}")
    if not tau > 0:
        raise UsageError(f"tau must be positive, got {tau}")
    _check_shapes(given)
    _check_fields(given)
    _check_options(given)


def present(operand: Tensor | None) -> Tensor:
    """Return an operand that `check` has found to be given."""
    assert operand is not None
    return operand


def bounds_of(given: Arguments) -> list[int] | None:
    """Check cu_seqlens and list it on the host; see `sequence_bounds`. None without packed sequences."""
    if given.cu_seqlens is None:
        return None
    B, T, D = given.x.shape
    return sequence_bounds(given.cu_seqlens, B, T, (D, given.k.shape[2]), given.initial_state)


def _check_shapes(given: Arguments) -> None:
    x, k = given.x, given.k
    if x.dim() != 3 or k.dim() != 3 or k.shape[:2] != x.shape[:2]:
        raise UsageError(f"x must be (B, T, D) and k (B, T, N), got {tuple(x.shape)} and {tuple(k.shape)}")
    D, N = x.shape[2], k.shape[2]
    for name, shape in (("q", k.shape), ("delta", x.shape), ("A", (D, N))):
        _check_shape(given, name, shape)
    if given.g is not None:
        outer(given.g, D, N)


def _check_shape(given: Arguments, name: str, shape: tuple[int, ...]) -> None:
    tensor = getattr(given, name)
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise UsageError(f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")


def _check_fields(given: Arguments) -> None:
    for name in ("x", "delta", "g"):
        _check_real(given, name)
    if given.A is not None and given.A.is_complex():
        if given.gate == "sigmoid":
            raise UsageError(f"gate 'sigmoid' takes a real A, got {given.A.dtype} (complex: exp, const)")
    elif given.k.is_complex() or given.q.is_complex():
        raise UsageError("complex k and q need a complex A")


def _check_real(given: Arguments, name: str) -> None:
    tensor = getattr(given, name)
    if tensor is not None and tensor.is_complex():
        raise UsageError(f"{name} must be real, got {tensor.dtype}")


def _check_options(given: Arguments) -> None:
    channels = given.x.shape[2:]
    for name, shape in (("skip", channels), ("output_gate", given.x.shape), ("delta_bias", channels)):
        _check_shape(given, name, shape)
        _check_real(given, name)
    if given.delta is None and (given.delta_bias is not None or given.delta_softplus):
        raise UsageError("delta_bias and delta_softplus need delta, got None")


def outer(g: Tensor, D: int, N: int) -> Tensor:
    """View g as (B, T, D, 1) or (B, T, 1, N), to be multiplied by A (D, N).

    Raises:
        UsageError: g has neither shape, or is ambiguous: (B, T, D) with D = N.
    """
    if g.dim() == 3 and D != N and g.shape[2] in (D, N):
        return g.unsqueeze(-1) if g.shape[2] == D else g.unsqueeze(-2)
    if g.dim() == 4 and tuple(g.shape[2:]) in ((D, 1), (1, N)):
        return g
    valid = f"(B, T, {D}, 1) or (B, T, 1, {N})" + ("" if D == N else f", or (B, T, {D}) or (B, T, {N})")
    raise UsageError(f"g must be {valid}, got {tuple(g.shape)}")


def working_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Find the working dtype: float32, wider if an operand is wider, complex if one is complex."""
    wide = torch.float32
    for tensor in tensors:
        if tensor is not None:
            wide = torch.promote_types(wide, tensor.dtype)
    return wide
