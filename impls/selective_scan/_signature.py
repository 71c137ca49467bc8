"""Checks of selective_scan's operands: valid combinations, shapes, working precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf import UsageError

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


def check(
    x: Tensor,
    delta: Tensor | None,
    k: Tensor,
    q: Tensor,
    A: Tensor | None,
    gate: str,
    g: Tensor | None,
    tau: float,
    discretization: str,
) -> None:
    """Refuse operands for which the operation is not defined.

    Raises:
        UsageError: an unknown gate or discretization, a missing or meaningless operand, a wrong shape, or a
            complex operand where only a real one is defined.
    """
    for name, value, valid in (("gate", gate, GATES), ("discretization", discretization, DISCRETIZATIONS)):
        if value not in valid:
            raise UsageError(f"unknown {name} {value!r} (valid: {', '.join(valid)})")
    if discretization == "zoh" and gate != "exp":
        raise UsageError(f"discretization 'zoh' needs gate='exp', got gate={gate!r} (valid there: euler)")
    given = {"delta": delta, "A": A, "g": g}
    for name in NEEDED[gate]:
        if given[name] is None:
            raise UsageError(f"gate {gate!r} needs {name}, got None")
    for name in MEANINGLESS[gate]:
        if given[name] is not None:
            raise UsageError(f"gate {gate!r} takes no {name} (it takes {', '.join(NEEDED[gate])})")
    if gate != "sigmoid" and tau != 1:
        raise UsageError(f"tau belongs to gate='sigmoid', got tau={tau} with gate={gate!r}")
    if not tau > 0:
        raise UsageError(f"tau must be positive, got {tau}")
    _check_shapes(x, delta, k, q, A, g)
    _check_fields(x, delta, k, q, A, gate, g)


def check_options(
    x: Tensor,
    delta: Tensor | None,
    *,
    skip: Tensor | None = None,
    output_gate: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> None:
    """Refuse options that do not fit the operands.

    Raises:
        UsageError: a wrong shape, a complex option, or a bias or softplus without a delta.
    """
    channels = x.shape[2:]
    for name, tensor, shape in (
        ("skip", skip, channels),
        ("output_gate", output_gate, x.shape),
        ("delta_bias", delta_bias, channels),
    ):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise UsageError(f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
        if tensor.is_complex():
            raise UsageError(f"{name} must be real, got {tensor.dtype}")
    if delta is None and (delta_bias is not None or delta_softplus):
        raise UsageError("delta_bias and delta_softplus need delta, got None")


def present(operand: Tensor | None) -> Tensor:
    """Return an operand that `check` has found to be given."""
    assert operand is not None
    return operand


def bounds_of(cu_seqlens: Tensor, x: Tensor, k: Tensor, initial_state: Tensor | None) -> list[int]:
    """Check cu_seqlens of these operands and list it on the host; see `sequence_bounds`."""
    B, T, D = x.shape
    return sequence_bounds(cu_seqlens, B, T, (D, k.shape[2]), initial_state)


def _check_shapes(
    x: Tensor, delta: Tensor | None, k: Tensor, q: Tensor, A: Tensor | None, g: Tensor | None
) -> None:
    if x.dim() != 3 or k.dim() != 3 or k.shape[:2] != x.shape[:2]:
        raise UsageError(f"x must be (B, T, D) and k (B, T, N), got {tuple(x.shape)} and {tuple(k.shape)}")
    D, N = x.shape[2], k.shape[2]
    for name, tensor, shape in (("q", q, k.shape), ("delta", delta, x.shape), ("A", A, (D, N))):
        if tensor is not None and tuple(tensor.shape) != tuple(shape):
            raise UsageError(f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
    if g is not None:
        outer(g, D, N)


def _check_fields(
    x: Tensor, delta: Tensor | None, k: Tensor, q: Tensor, A: Tensor | None, gate: str, g: Tensor | None
) -> None:
    for name, tensor in (("x", x), ("delta", delta), ("g", g)):
        if tensor is not None and tensor.is_complex():
            raise UsageError(f"{name} must be real, got {tensor.dtype}")
    if A is not None and A.is_complex():
        if gate == "sigmoid":
            raise UsageError(f"gate 'sigmoid' takes a real A, got {A.dtype} (complex: exp, const)")
    elif k.is_complex() or q.is_complex():
        raise UsageError("complex k and q need a complex A")


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
