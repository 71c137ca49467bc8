"""Second derivatives: the gradient of a penalty on gradients. A backward pass is right for it, or refuses.

A loss that is linear in the results is the trap: its gradient at them needs no gradient itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.engine.judge.tolerance import SECOND_DERIVATIVE, perturb, relative_error, tolerance
from ssmperf.engine.operands.dtypes import dtype_of, widen
from ssmperf.engine.operands.values import Values

Exact = tuple[Mapping[str, Tensor], Mapping[str, float]]  # second derivatives, and the tolerance of each

NAME = "second derivatives"


def second_derivatives(function: Callable[..., Any], values: Values) -> dict[str, Tensor]:
    """Differentiate Σ weights · gradients of a loss that is linear in the results.

    Operands on which no gradient depends get zeros.
    """
    leaves = {name: value.detach().requires_grad_() for name, value in values.varying.items()}
    with torch.enable_grad():
        output, state = function(**{**values.operands, **leaves})
        arriving = [(output, values.grad_output)]
        if state is not None and values.grad_state is not None:
            arriving.append((state, values.grad_state))
        first = torch.autograd.grad(
            [end for end, _ in arriving],
            list(leaves.values()),
            [gradient.to(end.dtype) for end, gradient in arriving],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        penalty = sum((_weights(each) * each).sum().real for each in first)
        assert isinstance(penalty, Tensor)
        if not penalty.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        second = torch.autograd.grad(
            penalty, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    return dict(zip(leaves, second, strict=True))


def _weights(gradient: Tensor) -> Tensor:
    """Draw the weights of a penalty; equal shapes get equal ones, whatever the precision."""
    generator = torch.Generator(gradient.device).manual_seed(97)
    wide = torch.complex128 if gradient.is_complex() else torch.float64
    drawn = torch.randn(gradient.shape, dtype=wide, device=gradient.device, generator=generator)
    return drawn.to(gradient.dtype)


def exact_second(definition: Callable[..., Any], values: Values, dtype: str) -> Exact:
    """Compute second derivatives in float64, and the tolerance of each in a dtype."""
    low = torch.promote_types(dtype_of(dtype), torch.float32)
    exact = second_derivatives(definition, _cast(values, values.operands, torch.float64))
    moved = second_derivatives(definition, _cast(values, perturb(values.operands, low), low))
    limits = {
        name: SECOND_DERIVATIVE
        * tolerance(relative_error(moved[name], value), dtype_of(dtype), gradient=True)
        for name, value in exact.items()
    }
    return exact, limits


def _cast(values: Values, operands: Mapping[str, Any], dtype: torch.dtype) -> Values:
    wide = {name: widen(value, dtype) for name, value in operands.items()}
    return Values(wide, widen(values.grad_output, dtype), widen(values.grad_state, dtype))
