"""A fused kernel against the definition in float64: output, final state and all gradients, in the 2-norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ssmperf.suitekit import registry

from .table import inputs

# Relative, of two roundings in a half dtype: a result as saved for backward, and the gradient itself.
ROUNDING = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}

Compute = Callable[..., tuple[Tensor, Tensor]]


def kernel_check(
    recurrence: str,
    compute: Compute,
    given: Mapping[str, Any],
    tolerance: float = 0.0,
    *,
    lay_out: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, Tensor]:
    """Assert that each result of a call differs from the definition's by a tolerance at most, and is finite.

    Returns the results of the call, as `outcome` gives them.

    tolerance: relative; at least the rounding of the coarsest operand.
    lay_out: see `outcome`.
    """
    tolerance = max([tolerance, *(ROUNDING[x.dtype] for x in given.values() if has_gradient(x))])
    got = outcome(compute, given, lay_out=lay_out)
    want = outcome(registry.recurrence(recurrence).definition, given, double=True, lay_out=lay_out)
    assert got.keys() == want.keys()
    for name, exact in want.items():
        assert got[name].shape == exact.shape, name
        error = (got[name] - exact).norm() / exact.norm().clamp_min(1e-30)
        assert error <= tolerance, f"{name}: relative error {error:.2e}"  # false for NaN and infinity
    return got


def outcome(
    compute: Compute,
    given: Mapping[str, Any],
    *,
    double: bool = False,
    lay_out: Callable[[Tensor], Tensor] = lambda x: x,
) -> dict[str, Tensor]:
    """Compute `output`, `final_state` and the gradients (`d b`) under fixed random ones at both results.

    The call gets the operands in their own memory, so with their strides and addresses.

    double: whether the call gets its operands in double precision. The results are in it in any case.
    lay_out: gives the gradient at a result its layout in memory.
    """
    leaves = {
        name: (doubled(x) if double else x).detach().requires_grad_()
        for name, x in given.items()
        if has_gradient(x)
    }
    output, final = compute(**{**given, **leaves})
    generator = torch.Generator().manual_seed(99)
    arriving = []
    for result in (output, final):
        dtype = torch.complex64 if result.is_complex() else torch.float32
        drawn = torch.randn(result.shape, generator=generator, dtype=dtype)
        if result is output and not result.is_complex():
            drawn = drawn.to(inputs(given).dtype)
        arriving.append(lay_out(drawn.to(result.device, result.dtype)))
    gradients = torch.autograd.grad([output, final], list(leaves.values()), arriving)
    assert [each.dtype for each in gradients] == [each.dtype for each in leaves.values()]
    results = {"output": output, "final_state": final}
    results |= {f"d {name}": each for name, each in zip(leaves, gradients, strict=True)}
    return {name: doubled(x.detach()) for name, x in results.items()}


def doubled(x: Tensor) -> Tensor:
    """Convert to float64 or complex128."""
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())
