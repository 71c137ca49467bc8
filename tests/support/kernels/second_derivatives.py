"""Second derivatives: small operands, losses, and what is differentiated of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ssmperf import Shape
from ssmperf.suitekit import registry

from .table import random_like

SIZES = {
    "scan": {"B": 2, "C": 3},
    "linear_attention": {"B": 1, "H": 2, "K": 2, "V": 3},
    "selective_scan": {"B": 1, "D": 3, "N": 2},
    "delta_rule": {"B": 1, "H": 2, "K": 2, "V": 3},
    "ratio_scan": {"B": 2, "C": 3},
    "softmax_attention": {"B": 1, "H": 2, "K": 2, "V": 3},
    "long_conv": {"B": 1, "C": 3},
    "rnn": {"B": 1, "C": 3},
}
Operands = dict[str, Any]
Loss = Callable[[Tensor, Tensor | None], Tensor]


def drawn(recurrence: str, kind: str, T: int, *, reset: bool, state: bool) -> Operands:
    """Operands in float64. reset: whether log gates are -inf at a step, or in a channel if constant."""
    entry = registry.recurrence(recurrence)
    generator = torch.Generator().manual_seed(3)
    shape = Shape(T=T, **SIZES[recurrence])
    operands: Operands = dict(entry.sample(shape, regime="gla", generator=generator, gate_kind=kind))
    if state and entry.sample_state is not None:
        extra = {"rows": 2} if entry.grows else {}
        operands["initial_state"] = entry.sample_state(operands, generator, **extra)
    elif state and entry.state_shape is not None:
        start = torch.randn(entry.state_shape(shape), generator=generator)
        is_complex = "complex" in kind
        operands["initial_state"] = torch.complex(start, start.flip(-1)) if is_complex else start
    for name, value in operands.items():
        if isinstance(value, Tensor):
            operands[name] = value.to(torch.complex128 if value.is_complex() else torch.float64)
    for name in entry.gates if reset else ():
        gate = operands.get(name)
        if name.startswith("log_") and gate is not None:
            over_time = gate.dim() >= 3 and gate.shape[1] == T
            gate[(slice(None), min(2, T - 1)) if over_time else (..., 0)] = -math.inf
    return operands


def shared_keys(T: int) -> Operands:
    """Operands of the delta rule with queries and keys that all heads share, as longhorn_exact has them."""
    operands = drawn("delta_rule", "none", T, reset=False, state=True)
    return {**operands, "q": operands["q"][:, :, :1], "k": operands["k"][:, :, :1]}


def tensors(operands: Operands) -> list[str]:
    return [name for name, value in operands.items() if isinstance(value, Tensor)]


def leaves_of(operands: Operands, names: list[str]) -> dict[str, Tensor]:
    return {name: operands[name].detach().clone().requires_grad_() for name in names}


def linear(output: Tensor, state: Tensor | None) -> Tensor:
    """A loss that is linear in the results, so that the incoming gradients have no graph."""
    given = [each for each in (output, state) if each is not None and each.requires_grad]
    return torch.stack([(each * random_like(each, 5).conj()).real.sum() for each in given]).sum()


def quadratic(output: Tensor, state: Tensor | None) -> Tensor:
    return sum(each.abs().square().sum() for each in (output, state) if each is not None)  # type: ignore[return-value]


def second(function: Callable[..., Any], operands: Operands, loss: Loss, names: list[str]) -> list[Tensor]:
    """The gradients of a gradient penalty plus a Hessian-vector product, for the operands of some names."""
    leaves = leaves_of(operands, names)
    value = loss(*function(**{**operands, **leaves}))
    first = torch.autograd.grad(value, list(leaves.values()), create_graph=True, allow_unused=True)
    terms = [
        (each * (each + random_like(each, 6)).conj()).real.sum()
        for each in first
        if each is not None and each.requires_grad
    ]
    zeros = [torch.zeros_like(leaf) for leaf in leaves.values()]
    if not terms:  # linear in these operands
        return zeros
    found = torch.autograd.grad(torch.stack(terms).sum(), list(leaves.values()), allow_unused=True)
    return [zero if each is None else each for each, zero in zip(found, zeros, strict=True)]
